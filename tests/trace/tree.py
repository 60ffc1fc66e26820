"""Traces as text, for a terminal: one span a line, with what tells it from its neighbours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.trace.backend import Span

_TELLING = {
    "rpc.response.status_code": "status",
    "dispatch.kind": "kind",
    "dispatch.attempt.number": "attempt",
    "dispatch.backoff.ms": "after_ms",
    "dispatch.retry.reason": "because",
    "dispatch.circuit.state": "breaker",
    "dispatch.outcome": "outcome",
    "dispatch.item.id": "item",
}
"""Attributes that are shown, and what as."""
_USUAL = (("after_ms", 0), ("breaker", "closed"))
"""Not shown."""


def drawn(spans: Sequence[Span]) -> Iterator[str]:
    """Every trace, in the order of their beginnings. An error is marked `!`, a link `~>` with its trace."""
    below = defaultdict(list)
    for span in sorted(spans, key=lambda one: one.start_us):
        below[span.trace_id, span.parent].append(span)
    for (trace_id, parent), roots in list(below.items()):
        if parent is None:
            yield f"trace {trace_id}"
            for root in roots:
                yield from _lines(root, below, "", "", root.start_us)
            yield ""


def _lines(
    span: Span, below: dict[tuple[str, str | None], list[Span]], before: str, indent: str, began_us: int
) -> Iterator[str]:
    telling = {shown: span.tags[key] for key, shown in _TELLING.items() if key in span.tags}
    said = " ".join(f"{key}={value}" for key, value in telling.items() if (key, value) not in _USUAL)
    links = "".join(f" ~> {trace_id[:8]}" for trace_id, _ in span.links)
    at, took = (span.start_us - began_us) / 1000, span.duration_us / 1000
    mark = "! " if span.is_error else ""
    name = f"{before}{mark}{span.name} ({span.service}, {span.kind}){links}"
    yield f"{at:7.1f} {took:7.1f} ms  {name:<70} {said}".rstrip()
    children = below.get((span.trace_id, span.span_id), [])
    for number, child in enumerate(children):
        is_last = number == len(children) - 1
        branch, further = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield from _lines(child, below, indent + branch, indent + further, began_us)
