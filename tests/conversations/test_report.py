from __future__ import annotations

import io
from typing import Any

from conversations.gateway import Attempt, CallRecord, Step
from conversations.report import Progress, print_report, tree
from conversations.tally import Tally, percentile


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank: the 99th percentile of a hundred values is the 99th of them."""
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([], 0.99) == 0.0


def test_an_execution_counts_once_however_many_answers_show_it() -> None:
    """Joined and replayed answers carry the first call's attempts."""
    tally = Tally()
    for source in ("executed", "joined", "replayed"):
        tally.answered(source, "one", attempts=3, latency_s=0.1)
    tally.refused("transient", "not_run", "two", attempts=3)
    tally.settled("three", "reconcile")
    summary = tally.summary()
    assert (summary["attempts"], summary["retries"]) == (6, 4)
    assert (summary["executed"], summary["joined"], summary["replayed"]) == (1, 1, 1)
    assert summary["refusals"] == {"transient (not_run)": 1}
    assert (summary["unknown"], summary["settled_by"]) == (1, {"reconcile": 1})


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


SUMMARY = {
    "seed": 1,
    "conversations": 200,
    "seconds": 5.0,
    "calls": 1142,
    "executed": 1132,
    "joined": 96,
    "replayed": 123,
    "attempts": 1505,
    "retries": 318,
    "refusals": {"schema (not_run)": 42},
    "unknown": 45,
    "settled_by": {"reconcile": 34, "person": 11},
    "sent_again_after_not_run": 8,
    "sent_again_as_safe": 2,
    "p50_ms": 25.9,
    "p99_ms": 759.5,
    "left_unknown": 0,
    "answers_equal": 1142,
    "final_calls": 698,
    "effects_once": 697,
    "second_effects": 1,
    "states_equal": 200,
}


def test_progress_is_for_terminals() -> None:
    """A terminal sees one line that is redrawn and taken away; a log sees nothing."""
    tally = Tally()
    tally.calls = 250
    for stream in (terminal := Terminal(), log := io.StringIO()):
        progress = Progress(stream)
        progress.draw(tally, calls=500, conversations=9)
        progress.say("")
    assert "250/500 calls" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert log.getvalue() == ""


def test_the_report_tells_every_figure_in_plain_text() -> None:
    """Without a terminal there is no colour; what is not equal stands beside what should be."""
    stream = io.StringIO()
    print_report(SUMMARY, None, stream)
    printed = stream.getvalue()
    assert "\x1b" not in printed
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    for begin in (
        "calls 1,142 answers: p50 25.9 ms, p99 759.5 ms",
        "joined 96",
        "Executed, joined and replayed make 1,351 answers to 1,142 calls: some",
        "attempts 1,505 318 of them retries",
        "schema (not run) 42",
        "settled by person 11",
        "effects 697/698",
        "answers 1,142/1,142",
        "final states 200/200",
    ):
        assert any(line.startswith(begin) for line in lines), begin


def test_what_did_not_happen_is_not_told() -> None:
    """Without faults the report is short."""
    stream = io.StringIO()
    quiet: dict[str, Any] = {"joined": 0, "refusals": {}, "unknown": 0, "settled_by": {}}
    print_report({**SUMMARY, **quiet}, None, stream)
    for name in ("joined", "refusals", "unknown outcomes"):
        assert name not in stream.getvalue()


def test_a_call_is_shown_as_a_tree() -> None:
    """Attempts with their times and ends, below each what was decided after it, then the settlement."""
    record = CallRecord(
        call_id="id",
        tool="files.cd",
        state="unknown",
        etag="e",
        settled_by="reconcile",
        attempts=[
            Attempt(number=1, kind="transient", outcome="not_run", began_s=0.001, duration_s=0.002),
            Attempt(number=2, kind="timeout", outcome="unknown", began_s=0.12, duration_s=0.2),
        ],
        steps=[
            Step(choice="retry", reason="BACKOFF", numbers={"wait_s": 0.117, "attempts": 1}),
            Step(choice="stop", reason="MAY_HAVE_RUN", numbers={"attempts": 2}),
        ],
    )
    assert tree(record) == [
        "files.cd  id  unknown",
        "├─ attempt 1  at    1 ms, took   2 ms: transient, not run",
        "│  └─ retry: BACKOFF  wait_s=0.117",
        "├─ attempt 2  at  120 ms, took 200 ms: timeout, unknown",
        "│  └─ stop: MAY_HAVE_RUN",
        "└─ settled by reconcile",
    ]
