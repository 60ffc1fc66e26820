"""What the demo says to the person who runs it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from conversations.gateway import Attempt, CallRecord, Step
from conversations.tally import Tally

__all__ = ["NEXT", "Progress", "print_report", "tree"]

_REDRAW_S = 0.1
_BAR = 20


class Progress:
    """One line that is redrawn, on stderr; nothing at all where that is no terminal."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._is_shown = stream.isatty()

    @property
    def interval_s(self) -> float:
        """How often to draw, in seconds."""
        return _REDRAW_S

    def say(self, line: str) -> None:
        """Show a line in place of the one before; an empty one leaves nothing behind."""
        if self._is_shown:
            columns = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[K{line[: columns - 1]}")
            self._stream.flush()

    def draw(self, tally: Tally, *, calls: int, conversations: int) -> None:
        """Show how far the run is."""
        filled = _BAR * tally.calls // max(calls, 1)
        self.say(
            f"  {'━' * filled}{'╌' * (_BAR - filled)}  {tally.calls:,}/{calls:,} calls  "
            f"{tally.conversations}/{conversations} conversations  {tally.retries} retries"
        )


def print_report(summary: dict[str, Any], record: CallRecord | None, stream: TextIO = sys.stdout) -> None:
    """Print the figures, one call's trace and what to try next; in colour on a terminal only."""
    console = Console(file=stream, highlight=False, soft_wrap=True)
    console.print(Text(_headline(summary), style="bold"), "", sep="\n")
    for name, count, note in _figures(summary):
        if count:
            console.print(_row(name, f"{count:,}", Text(note, style="dim")))
    for line in _how_it_adds_up(summary):
        console.print(Text(f"  {line}", style="dim"))
    console.print()
    for name, equal, total, note in _verdicts(summary):
        verdict = Text(note, style="green" if equal == total else "bold red")
        console.print(_row(name, f"{equal:,}/{total:,}", verdict))
    if record is not None:
        console.print("", Text("One call's trace", style="bold"), "", sep="\n")
        for line in tree(record):
            console.print(Text(f"  {line}"))
    console.print("", Text("Try next", style="bold"), sep="\n")
    for number, (what, commands) in enumerate(NEXT, start=1):
        console.print("", Text(f"  {number}. {what}", style="dim"), sep="\n")
        for command in commands:
            console.print(Text(f"     {command}"))


_NEW_DIRECTORY = '{"conversation": "multi_turn_base_0", "dir_name": "new"}'

NEXT = (
    ("Other faults, or none at all", ('make demo DEMO_ARGS="--seed 2"', "make demo DEMO_ARGS=--no-faults")),
    (
        "Serve these tools; in a second terminal look around, and run the last line twice",
        (
            "PYTHONPATH=examples make run CONFIG=build/demo/lineside.toml",
            ".venv/bin/lineside calls",
            f".venv/bin/lineside call files.mkdir --key mine '{_NEW_DIRECTORY}'",
        ),
    ),
    ("Your own tools: start from the quickstart", ("make run", ".venv/bin/lineside tools")),
)
"""What to try after the demo: what for, and the commands, from the checkout's directory."""

_SETTLED_BY = {
    "reconcile": "the service asked the upstream itself",
    "person": "looked up and told: SettleCall",
    "late_completion": "the attempt ended after all",
}


def _headline(summary: dict[str, Any]) -> str:
    faults = "without faults" if summary["seed"] is None else f"with the faults of seed {summary['seed']}"
    return (
        f"{summary['conversations']} agent conversations, {summary['calls']:,} tool calls, {faults}: "
        f"{summary['seconds']} s"
    )


def _row(name: str, value: str, note: Text) -> Text:
    return Text.assemble(f"  {name:<26}{value:>11}", "   " if note else "", note)


def _figures(summary: dict[str, Any]) -> Iterator[tuple[str, int, str]]:
    yield "calls", summary["calls"], f"answers: p50 {summary['p50_ms']} ms, p99 {summary['p99_ms']} ms"
    yield "  executed", summary["executed"], "the tool ran"
    yield "  joined", summary["joined"], "sent twice at once: one execution"
    yield "  replayed", summary["replayed"], "sent again: the recorded answer"
    yield "attempts", summary["attempts"], f"{summary['retries']:,} of them retries"
    yield "refusals", sum(summary["refusals"].values()), "by kind, and how far the work got"
    for kind, count in summary["refusals"].items():
        yield f"  {kind.replace('_', ' ')}", count, ""
    yield "sent again, same key", summary["sent_again_after_not_run"], "after a refusal: not run"
    yield "sent again, safe tool", summary["sent_again_as_safe"], "outcome unknown, but harmless"
    yield "unknown outcomes", summary["unknown"], f"{summary['left_unknown']} left unsettled"
    for by, count in summary["settled_by"].items():
        yield f"  settled by {by.replace('_', ' ')}", count, _SETTLED_BY.get(by, "")


def _how_it_adds_up(summary: dict[str, Any]) -> Iterator[str]:
    answers = summary["executed"] + summary["joined"] + summary["replayed"]
    if not summary["joined"] or not summary["refusals"]:
        return
    yield ""
    yield f"Executed, joined and replayed make {answers:,} answers to {summary['calls']:,} calls: some"
    yield "were sent more than once. Refusals count likewise: both senders of a call"
    yield "hear that its outcome is unknown, and a safe tool's leaves nothing to settle."


def _verdicts(summary: dict[str, Any]) -> Iterator[tuple[str, int, int, str]]:
    effects = f"exactly once; second effects: {summary['second_effects']}"
    yield "effects", summary["effects_once"], summary["final_calls"], effects
    yield "answers", summary["answers_equal"], summary["calls"], "equal to direct execution"
    yield "final states", summary["states_equal"], summary["conversations"], "equal to direct execution"


def tree(record: CallRecord) -> list[str]:
    """Return a call's story as the lines of a tree: attempts, what was decided after each, the settlement."""
    branches = [[_attempt(attempt)] for attempt in record.attempts]
    for step in record.steps:
        # A decision about an attempt names it by its number; any other stands for itself.
        number = int(step.numbers.get("attempts", 0))
        if 0 < number <= len(record.attempts):
            branches[number - 1].append(_step(step))
        else:
            branches.append([_step(step)])
    if record.settled_by:
        branches.append([f"settled by {record.settled_by.replace('_', ' ')}"])
    lines = [f"{record.tool}  {record.call_id}  {record.state}"]
    for position, (branch, *twigs) in enumerate(branches):
        is_last = position == len(branches) - 1
        lines.append(f"{'└─' if is_last else '├─'} {branch}")
        lines += [f"{'  ' if is_last else '│ '} └─ {twig}" for twig in twigs]
    return lines


def _attempt(attempt: Attempt) -> str:
    ended = f"{attempt.kind}, {attempt.outcome}" if attempt.kind else "answered"
    return (
        f"attempt {attempt.number}  at {attempt.began_s * 1e3:4.0f} ms, "
        f"took {attempt.duration_s * 1e3:3.0f} ms: {ended.replace('_', ' ')}"
    )


def _step(step: Step) -> str:
    compared = "  ".join(
        f"{name}={value:.4g}" for name, value in sorted(step.numbers.items()) if name != "attempts"
    )
    return f"{step.choice}: {step.reason}  {compared}".rstrip()
