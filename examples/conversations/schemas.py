"""The published function descriptions as JSON Schema 2020-12, one argument schema for each tool."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from conversations.catalogue import APIS, Api, tool_name
from conversations.patches import schema_patches

__all__ = ["CONVERSATION", "ToolSchema", "tool_schemas"]

CONVERSATION = "conversation"
"""The argument that every tool has besides its own: the conversation whose state the call works on."""

# The published type names that JSON Schema does not know; None leaves the type open.
_TYPES: Mapping[str, str | None] = {"dict": "object", "float": "number", "tuple": "array", "any": None}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, kw_only=True)
class ToolSchema:
    """What a caller sees of one tool: its description and the schema of its arguments."""

    api: Api
    method: str
    description: str
    input_schema: dict[str, Any]

    @property
    def tool(self) -> str:
        """The tool's name."""
        return tool_name(self.api, self.method)


def tool_schemas() -> dict[str, ToolSchema]:
    """Read the schemas of all 128 methods, by tool name."""
    return {schema.tool: schema for api in APIS for schema in _schemas_of(api)}


def _schemas_of(api: Api) -> Iterator[ToolSchema]:
    path = importlib.resources.files("bfcl_eval") / "data" / "multi_turn_func_doc" / api.doc_file
    for line in path.read_text(encoding="utf-8").splitlines():
        published = json.loads(line)
        method = published["name"]
        yield ToolSchema(
            api=api,
            method=method,
            description=published["description"],
            input_schema=_arguments_schema(published["parameters"], tool_name(api, method)),
        )


def _arguments_schema(parameters: dict[str, Any], tool: str) -> dict[str, Any]:
    schema = _convert(parameters)
    properties = schema.setdefault("properties", {})
    for where, members in schema_patches().items():
        owner, _, name = where.rpartition(".")
        if owner == tool:
            properties[name].update(members)
    return {
        "$schema": _DIALECT,
        "type": "object",
        "properties": {
            CONVERSATION: {
                "type": "string",
                "description": "The conversation to act in, e.g. multi_turn_base_17.",
            },
            **properties,
        },
        "required": [CONVERSATION, *schema.get("required", ())],
        "additionalProperties": False,
    }


def _convert(published: dict[str, Any]) -> dict[str, Any]:
    schema = dict(published)
    kind = schema.pop("type", None)
    kind = _TYPES.get(kind, kind) if isinstance(kind, str) else kind
    if kind is not None:
        schema = {"type": kind, **schema}
    if schema.get("default") == "None":
        del schema["default"]
    if "properties" in schema:
        schema["properties"] = {name: _convert(part) for name, part in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        schema["items"] = _convert(schema["items"])
    return schema
