"""From a tool's config to its spec: canonical schemas and the hash of what a call of it means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lineside_service.config import ToolConfig
from lineside_service.core.tool import ToolKind, ToolSpec

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def tool_spec(name: str, tool: ToolConfig, input_schema: Mapping[str, Any]) -> ToolSpec:
    """The spec of a configured tool. input_schema: the config's own, or what the type hints gave."""
    given = canonical(input_schema)
    answered = canonical(tool.output_schema) if tool.output_schema is not None else None
    kind = ToolKind(tool.kind)
    return ToolSpec(
        name=name,
        kind=kind,
        description=tool.description,
        input_schema=given,
        output_schema=answered,
        effect=tool.effect,
        idempotency=tool.idempotency,
        key_ttl_s=tool.key_ttl,
        key_required=tool.key == "required",
        tool_class=tool.tool_class,
        timeout_s=tool.timeout,
        concurrency=tool.concurrency,
        phases=tool.phases,
        retry=tool.retry.rules(),
        breaker=tool.breaker.rules(),
        tenants=tool.tenants,
        reconcile=tool.reconcile,
        result_limit=tool.result_limit,
        keep_done_s=tool.keep_done,
        enabled=tool.enabled,
        contract_hash=contract_hash(
            name,
            kind.value,
            given.decode(),
            answered.decode() if answered is not None else None,
            tool.effect.value,
            tool.idempotency.value,
        ),
    )


def canonical(schema: Mapping[str, Any]) -> bytes:
    """A schema as JSON text that does not depend on the order of its keys or on white space."""
    return json.dumps(
        schema, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def contract_hash(*parts: str | None) -> str:
    """SHA-256 (hex) over name, kind, schemas, effect, idempotency: all that changes what a call means.

    The parts are one JSON array, so none can run into the next.
    """
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()
