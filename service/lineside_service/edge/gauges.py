"""The edge's plain integers as instruments: read when somebody asks, never counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Meter, Observation

if TYPE_CHECKING:
    from lineside_service.edge.server import EdgeServer


def observe_edge(meter: Meter, server: EdgeServer) -> None:
    """Register the gauges of a server."""
    for name, unit, description, read in (
        ("dispatch.rpc.active", "{rpc}", "RPCs being served", lambda: server.runner.active),
        (
            "dispatch.batch.streams",
            "{stream}",
            "Batch streams that are open",
            lambda: server.batch.open_streams,
        ),
        ("dispatch.batch.items", "{item}", "Batch items in flight", lambda: server.batch.items_in_flight),
    ):
        meter.create_observable_gauge(name, [_reader(read)], unit=unit, description=description)


def _reader(read: Callable[[], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(read())]
