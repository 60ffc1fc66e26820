"""Going down: what is refused, what goes on, what ends with the grace."""

from __future__ import annotations

from typing import Any

import pytest

from lineside_service.core.errors import ErrorKind, Outcome
from lineside_service.core.ledger import RowState
from tests.support.engine_rig import IDEMPOTENT, Rig, expect_answer, expect_failure, value_of
from tests.support.scripted_tool import answer, hang, swallow_cancel, transient

pytestmark = pytest.mark.parametrize("virtual_loop", range(3), indirect=True)

keyed_or_not = pytest.mark.parametrize("key", [None, "k"])


async def test_new_calls_are_refused(rig: Rig) -> None:
    """Unavailable with attempts 0; a re-send is safe for keyed calls and idempotent tools only."""
    rig.add("mail")
    rig.add("put", **IDEMPOTENT)
    rig.dispatcher.begin_drain(30)
    assert rig.dispatcher.draining
    replies = [await rig.failed("mail"), await rig.failed("mail", "k"), await rig.failed("put")]
    assert {(reply.kind, reply.attempts) for reply in replies} == {(ErrorKind.UNAVAILABLE, 0)}
    assert [reply.pushback_safe for reply in replies] == [False, True, True]


async def test_an_idle_service_drains_at_once(rig: Rig) -> None:
    """Nothing in flight, no waiting for the grace."""
    assert await rig.dispatcher.drain(30)
    assert rig.loop.time() == 0.0


@keyed_or_not
async def test_calls_in_flight_go_on(rig: Rig, key: str | None) -> None:
    """Running, waiting for a slot and backing off: all that fits the grace ends as it would have."""
    rig.add("mail", answer(after=2), concurrency=1)
    rig.add("shaky", transient(), answer())
    tasks = [rig.start("mail", key and f"{key}{n}") for n in range(3)] + [rig.start("shaky", key)]
    await rig.at(0.05)
    assert await rig.dispatcher.drain(30)
    assert rig.loop.time() == pytest.approx(6.0)
    for task in tasks:
        assert value_of(await task) == "ok"
    assert rig.dispatcher.in_flight == 0


@keyed_or_not
async def test_a_back_off_that_does_not_fit_ends_with_its_last_kind(rig: Rig, key: str | None) -> None:
    """Decided during the drain: transient, stopped_by DRAINING, the hint for the next replica."""
    rig.add("mail", transient(retry_after_s=20, after=1))
    task = rig.start("mail", key)
    await rig.at(0.5)
    assert await rig.dispatcher.drain(10)
    failure = expect_failure(await task)
    assert (failure.kind, failure.stopped_by) == (ErrorKind.TRANSIENT, "DRAINING")
    assert (failure.outcome, failure.retry_after_s) == (Outcome.NOT_RUN, 20.0)
    assert rig.loop.time() == 1.0


@keyed_or_not
async def test_a_back_off_under_way_that_does_not_fit_ends_at_once(rig: Rig, key: str | None) -> None:
    """It began before the drain and would end after it: nobody waits for the grace in vain."""
    rig.add("mail", transient(retry_after_s=20))
    task = rig.start("mail", key)
    await rig.at(5)
    assert await rig.dispatcher.drain(10)
    failure = expect_failure(await task)
    assert (failure.kind, failure.stopped_by, rig.loop.time()) == (ErrorKind.TRANSIENT, "DRAINING", 5.0)
    assert failure.retry_after_s == pytest.approx(15.0)


@keyed_or_not
async def test_a_back_off_under_way_that_fits_goes_on(rig: Rig, key: str | None) -> None:
    """The drain does not shorten it either."""
    tool = rig.add("mail", transient(retry_after_s=8), answer())
    task = rig.start("mail", key)
    await rig.at(5)
    assert await rig.dispatcher.drain(10)
    assert value_of(await task) == "ok"
    assert tool.started_s == [0.0, 8.0]


@pytest.mark.parametrize(
    ("phase", "outcome"),
    [("none", Outcome.UNKNOWN), ("before", Outcome.NOT_RUN), ("after", Outcome.UNKNOWN)],
)
@keyed_or_not
async def test_at_the_end_of_the_grace_the_phase_decides(
    rig: Rig, phase: str, outcome: Outcome, key: str | None
) -> None:
    """Unavailable with the outcome by phase, within 250 ms of the grace; rows are written by then."""
    begin_at = 1.0 if phase == "after" else None
    rig.add("mail", hang(begin_at=begin_at), phases=phase != "none", timeout_s=100.0)
    task = rig.start("mail", key, timeout_s=200)
    await rig.at(2)
    assert not await rig.dispatcher.drain(5)
    assert rig.loop.time() == pytest.approx(7.0)
    failure = expect_failure(await task)
    assert (failure.kind, failure.reason) == (ErrorKind.UNAVAILABLE, "GRACE_OVER")
    assert (failure.outcome, failure.attempts) == (outcome, 1)
    if key is not None:
        row = await rig.row("mail", key)
        kept = None if outcome is Outcome.NOT_RUN else RowState.UNKNOWN
        assert (None if row is None else row.state) is kept


async def test_many_keys_end_with_the_grace_together(rig: Rig) -> None:
    """The drain waits for each of them once: those that end while it waits for another are not waited for."""
    rig.add("mail", hang(), timeout_s=100.0, concurrency=20)
    tasks = [rig.start("mail", f"k{number}", timeout_s=200) for number in range(20)]
    await rig.at(1)
    assert not await rig.dispatcher.drain(5)
    assert rig.loop.time() == pytest.approx(6.0)
    for task in tasks:
        assert expect_failure(await task).reason == "GRACE_OVER"


