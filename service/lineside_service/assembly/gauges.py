"""What the store, the log and the loop count, as instruments: plain numbers, read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from lineside_service.assembly.span_queue import SpanLoad
from lineside_service.ports import StoreLoad


@dataclass(slots=True)
class LoopLateness:
    """How late a timer of the loop came, added up since start (seconds): time that somebody held the loop."""

    late_s: float = 0.0


def observe_service(
    meter: Meter, load: Callable[[], StoreLoad], events: Mapping[str, int], lateness: LoopLateness
) -> None:
    """Register them. load: what the store holds and has written; events: watched log lines, by event."""
    for name, unit, description, read in (
        ("dispatch.store.writes", "{write}", "Rows and jobs committed", lambda: load().writes),
        ("dispatch.store.commits", "{commit}", "Transactions of the store", lambda: load().commits),
        ("dispatch.store.commit.time", "s", "Time spent in them", lambda: load().commit_s),
        ("dispatch.loop.late", "s", "Time by which timers came late", lambda: lateness.late_s),
    ):
        meter.create_observable_counter(name, [_reader(read)], unit=unit, description=description)
    for name, description, held in (
        ("dispatch.store.tenant.bytes", "Stored for the fullest tenant", lambda: load().fullest_tenant_bytes),
        ("dispatch.store.tenant.limit", "Bound of each tenant", lambda: load().tenant_bytes_limit),
    ):
        meter.create_observable_gauge(name, [_reader(held)], unit="By", description=description)

    def seen(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {"event": event}) for event, count in events.items()]

    meter.create_observable_counter(
        "dispatch.events", [seen], unit="{event}", description="Failures of the service's own, as logged"
    )


def observe_spans(meter: Meter, load: Callable[[], SpanLoad]) -> None:
    """Register what becomes of spans on their way to a collector."""

    def lost(_: CallbackOptions) -> Iterable[Observation]:
        now = load()
        return [
            Observation(now.dropped, {"reason": "queue_full"}),
            Observation(now.refused, {"reason": "not_taken"}),
        ]

    meter.create_observable_counter(
        "dispatch.spans.lost", [lost], unit="{span}", description="Spans that no collector has"
    )
    meter.create_observable_gauge(
        "dispatch.spans.queued",
        [_reader(lambda: load().queued)],
        unit="{span}",
        description="Spans that wait to be sent",
    )


def _reader(read: Callable[[], float]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(read())]
