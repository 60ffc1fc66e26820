"""What the demo says to the person who runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TextIO

from conversations.gateway import Attempt, CallRecord
from conversations.tally import Tally

__all__ = ["Progress", "print_summary", "tree"]

_SOURCES = ("executed", "joined", "replayed")
_COLUMN = 34
_REDRAW_S = 0.1


class Progress:
    """One line that is redrawn on a terminal; elsewhere a line for every 200 calls."""

    def __init__(self, tally: Tally, *, calls: int, conversations: int, stream: TextIO = sys.stderr) -> None:
        self._tally = tally
        self._calls = calls
        self._conversations = conversations
        self._stream = stream
        self._shown = 0

    @property
    def interval_s(self) -> float:
        """How often to draw, in seconds."""
        return _REDRAW_S

    def draw(self, *, last: bool = False) -> None:
        """Show how far the run is."""
        done = self._tally
        line = (
            f"{done.calls:5d}/{self._calls} calls  "
            f"{done.conversations:3d}/{self._conversations} conversations  {done.retries} retries"
        )
        if self._stream.isatty():
            self._stream.write(f"\r{line}" + ("\n" if last else ""))
        elif last or self._tally.calls >= self._shown + 200:
            self._shown = self._tally.calls
            self._stream.write(f"{line}\n")
        self._stream.flush()


def print_summary(summary: dict[str, Any], record: CallRecord | None) -> None:
    """Print the figures, one call's trace, and what to try next."""
    print()
    for name, value in _rows(summary):
        print(f"  {name:<{_COLUMN}}{value}")
    if record is not None:
        print("\nOne call's trace:\n")
        for line in tree(record):
            print(f"  {line}")
    print("\nTry next:\n")
    for what, commands in _NEXT:
        print("\n".join(f"  {line}" for line in (f"# {what}", *commands)))


_NEXT = (
    (
        "the same conversations with other faults",
        ("PYTHONPATH=examples .venv/bin/python -m conversations --seed 2",),
    ),
    (
        "serve the same tools, and call one from a second terminal",
        (
            "PYTHONPATH=examples .venv/bin/lineside-service serve --config build/demo/lineside.toml",
            """.venv/bin/lineside call files.ls '{"conversation": "multi_turn_base_0"}'""",
        ),
    ),
    ("your own tools: start from the quickstart", ("make run",)),
)


def _rows(summary: dict[str, Any]) -> Iterator[tuple[str, object]]:
    yield "calls", f"{summary['calls']:,} in {summary['seconds']} s"
    for name in _SOURCES:
        yield f"  {name}", summary[name]
    yield "attempts", f"{summary['attempts']:,}, {summary['retries']} of them retries"
    yield "sent again after NOT_RUN", summary["sent_again_after_not_run"]
    yield "refusals", sum(summary["refusals"].values())
    for kind, count in summary["refusals"].items():
        yield f"  {kind}", count
    yield "unknown outcomes", f"{summary['unknown']}, {summary['left_unknown']} left unsettled"
    for by, count in summary["settled_by"].items():
        yield f"  settled by {by.lower().replace('_', ' ')}", count
    yield "p50 / p99", f"{summary['p50_ms']} ms / {summary['p99_ms']} ms"
    yield "second effects", summary["second_effects"]
    yield "answers equal to direct execution", f"{summary['answers_equal']:,}/{summary['calls']:,}"
    yield "final states equal to direct execution", f"{summary['states_equal']}/{summary['conversations']}"


def tree(record: CallRecord) -> list[str]:
    """Return a call's attempts and decisions as the lines of a tree."""
    lines = [f"{record.tool}  {record.call_id}  {record.state}"]
    children = [_attempt(attempt) for attempt in record.attempts]
    children += [_step(step.choice, step.reason, step.numbers) for step in record.steps]
    if record.settled_by:
        children.append(f"settled by {record.settled_by.lower().replace('_', ' ')}")
    for position, child in enumerate(children):
        branch = "└─" if position == len(children) - 1 else "├─"
        lines.append(f"{branch} {child}")
    return lines


def _attempt(attempt: Attempt) -> str:
    ended = attempt.kind or "answered"
    waited = f"  after a pause of {attempt.backoff_s * 1e3:.0f} ms" if attempt.backoff_s else ""
    return (
        f"attempt {attempt.number}  at {attempt.began_s * 1e3:4.0f} ms  {attempt.duration_s * 1e3:4.0f} ms  "
        f"{ended} ({attempt.outcome}){waited}"
    )


def _step(choice: str, reason: str, numbers: dict[str, float]) -> str:
    compared = "  ".join(f"{name}={value:g}" for name, value in numbers.items())
    return f"{choice}: {reason}  {compared}".rstrip()
