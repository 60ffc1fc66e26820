"""Core's enums and the contract's, one table each, total over core's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lineside.v1 import calls_pb2, errors_pb2, tools_pb2
from lineside_service.core.breaker import BreakerState
from lineside_service.core.errors import ErrorKind, Next, Outcome, Source
from lineside_service.core.ledger import RowState, SettledBy
from lineside_service.core.tool import Effect, Idempotency, ToolKind

KINDS: Final[Mapping[ErrorKind, errors_pb2.ErrorKind.ValueType]] = MappingProxyType(
    {kind: errors_pb2.ErrorKind.Value(f"ERROR_KIND_{kind.name}") for kind in ErrorKind}
)
OUTCOMES: Final[Mapping[Outcome, errors_pb2.Outcome.ValueType]] = MappingProxyType(
    {outcome: errors_pb2.Outcome.Value(f"OUTCOME_{outcome.name}") for outcome in Outcome}
)
NEXTS: Final[Mapping[Next, errors_pb2.Next.ValueType]] = MappingProxyType(
    {advice: errors_pb2.Next.Value(f"NEXT_{advice.name}") for advice in Next}
)
SOURCES: Final[Mapping[Source, errors_pb2.Source.ValueType]] = MappingProxyType(
    {source: errors_pb2.Source.Value(f"SOURCE_{source.name}") for source in Source}
)
STATES: Final[Mapping[RowState, calls_pb2.Call.State.ValueType]] = MappingProxyType(
    {state: calls_pb2.Call.State.Value(f"STATE_{state.name}") for state in RowState}
)
SETTLERS: Final[Mapping[SettledBy, calls_pb2.SettledBy.ValueType]] = MappingProxyType(
    {by: calls_pb2.SettledBy.Value(f"SETTLED_BY_{by.name}") for by in SettledBy}
)
TOOL_KINDS: Final[Mapping[ToolKind, tools_pb2.ToolKind.ValueType]] = MappingProxyType(
    {kind: tools_pb2.ToolKind.Value(f"TOOL_KIND_{kind.name}") for kind in ToolKind}
)
EFFECTS: Final[Mapping[Effect, tools_pb2.Effect.ValueType]] = MappingProxyType(
    {effect: tools_pb2.Effect.Value(f"EFFECT_{effect.name}") for effect in Effect}
)
IDEMPOTENCIES: Final[Mapping[Idempotency, tools_pb2.Idempotency.ValueType]] = MappingProxyType(
    {
        Idempotency.NO: tools_pb2.IDEMPOTENCY_NOT_IDEMPOTENT,
        Idempotency.YES: tools_pb2.IDEMPOTENCY_IDEMPOTENT,
        Idempotency.BY_KEY: tools_pb2.IDEMPOTENCY_BY_KEY,
    }
)
BREAKERS: Final[Mapping[BreakerState, tools_pb2.BreakerState.ValueType]] = MappingProxyType(
    {state: tools_pb2.BreakerState.Value(f"BREAKER_STATE_{state.name}") for state in BreakerState}
)
STATE_OF: Final[Mapping[int, RowState]] = MappingProxyType({wire: state for state, wire in STATES.items()})
