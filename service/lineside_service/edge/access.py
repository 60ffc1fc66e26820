"""Which scope each method needs, and how the edge treats it: one table, total over the contract's methods.

A method that is missing here cannot be called at all.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


class Scope(enum.Enum):
    """What a credential may be used for. The value is the token in the config."""

    CALL = "call"
    READ = "read"
    SETTLE = "settle"
    SUBMIT = "submit"
    WORK = "work"
    OPERATE = "operate"


ALL_SCOPES: Final = frozenset(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRule:
    """How one method is treated.

    scopes: any one of them suffices. is_open: nobody has to say who they are. is_work: counts against the
    bound on concurrent RPCs (control calls must get through when the service is full). knows_drain: refuses
    by itself while draining, because it knows better what may be repeated. about_call: its errors state the
    outcome of a call.
    """

    scopes: frozenset[Scope]
    is_open: bool = False
    is_work: bool = False
    knows_drain: bool = False
    about_call: bool = False


_CALL = frozenset({Scope.CALL})
_LOOK = frozenset({Scope.CALL, Scope.READ})
_READ = frozenset({Scope.READ})
_SUBMIT = frozenset({Scope.SUBMIT})
_WORK = frozenset({Scope.WORK})
_OPERATE = frozenset({Scope.OPERATE})

_SERVICES: Final[Mapping[str, Mapping[str, MethodRule]]] = {
    "DispatchService": {
        "Dispatch": MethodRule(scopes=_CALL, is_work=True, knows_drain=True, about_call=True),
        "DispatchBatch": MethodRule(scopes=_CALL, is_work=True, knows_drain=True, about_call=True),
    },
    "ToolService": {
        "ListTools": MethodRule(scopes=_LOOK),
        "GetTool": MethodRule(scopes=_LOOK),
    },
    "CallService": {
        "GetCall": MethodRule(scopes=_LOOK),
        "ListCalls": MethodRule(scopes=_READ),
        "SettleCall": MethodRule(scopes=frozenset({Scope.SETTLE})),
    },
    "RunService": {
        "SubmitRun": MethodRule(scopes=_SUBMIT),
        "SubmitRuns": MethodRule(scopes=_SUBMIT),
        "CancelRun": MethodRule(scopes=_SUBMIT),
        "HoldRun": MethodRule(scopes=_SUBMIT),
        "ReleaseRun": MethodRule(scopes=_SUBMIT),
        "DeleteRun": MethodRule(scopes=_SUBMIT),
        "GetRun": MethodRule(scopes=_READ),
        "ListRuns": MethodRule(scopes=_READ),
        "WatchRun": MethodRule(scopes=_READ),
        "ExplainRun": MethodRule(scopes=_READ),
        "GetTrajectory": MethodRule(scopes=_READ),
    },
    "WorkService": {
        "AcquireRun": MethodRule(scopes=_WORK),
        "AcquireRuns": MethodRule(scopes=_WORK),
        "Attend": MethodRule(scopes=_WORK),
        "RenewLease": MethodRule(scopes=_WORK),
        "FinishRun": MethodRule(scopes=_WORK),
        "FinishRuns": MethodRule(scopes=_WORK),
        "StartRun": MethodRule(scopes=_WORK),
    },
    "QuotaService": {
        "GetQuota": MethodRule(scopes=_READ),
        "ListQuotas": MethodRule(scopes=_READ),
        "GetUsage": MethodRule(scopes=_READ),
        "GetUpstreamUsage": MethodRule(scopes=_READ),
        "SimulatePolicy": MethodRule(scopes=_READ),
        "UpdateQuota": MethodRule(scopes=_OPERATE),
    },
}

METHODS: Final[Mapping[str, MethodRule]] = MappingProxyType(
    {
        f"lineside.v1.{service}/{method}": rule
        for service, methods in _SERVICES.items()
        for method, rule in methods.items()
    }
)
"""Full method name, without a slash first -> its rule."""
