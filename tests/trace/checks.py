"""What must hold of the spans that Jaeger has, whatever the story; and of each trace, what the story says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import permutations

from tests.trace.backend import Span
from tests.trace.expected import GO, SERVICE, STREAM, TRACES, UNSAMPLED_ATTEMPTS, UNSAMPLED_RPCS, Node, size
from tests.trace.story import Told

SPANS = sum(size(root) for root in TRACES.values())
_RECORDED_VALUES = ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result")


def faults(spans: Sequence[Span], told: Told) -> list[str]:
    """Every way in which Jaeger's spans are not the story's; none is what is wanted."""
    return [
        *_of_transport(spans, told),
        *_of_parents(spans),
        *_of_attempts(spans),
        *_of_traces(spans, told),
        *_across_languages(spans, told),
    ]


def _of_transport(spans: Sequence[Span], told: Told) -> Iterator[str]:
    """Nothing was lost and nothing is there that nobody began."""
    if told.exit_code or told.lost:
        yield f"the service ended with {told.exit_code} and lost {told.lost} spans"
    rpcs = sum(span.service == SERVICE and span.kind == "server" for span in spans)
    if rpcs != told.rpcs - UNSAMPLED_RPCS:
        yield f"{rpcs} SERVER spans, but the service counted {told.rpcs} RPCs, {UNSAMPLED_RPCS} unsampled"
    attempts = sum(span.name.startswith("execute_tool") for span in spans)
    if attempts != told.attempts - UNSAMPLED_ATTEMPTS:
        yield (
            f"{attempts} spans of attempts, but the service counted {told.attempts} attempts, "
            f"{UNSAMPLED_ATTEMPTS} unsampled"
        )
    if not told.unsampled or any(span.trace_id == told.unsampled for span in spans):
        yield f"the unsampled caller's trace {told.unsampled!r} was recorded"


def _of_parents(spans: Sequence[Span]) -> Iterator[str]:
    """Every parent and every link is there; who is below somebody of the service's ran within his time."""
    known = {(span.trace_id, span.span_id): span for span in spans}
    for span in spans:
        for warning in span.warnings:
            if not warning.startswith("clock skew"):  # a status reaches the caller before its span has ended
                yield f"{span.name}: Jaeger says {warning}"
        for trace_id, span_id in span.links:
            if (trace_id, span_id) not in known:
                yield f"{span.name}: links to {trace_id}/{span_id}, which is not there"
        if span.parent is None:
            if span.service == SERVICE:
                yield f"{span.name}: has no parent, but every call of the story has a caller"
            continue
        parent = known.get((span.trace_id, span.parent))
        if parent is None:
            yield f"{span.name}: its parent {span.parent} is not in trace {span.trace_id}"
        elif parent.service == SERVICE and not (
            parent.start_us <= span.start_us
            and span.start_us + span.duration_us <= parent.start_us + parent.duration_us
        ):
            yield f"{span.name}: did not run within its parent's time"


def _of_attempts(spans: Sequence[Span]) -> Iterator[str]:
    """Attempts of one call are numbered from 1, share its id, and waited before each but the first."""
    calls = defaultdict(list)
    for span in spans:
        if any(name in span.tags for name in _RECORDED_VALUES):
            yield f"{span.name}: has values of the call, which nobody switched on"
        if span.name.startswith("execute_tool"):
            calls[span.tags.get("gen_ai.tool.call.id")].append(span)
    for call_id, attempts in calls.items():
        attempts.sort(key=lambda span: span.start_us)
        numbers = [span.tags.get("dispatch.attempt.number") for span in attempts]
        pauses = [span.tags.get("dispatch.backoff.ms", -1) for span in attempts]
        if not call_id or numbers != list(range(1, len(attempts) + 1)):
            yield f"{attempts[0].name}: call {call_id} has attempts {numbers}"
        if len({(span.trace_id, span.parent) for span in attempts}) != 1:
            yield f"{attempts[0].name}: call {call_id} has attempts in several places"
        if pauses[0] != 0 or any(pause < 5 for pause in pauses[1:]):
            yield f"{attempts[0].name}: call {call_id} backed off for {pauses} ms"


def _of_traces(spans: Sequence[Span], told: Told) -> Iterator[str]:
    """Each trace has the tree that the story gives it, and there is no other."""
    below = defaultdict(list)
    for span in spans:
        below[span.trace_id, span.parent].append(span)
    stray = Counter(span.trace_id for span in spans) - Counter(
        {told.trace_ids.get(name, ""): size(root) for name, root in TRACES.items()}
    )
    for trace_id, count in stray.items():
        yield f"trace {trace_id} has {count} spans that no part of the story made"
    streams = {(span.trace_id, span.span_id) for span in spans if span.name.endswith("/DispatchBatch")}
    for name, root in TRACES.items():
        roots = below[told.trace_ids.get(name, ""), None]
        if len(roots) != 1:
            yield f"{name}: {len(roots)} roots"
        else:
            yield from _of_tree(f"{name}: ", roots[0], root, below, streams)
    if not streams <= {(told.trace_ids[STREAM], span_id) for _, span_id in streams}:
        yield "the stream's span is not in its caller's trace"


def _of_tree(
    at: str,
    span: Span,
    node: Node,
    below: dict[tuple[str, str | None], list[Span]],
    streams: set[tuple[str, str]],
) -> Iterator[str]:
    """The span is the node, and those below it are those below the node."""
    said = (span.name, span.kind, span.service, span.is_error)
    wanted = (node.name, node.kind, node.service, node.is_error)
    if said != wanted:
        yield f"{at}(name, kind, service, is an error) is {said}, not {wanted}"
    for key, value in node.tags.items():
        if span.tags.get(key) != value:
            yield f"{at}{span.name}: {key} is {span.tags.get(key)!r}, not {value!r}"
    for key in node.absent:
        if key in span.tags:
            yield f"{at}{span.name}: {key} is {span.tags[key]!r}, and should not be there"
    links = streams if node.is_linked_to_stream else set()
    if set(span.links) != links:
        yield f"{at}{span.name}: links to {span.links}, not {links}"
    found = sorted(below[span.trace_id, span.span_id], key=lambda one: one.start_us)
    if len(found) != len(node.below):
        names = [one.name for one in found], [one.name for one in node.below]
        yield f"{at}{span.name}: {names[0]} below it, not {names[1]}"
        return
    at = f"{at}{span.name} > "
    orders = permutations(found) if node.has_any_order else [found]
    tries = [
        [
            fault
            for one, expected in zip(order, node.below, strict=True)
            for fault in _of_tree(at, one, expected, below, streams)
        ]
        for order in orders
    ]
    yield from min(tries, key=len)


def _across_languages(spans: Sequence[Span], told: Told) -> Iterator[str]:
    """The Go caller's trace went on in the service, and its answer names it."""
    ours = [span for span in spans if span.trace_id == told.go["trace_id"] and span.service == SERVICE]
    if not any(span.kind == "server" and span.parent == told.go["span_id"] for span in ours):
        yield "no SERVER span below the Go caller's"
    if told.go["answer_trace_id"] != told.go["trace_id"]:
        yield f"{GO}: asked in trace {told.go['trace_id']}, answered in {told.go['answer_trace_id']}"
    attempts = {span.tags.get("gen_ai.tool.call.id") for span in ours if span.name.startswith("execute_tool")}
    if attempts != {told.go["call_id"]} or told.go["attempts"] != 3:
        yield f"{GO}: was answered {told.go}, but the attempts are of {attempts}"
