"""Spans on their way to a collector: queued, sent by a thread of their own, counted if they never arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


@dataclass(frozen=True, slots=True)
class SpanLoad:
    """Spans that wait to be sent; that found the queue full; that the collector did not take."""

    queued: int = 0
    dropped: int = 0
    refused: int = 0

    def __add__(self, other: SpanLoad) -> SpanLoad:
        """Both together."""
        return SpanLoad(
            self.queued + other.queued, self.dropped + other.dropped, self.refused + other.refused
        )


class _Delivery(SpanExporter):
    """Passes spans on and counts those that arrived; can be told to give up at once.

    taken: what came in; refused: what came in and did not arrive.
    """

    def __init__(self, behind: SpanExporter) -> None:
        self._behind = behind
        self._given_up = False
        self.taken = self.delivered = self.refused = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            if not self._given_up:
                result = self._behind.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self.delivered += len(spans)
            else:
                self.refused += len(spans)
        return result

    def shutdown(self) -> None:
        if not self._given_up:
            self._given_up = True
            self._behind.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._behind.force_flush(timeout_millis)


class SpanQueue(BatchSpanProcessor):
    """The SDK's bounded queue and its thread, and the count of what went in and did not arrive."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._delivery = _Delivery(exporter)
        self._ended = self._dropped = 0
        super().__init__(self._delivery)
        self.bound: int = self._batch_processor._max_queue_size  # noqa: SLF001 - told nowhere else

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span; over the bound it is dropped here.

        The SDK would drop the oldest instead, and write a line of log for each.
        """
        if span.context is None or not span.context.trace_flags.sampled:
            return
        self._ended += 1
        if self._ended - self._dropped - self._delivery.taken > self.bound:
            self._dropped += 1
        else:
            super().on_end(span)

    def give_up(self) -> None:
        """Break off what the exporter is waiting for."""
        self._delivery.shutdown()

    @property
    def load(self) -> SpanLoad:
        """How it is just now."""
        taken = self._delivery.taken
        return SpanLoad(self._ended - self._dropped - taken, self._dropped, self._delivery.refused)

    @property
    def undelivered(self) -> int:
        """Spans that have not arrived; after shutdown, those that are lost."""
        return self._ended - self._delivery.delivered
