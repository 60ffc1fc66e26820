"""Python client for Lineside, the control point that runs tool calls.

    with lineside.Client() as client:
        answer = client.dispatch("weather", {"city": "Bern"}, idempotency_key="turn-7")

`AsyncClient` is the same for asyncio. Names load when they are first used, so that `import lineside.v1` (the
generated stubs) loads neither the client nor gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lineside.aio import AsyncClient
    from lineside.answer import Answer, BatchResult
    from lineside.call import Call
    from lineside.client import Client
    from lineside.errors import (
        BadOutput,
        BudgetExceeded,
        CallTimeout,
        Cancelled,
        CircuitOpen,
        Conflict,
        ConnectionLost,
        DispatchError,
        InternalError,
        KeyReused,
        LeaseLost,
        LinesideError,
        NotFound,
        OutcomeUnknown,
        Overloaded,
        PermissionDenied,
        QuotaExceeded,
        SchemaError,
        StepDiverged,
        TransientFailure,
        Unauthenticated,
        Unavailable,
        Unimplemented,
        Violation,
    )
    from lineside.keys import step_key
    from lineside.record import AttemptRecord, CallRecord, Decision
    from lineside.tool import Tool
    from lineside.vocabulary import (
        BreakerState,
        CallState,
        Effect,
        ErrorKind,
        Idempotency,
        Next,
        Outcome,
        SettledBy,
        Source,
        ToolKind,
    )

__version__ = "0.1.0"

_HOMES = {
    "aio": ("AsyncClient",),
    "answer": ("Answer", "BatchResult"),
    "call": ("Call",),
    "client": ("Client",),
    "errors": (
        "BadOutput",
        "BudgetExceeded",
        "CallTimeout",
        "Cancelled",
        "CircuitOpen",
        "Conflict",
        "ConnectionLost",
        "DispatchError",
        "InternalError",
        "KeyReused",
        "LeaseLost",
        "LinesideError",
        "NotFound",
        "OutcomeUnknown",
        "Overloaded",
        "PermissionDenied",
        "QuotaExceeded",
        "SchemaError",
        "StepDiverged",
        "TransientFailure",
        "Unauthenticated",
        "Unavailable",
        "Unimplemented",
        "Violation",
    ),
    "keys": ("step_key",),
    "record": ("AttemptRecord", "CallRecord", "Decision"),
    "tool": ("Tool",),
    "vocabulary": (
        "BreakerState",
        "CallState",
        "Effect",
        "ErrorKind",
        "Idempotency",
        "Next",
        "Outcome",
        "SettledBy",
        "Source",
        "ToolKind",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "AsyncClient",
    "AttemptRecord",
    "BadOutput",
    "BatchResult",
    "BreakerState",
    "BudgetExceeded",
    "Call",
    "CallRecord",
    "CallState",
    "CallTimeout",
    "Cancelled",
    "CircuitOpen",
    "Client",
    "Conflict",
    "ConnectionLost",
    "Decision",
    "DispatchError",
    "Effect",
    "ErrorKind",
    "Idempotency",
    "InternalError",
    "KeyReused",
    "LeaseLost",
    "LinesideError",
    "Next",
    "NotFound",
    "Outcome",
    "OutcomeUnknown",
    "Overloaded",
    "PermissionDenied",
    "QuotaExceeded",
    "SchemaError",
    "SettledBy",
    "Source",
    "StepDiverged",
    "Tool",
    "ToolKind",
    "TransientFailure",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Violation",
    "__version__",
    "step_key",
]


def __getattr__(name: str) -> object:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
