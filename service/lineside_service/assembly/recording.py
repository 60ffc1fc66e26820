"""Values in spans, for operators who switched `telemetry.record_arguments` on."""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import Span

from lineside_service.core.jsontext import encode_result
from lineside_service.engine.history import AttemptRecord
from lineside_service.engine.telemetry import Attempted, Telemetry

_LIMIT: Final = 8 * 1024
"""Bytes of a value that a span keeps; collectors cut or refuse what is much larger."""
_WIRE_LIMIT: Final = 16 * 1024 * 1024


class RecordingTelemetry(Telemetry):
    """Puts the arguments and the result of an attempt, cut, on its span; names from OpenTelemetry's GenAI."""

    def attempt_started(self, work: Attempted, parent: object, record: AttemptRecord) -> Span | None:
        """Start the span with the arguments on it."""
        span = super().attempt_started(work, parent, record)
        if span is not None and span.is_recording():
            text = encode_result(dict(work.arguments), _WIRE_LIMIT)
            span.set_attribute("gen_ai.tool.call.arguments", _cut(text))
        return span

    def attempt_ended(self, work: Attempted, span: Span | None, record: AttemptRecord) -> None:
        """End it with the result on it."""
        if isinstance(span, Span) and record.end is not None and record.end.result is not None:
            span.set_attribute("gen_ai.tool.call.result", _cut(record.end.result))
        super().attempt_ended(work, span, record)


def _cut(text: bytes) -> str:
    if len(text) <= _LIMIT:
        return text.decode()
    return text[:_LIMIT].decode(errors="ignore") + "…"
