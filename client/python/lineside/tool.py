"""A tool as the service tells about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lineside.v1 import tools_pb2
from lineside.vocabulary import BreakerState, Effect, Idempotency, ToolKind
from lineside.wire import seconds_of, word


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that the caller's tenant may call.

    input_schema, output_schema: JSON Schema 2020-12; None where it was not asked for (`list_tools` without
    full) or, for the output, where the result is not checked. timeout_s: limit of one attempt. key_ttl_s:
    how long the upstream remembers a key, only with idempotency BY_KEY. breaker_state: None = the tool has
    no breaker. contract_hash: changes exactly when names, schemas, effect or idempotency do. in_flight,
    waiting, abandoned: counts at the moment of reading. message: all of it as it came, with the retry and
    breaker policies.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | bool | None
    kind: ToolKind | None
    tool_class: str
    effect: Effect | None
    idempotency: Idempotency | None
    key_ttl_s: float | None
    key_required: bool
    timeout_s: float | None
    concurrency: int
    breaker_state: BreakerState | None
    declares_phases: bool
    contract_hash: str
    in_flight: int
    waiting: int
    abandoned: int
    reconcile: str
    message: tools_pb2.Tool = field(repr=False)


def tool_of(wire: tools_pb2.Tool) -> Tool:
    """The tool that a message tells."""
    return Tool(
        name=wire.name,
        description=wire.description,
        input_schema=json.loads(wire.input_schema_json) if wire.input_schema_json else None,
        output_schema=json.loads(wire.output_schema_json) if wire.output_schema_json else None,
        kind=word(ToolKind, tools_pb2.ToolKind.Name, wire.kind, "TOOL_KIND_"),
        tool_class=wire.tool_class,
        effect=word(Effect, tools_pb2.Effect.Name, wire.effect, "EFFECT_"),
        idempotency=word(Idempotency, tools_pb2.Idempotency.Name, wire.idempotency, "IDEMPOTENCY_"),
        key_ttl_s=seconds_of(wire, "key_ttl"),
        key_required=wire.key_required,
        timeout_s=seconds_of(wire, "timeout"),
        concurrency=wire.concurrency,
        breaker_state=word(BreakerState, tools_pb2.BreakerState.Name, wire.breaker_state, "BREAKER_STATE_"),
        declares_phases=wire.declares_phases,
        contract_hash=wire.contract_hash,
        in_flight=wire.in_flight,
        waiting=wire.waiting,
        abandoned=wire.abandoned,
        reconcile=wire.reconcile,
        message=wire,
    )


def page_request(*, full: bool, token: str) -> tools_pb2.ListToolsRequest:
    """The question for a page of tools."""
    view = tools_pb2.TOOL_VIEW_FULL if full else tools_pb2.TOOL_VIEW_BASIC
    return tools_pb2.ListToolsRequest(page_token=token, view=view)
