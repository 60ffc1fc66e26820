"""What each turn of the story must leave in Jaeger, as data: one tree of spans for each trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SERVICE, STORY, GO = "lineside", "story", "go-caller"
"""Who sends spans: service.name."""
STREAM: Final = "a batch of three callers' items"
UNSAMPLED_RPCS, UNSAMPLED_ATTEMPTS = 1, 1
"""Calls of the story whose caller had decided not to be recorded."""


@dataclass(frozen=True, slots=True)
class Node:
    """A span and those below it, in the order of their starts.

    tags: those that must have these values. absent: those that must not be there. is_linked_to_stream: it has
    a link, to the batch stream's span. has_any_order: those below may have begun in any order.
    """

    name: str
    kind: str = "internal"
    service: str = SERVICE
    is_error: bool = False
    tags: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    below: tuple[Node, ...] = ()
    is_linked_to_stream: bool = False
    has_any_order: bool = False


def _root(name: str, *below: Node, service: str = STORY, has_any_order: bool = False) -> Node:
    return Node(name, "client", service, below=below, has_any_order=has_any_order)


def _rpc(
    status: str = "OK",
    *below: Node,
    kind: str = "",
    is_error: bool = False,
    method: str = "Dispatch",
    source: str = "",
) -> Node:
    service = "DispatchService" if method.startswith("Dispatch") else "CallService"
    name = f"lineside.v1.{service}/{method}"
    tags: dict[str, Any] = {
        "rpc.system.name": "grpc",
        "rpc.method": name,
        "rpc.response.status_code": status,
        "network.peer.address": "127.0.0.1",
    }
    tags |= {"error.type": status} if is_error else {}
    tags |= {"dispatch.kind": kind} if kind else {}
    tags |= {"dispatch.source": source} if source else {}
    absent: tuple[str, ...] = () if is_error else ("error.type",)
    absent += () if kind else ("dispatch.kind",)
    return Node(name, "server", is_error=is_error, tags=tags, absent=absent, below=below)


def _attempt(tool: str, number: int = 1, *, kind: str = "", outcome: str = "done", error: str = "") -> Node:
    tags: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.type": "function",
        "dispatch.attempt.number": number,
        "dispatch.circuit.state": "closed",
        "dispatch.source": "executed",
        "dispatch.outcome": outcome,
    }
    tags |= {"dispatch.kind": kind, "error.type": kind} if kind else {}
    tags |= {"error.type": error} if error else {}
    tags |= {"dispatch.retry.reason": "BACKOFF"} if number > 1 else {}
    absent: tuple[str, ...] = () if kind else ("dispatch.kind",)
    absent += () if kind or error else ("error.type",)
    absent += () if number > 1 else ("dispatch.retry.reason",)
    return Node(f"execute_tool {tool}", is_error=bool(kind), tags=tags, absent=absent)


def _three_attempts() -> tuple[Node, ...]:
    failed = [_attempt("forecast", number, kind="transient", outcome="not_run") for number in (1, 2)]
    return (*failed, _attempt("forecast", 3))


def _item(place: str, tool: str, *below: Node, is_own: bool = True, status: str = "") -> Node:
    tags: dict[str, Any] = {"dispatch.item.id": place}
    tags |= {"gen_ai.tool.name": tool} if tool else {}
    tags |= {"rpc.response.status_code": status, "dispatch.kind": "not_found"} if status else {}
    absent = ("error.type",) if status else ("error.type", "dispatch.kind", "rpc.response.status_code")
    name = f"dispatch {tool}" if tool else "dispatch"
    return Node(name, tags=tags, absent=absent, below=below, is_linked_to_stream=is_own)


TRACES: Final = {
    root.name: root
    for root in (
        _root("three attempts", _rpc("OK", *_three_attempts())),
        _root("one books", _rpc("OK", _attempt("book"), source="executed")),
        _root("another joins", _rpc(source="joined")),
        _root("a third is told again", _rpc(source="replayed")),
        _root("a tool says no", _rpc("OK", _attempt("refuses", error="tool_error"))),
        _root("a caller's mistake", _rpc("INVALID_ARGUMENT", kind="schema")),
        _root(
            "a breaker opens",
            *(
                _rpc(
                    "UNAVAILABLE",
                    _attempt("down", kind="transient", outcome="not_run"),
                    kind="transient",
                    is_error=True,
                )
                for _ in range(2)
            ),
            _rpc("UNAVAILABLE", kind="circuit_open", is_error=True),
        ),
        _root(
            "nobody knows, until somebody says",
            _rpc(
                "DEADLINE_EXCEEDED",
                _attempt("charge", kind="timeout", outcome="unknown"),
                kind="timeout",
                is_error=True,
            ),
            _rpc(method="GetCall"),
            _rpc(method="SettleCall"),
            _rpc(),
        ),
        _root(
            "the batch's first caller",
            _item("0", "lookup", _attempt("lookup")),
            _item("1", "forecast", *_three_attempts()),
            has_any_order=True,
        ),
        _root(
            "the batch's second caller",
            _item("2", "lookup", _attempt("lookup")),
            _item("3", "", status="NOT_FOUND"),
            has_any_order=True,
        ),
        _root(
            STREAM,
            _rpc("OK", _item("4", "lookup", _attempt("lookup"), is_own=False), method="DispatchBatch"),
        ),
        _root("go asks for forecast", _rpc("OK", *_three_attempts()), service=GO),
        _root("in flight at SIGTERM", _rpc("OK", _attempt("book"))),
    )
}
"""By the name of the root."""


def size(node: Node) -> int:
    """How many spans a tree has."""
    return 1 + sum(size(below) for below in node.below)