@keyed_or_not
async def test_at_the_end_of_the_grace_nothing_new_starts(rig: Rig, key: str | None) -> None:
    """A call that waits for a slot is NOT_RUN; one that failed before keeps its last kind."""
    tool = rig.add("mail", swallow_cancel(answer(after=50)), concurrency=1, timeout_s=100.0)
    rig.add("shaky", transient(after=0.5), hang(), concurrency=1, timeout_s=100.0)
    busy = [rig.start("mail", timeout_s=100), rig.start("shaky", timeout_s=100)]
    await rig.at(0.1)
    blocked = rig.start("mail", key, timeout_s=100)
    await rig.at(1)
    assert not await rig.dispatcher.drain(5)
    failure = expect_failure(await blocked)
    assert (failure.kind, failure.outcome, failure.attempts) == (ErrorKind.UNAVAILABLE, Outcome.NOT_RUN, 0)
    assert rig.loop.time() == pytest.approx(6.0)
    for task in busy:
        assert expect_failure(await task).kind is ErrorKind.UNAVAILABLE
    assert tool.attempts == 1
    assert rig.dispatcher.in_flight == 0


async def test_a_call_that_waits_after_a_first_attempt_keeps_its_kind(rig: Rig) -> None:
    """The grace ends while the retry waits for a slot: transient, stopped by it."""
    tool = rig.add("mail", transient(), hang(), concurrency=1, timeout_s=100.0)
    task = rig.start("mail", "k", timeout_s=100)
    await rig.at(0.05)
    busy = rig.start("mail", timeout_s=100)
    await rig.at(1)
    assert not await rig.dispatcher.drain(5)
    failure = expect_failure(await task)
    assert (failure.kind, failure.stopped_by) == (ErrorKind.TRANSIENT, "GRACE_OVER")
    assert (failure.outcome, failure.attempts) == (Outcome.NOT_RUN, 1)
    await busy
    assert tool.attempts == 2


async def test_a_deaf_tool_does_not_hold_the_drain(rig: Rig) -> None:
    """It ignores the cancel: its caller and its row are served, the attempt left behind."""
    rig.add("deaf", swallow_cancel(answer("late", after=500)), timeout_s=100.0)
    task = rig.start("deaf", "k", timeout_s=200)
    await rig.at(1)
    assert not await rig.dispatcher.drain(3)
    assert rig.loop.time() <= 4.25
    assert expect_failure(await task).outcome is Outcome.UNKNOWN
    assert (await rig.standing("deaf", "k")).state is RowState.UNKNOWN


async def test_the_drain_waits_for_the_last_writes(rig: Rig) -> None:
    """A store that needs a second: the rows are written when the drain returns."""
    rig.add("mail", hang(), timeout_s=100.0)
    task = rig.start("mail", "k", timeout_s=200)
    await rig.at(1)
    rig.store.delay_s = {"save": 1.0}
    assert not await rig.dispatcher.drain(3)
    assert (await rig.standing("mail", "k")).state is RowState.UNKNOWN
    await task


async def test_the_drain_does_not_wait_for_a_dead_store(rig: Rig) -> None:
    """The store never answers: after its last seconds the drain returns and says what is unwritten."""
    rig.add("mail", answer(after=1))
    task = rig.start("mail", "k", timeout_s=200)
    await rig.at(0.5)
    rig.store.fail.update(save=-1, release=-1)
    assert not await rig.dispatcher.drain(3)
    assert rig.loop.time() <= 0.5 + 3 + 5.01
    assert "drain.unwritten" in rig.log.events()
    rig.store.fail.clear()
    assert value_of(await task) == "ok"


async def test_draining_twice_keeps_the_first_grace(rig: Rig) -> None:
    """The second SIGTERM neither extends nor shortens it."""
    rig.add("mail", hang(), timeout_s=100.0)
    task = rig.start("mail", timeout_s=200)
    await rig.at(1)
    rig.dispatcher.begin_drain(4)
    await rig.at(2)
    assert not await rig.dispatcher.drain(100)
    assert rig.loop.time() == pytest.approx(5.0)
    await task


async def test_joiners_of_a_call_in_flight_are_answered_too(rig: Rig) -> None:
    """All waiters of a key get the same word at the end of the grace."""
    rig.add("mail", hang(), timeout_s=100.0)
    tasks = [rig.start("mail", "k", timeout_s=200) for _ in range(5)]
    await rig.at(1)
    assert not await rig.dispatcher.drain(2)
    replies = [expect_failure(await task) for task in tasks]
    assert {(reply.kind, reply.outcome) for reply in replies} == {(ErrorKind.UNAVAILABLE, Outcome.UNKNOWN)}


async def test_a_result_in_the_last_instant_is_an_answer(rig: Rig) -> None:
    """The tool ends with the grace: whichever comes first, the caller's word and the row agree."""
    rig.add("mail", answer(after=5))
    task = rig.start("mail", "k")
    await rig.at(1)
    await rig.dispatcher.drain(4)
    reply: Any = await task
    row = await rig.standing("mail", "k")
    if row.state is RowState.DONE:
        assert value_of(expect_answer(reply)) == "ok"
    else:
        assert (expect_failure(reply).outcome, row.state) == (Outcome.UNKNOWN, RowState.UNKNOWN)
