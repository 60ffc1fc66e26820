"""A call's record as a person reads it: attempts, what was decided after each, how it was settled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from lineside.record import AttemptRecord, CallRecord, Decision

_INDENT = 12


def local(moment: datetime) -> str:
    """A time of day on this machine's clock; which one is said once, by `zone`."""
    return moment.astimezone().strftime("%m-%d %H:%M:%S")


def zone() -> str:
    """The name of this machine's time zone."""
    return datetime.now().astimezone().tzname() or "local"


def story(record: CallRecord) -> list[str]:
    """The record in lines: a head, a tree of attempts and decisions, then the result or what to do."""
    lines = [f"{record.tool}  {record.call_id}  {record.state or 'state not known here'}"]
    branches = _branches(record)
    for position, (branch, *twigs) in enumerate(branches):
        is_last = position == len(branches) - 1
        lines.append(f"{'└─' if is_last else '├─'} {branch}")
        lines += [f"{'  ' if is_last else '│ '} └─ {twig}" for twig in twigs]
    return lines + [f"{name:<{_INDENT}}{value}" for name, value in _facts(record)]


def _branches(record: CallRecord) -> list[list[str]]:
    branches = [[_attempt(attempt)] for attempt in record.attempt_records]
    place = {attempt.number: index for index, attempt in enumerate(record.attempt_records)}
    for decision in record.decisions:
        # A decision about an attempt names it by its number; any other stands for itself.
        index = place.get(int(decision.numbers.get("attempts", 0)))
        if index is None:
            branches.append([_decision(decision)])
        else:
            branches[index].append(_decision(decision))
    if record.settled_by is not None:
        when = f"  {local(record.settled_time)}" if record.settled_time else ""
        why = f": {record.settle_reason}" if record.settle_reason else ""
        branches.append([f"settled by {record.settled_by.replace('_', ' ')}{when}{why}"])
    return branches


def _attempt(attempt: AttemptRecord) -> str:
    began = f"  {local(attempt.start_time)}" if attempt.start_time else ""
    if attempt.duration_s is None:
        return f"attempt {attempt.number}{began}, not ended"
    words = (attempt.kind, attempt.outcome) if attempt.kind else ("answered",)
    ended = ", ".join(word for word in words if word).replace("_", " ")
    return f"attempt {attempt.number}{began}, took {attempt.duration_s * 1e3:.0f} ms: {ended}"


def _decision(decision: Decision) -> str:
    numbers = (f"{name}={value:.4g}" for name, value in decision.numbers.items() if name != "attempts")
    return f"{decision.choice}: {decision.reason}  {'  '.join(numbers)}".rstrip()


def _facts(record: CallRecord) -> Iterator[tuple[str, str]]:
    if record.idempotency_key is not None:
        yield "key", record.idempotency_key
    if record.start_time is not None:
        yield "started", f"{local(record.start_time)} {zone()}"
    if record.expire_time is not None:
        yield "kept until", f"{local(record.expire_time)} {zone()}"
    if record.attempt_in_flight:
        yield "running", "an attempt runs at this moment"
    if record.error is not None:
        yield "error", str(record.error)
    if record.has_result:
        said = "  (the tool said no)" if record.tool_error else ""
        yield "result", json.dumps(record.result, ensure_ascii=False) + said
