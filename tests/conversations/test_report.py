from __future__ import annotations

import io

from conversations.gateway import Attempt, CallRecord, Step
from conversations.report import Progress, tree
from conversations.tally import Tally, percentile


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank: the 99th percentile of a hundred values is the 99th of them."""
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([], 0.99) == 0.0


def test_an_execution_counts_once_however_many_answers_show_it() -> None:
    """Joined and replayed answers carry the first call's attempts."""
    tally = Tally()
    for source in ("EXECUTED", "JOINED", "REPLAYED"):
        tally.answered(source, "one", attempts=3, latency_s=0.1)
    tally.refused("transient", "NOT_RUN", "two", attempts=3)
    tally.settled("three", "RECONCILE")
    summary = tally.summary()
    assert (summary["attempts"], summary["retries"]) == (6, 4)
    assert (summary["executed"], summary["joined"], summary["replayed"]) == (1, 1, 1)
    assert summary["refusals"] == {"transient (NOT_RUN)": 1}
    assert (summary["unknown"], summary["settled_by"]) == (1, {"RECONCILE": 1})


def test_progress_without_a_terminal_is_a_line_now_and_then() -> None:
    """A log is not flooded: one line for every 200 calls, and the last."""
    stream, tally = io.StringIO(), Tally()
    progress = Progress(tally, calls=500, conversations=9, stream=stream)
    for calls in range(0, 501, 10):
        tally.calls = calls
        progress.draw()
    progress.draw(last=True)
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["200/500", "400/500", "500/500"]


def test_a_call_is_shown_as_a_tree() -> None:
    """Attempts with their pauses and ends, then the decisions with what they compared."""
    record = CallRecord(
        call_id="id",
        tool="files.cd",
        state="DONE",
        etag="e",
        settled_by="RECONCILE",
        attempts=[
            Attempt(
                number=1, kind="transient", outcome="NOT_RUN", began_s=0.001, duration_s=0.002, backoff_s=0.0
            ),
            Attempt(number=2, kind="", outcome="DONE", began_s=0.12, duration_s=0.003, backoff_s=0.117),
        ],
        steps=[Step(choice="retry", reason="NOT_RUN", numbers={"backoff_s": 0.117})],
    )
    assert tree(record) == [
        "files.cd  id  DONE",
        "├─ attempt 1  at    1 ms     2 ms  transient (NOT_RUN)",
        "├─ attempt 2  at  120 ms     3 ms  answered (DONE)  after a pause of 117 ms",
        "├─ retry: NOT_RUN  backoff_s=0.117",
        "└─ settled by reconcile",
    ]
