"""The demo's service configuration as TOML: all tools, SQLite, and limits that the faults are made for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conversations.catalogue import effect_of, target_of
from conversations.schemas import CONVERSATION, ToolSchema, tool_schemas

__all__ = [
    "ATTEMPT_TIMEOUT_S",
    "CALL_TIMEOUT_S",
    "EFFECT_TOOL",
    "FAULTS_TOOL",
    "STATE_DIGEST_TOOL",
    "STATE_TOOL",
    "demo_config",
    "to_toml",
    "write_config",
]

ATTEMPT_TIMEOUT_S = 0.2
CALL_TIMEOUT_S = 10.0
"""Limits of one attempt and of one call, in seconds."""

CONCURRENCY = 64
"""Attempts of one tool at a time: more than the conversations that run at once."""

RECONCILE_TOOL = "conversation.reconcile"
EFFECT_TOOL = "conversation.effect"
STATE_TOOL = "conversation.state"
STATE_DIGEST_TOOL = "conversation.state_digest"
FAULTS_TOOL = "conversation.set_faults"

_ADAPTER_TIMEOUT_S = 30.0  # the first call of all reads the corpus
_STRING = {"type": "string"}

# The retry budget and the breaker have tests of their own; here they would hide what the faults show.
_RETRY = {"preset": "local", "max_attempts": 3, "budget": 1.0}
_BREAKER = {"enabled": False}


def demo_config(
    *, listen: str, database: str, attempt_timeout_s: float = ATTEMPT_TIMEOUT_S
) -> dict[str, Any]:
    """Return the configuration: `listen` is host:port, `database` the SQLite file, beside the config's."""
    tools = {name: _method_tool(schema, attempt_timeout_s) for name, schema in tool_schemas().items()}
    return {
        "server": {"listen": listen},
        "admin": {"listen": "off"},
        "store": {"kind": "sqlite", "path": database},
        "tools": {**tools, **_adapter_tools()},
    }


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write a configuration to `path`, its directory included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_toml(config), encoding="utf-8")


def to_toml(config: Mapping[str, Any]) -> str:
    """Return a configuration as TOML: a table for each part, a table for each tool, inline tables below."""
    lines: list[str] = []
    for name, part in config.items():
        if name != "tools":
            lines += _table(f"[{name}]", part)
    for tool, settings in config["tools"].items():
        lines += _table(f"[tools.{json.dumps(tool)}]", settings)
    return "\n".join(lines)


def _method_tool(schema: ToolSchema, attempt_timeout_s: float) -> dict[str, Any]:
    effect = effect_of(schema.api, schema.method)
    settings: dict[str, Any] = {
        "kind": "python",
        "target": target_of(schema.api, schema.method),
        "description": schema.description,
        "effect": effect,
        "idempotent": effect == "safe",
        "timeout": attempt_timeout_s,
        "concurrency": CONCURRENCY,
        "phases": schema.api.phases,
        "retry": _RETRY,
        "breaker": _BREAKER,
        "input_schema": schema.input_schema,
    }
    if schema.api.reconcile and effect != "safe":
        settings["reconcile"] = RECONCILE_TOOL
    return settings


def _adapter_tools() -> dict[str, Any]:
    return {
        RECONCILE_TOOL: _adapter_tool(
            "reconcile",
            "Tells the service what became of a call.",
            {"tool": _STRING, "call_id": _STRING, "downstream_key": _STRING},
        ),
        EFFECT_TOOL: _adapter_tool(
            "effect", "Tells a person what became of a call, by its idempotency key.", {"key": _STRING}
        ),
        STATE_TOOL: _adapter_tool("state", "The whole state of a conversation.", {CONVERSATION: _STRING}),
        STATE_DIGEST_TOOL: _adapter_tool(
            "state_digest",
            "The digest of a conversation's state, and how often each of its calls took effect.",
            {CONVERSATION: _STRING},
        ),
        FAULTS_TOOL: _adapter_tool(
            "set_faults",
            "Chooses the faults that calls meet from now on; null switches them off.",
            {"seed": {"type": ["integer", "null"]}},
            effect="final",
        ),
    }


def _adapter_tool(
    function: str, description: str, properties: dict[str, Any], *, effect: str = "safe"
) -> dict[str, Any]:
    return {
        "kind": "python",
        "target": f"conversations.apis:{function}",
        "description": description,
        "effect": effect,
        "idempotent": True,
        "timeout": _ADAPTER_TIMEOUT_S,
        "concurrency": CONCURRENCY,
        "input_schema": {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    }


def _table(header: str, settings: Mapping[str, Any]) -> list[str]:
    return [header, *(f"{_key(name)} = {_value(value)}" for name, value in settings.items()), ""]


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        members = ", ".join(f"{_key(name)} = {_value(item)}" for name, item in value.items())
        return f"{{ {members} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    return json.dumps(value)  # strings, numbers and booleans are written alike in both
