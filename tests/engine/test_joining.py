"""One piece of work for everybody who has the key: joining, leaving, and who waits how long."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from lineside_service.core.call import Answer
from lineside_service.core.errors import ErrorKind, Outcome, Source
from lineside_service.core.ledger import RowState
from tests.support.engine_rig import (
    BY_KEY,
    IDEMPOTENT,
    Rig,
    expect_answer,
    expect_failure,
    value_of,
)
from tests.support.scripted_tool import answer, hang, swallow_cancel, transient

seeds = pytest.mark.parametrize("virtual_loop", range(5), indirect=True)
pytestmark = seeds


# -- one execution -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("spec", [{}, IDEMPOTENT, BY_KEY])
async def test_two_hundred_callers_are_one_execution(
    rig: Rig, concurrency: int, spec: dict[str, Any]
) -> None:
    """One effect, 200 equal answers, one of them EXECUTED and 199 JOINED (R041)."""
    tool = rig.add("mail", answer({"id": 7}, after=0.2), concurrency=concurrency, **spec)
    tasks = [rig.start("mail", "k", patient=bool(n % 3 == 0), stream=n % 2) for n in range(200)]
    replies = [expect_answer(await task) for task in tasks]
    assert (tool.attempts, len(rig.effects)) == (1, 1)
    assert {(r.result, r.call_id, r.attempts) for r in replies} == {(b'{"id":7}', replies[0].call_id, 1)}
    sources = [reply.source for reply in replies]
    assert (sources.count(Source.EXECUTED), sources.count(Source.JOINED)) == (1, 199)


@pytest.mark.parametrize("operation", ["find", "claim", "save"])
async def test_two_hundred_callers_meet_a_slow_store(rig: Rig, operation: Any) -> None:
    """However slow the store is at finding, claiming or saving: one execution, nobody refused (R054)."""
    tool = rig.add("mail", answer(after=0.2))
    rig.store.delay_s = {operation: 0.7}
    tasks = []
    for number in range(200):
        await rig.at(number * 0.01)
        tasks.append(rig.start("mail", "k"))
    replies = [expect_answer(await task) for task in tasks]
    assert (tool.attempts, len(rig.effects)) == (1, 1)
    assert {reply.result for reply in replies} == {b'"ok"'}


async def test_the_loser_of_a_claim_gets_the_winners_answer(rig: Rig) -> None:
    """It read the store before the winner's whole call and claims after it: replayed, not refused (R054)."""
    tool = rig.add("mail", answer())
    rig.store.delay_s = {"find": 1.0}
    slow = rig.start("mail", "k")
    await rig.at(0.6)
    rig.store.delay_s = {}
    fast = await rig.answered("mail", "k")
    loser = expect_answer(await slow)
    assert (loser.source, loser.call_id) == (Source.REPLAYED, fast.call_id)
    assert tool.attempts == 1


async def test_the_loser_of_a_claim_learns_of_a_conflict(rig: Rig) -> None:
    """The winner had other arguments: key_reused, not a refusal to come back later."""
    rig.add("mail", answer())
    rig.store.delay_s = {"find": 1.0}
    slow = rig.start("mail", "k", arguments={"amt": 2})
    await rig.at(0.6)
    rig.store.delay_s = {}
    fast = await rig.answered("mail", "k", arguments={"amt": 1})
    loser = expect_failure(await slow)
    assert (loser.kind, loser.call_id) == (ErrorKind.KEY_REUSED, fast.call_id)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tenant": "a"}, {"tenant": "b"}),
        ({"tenant": "a:b", "key": "c"}, {"tenant": "a", "key": "b:c"}),
        ({"tool": "x"}, {"tool": "y"}),
        ({"key": "k"}, {"key": "K"}),
    ],
)
async def test_scopes_do_not_meet(rig: Rig, one: dict[str, str], other: dict[str, str]) -> None:
    """Tenant, tool and key together name the work; separators in them fool nobody (R043)."""
    base = {"tool": "x", "key": "k", "tenant": "t"}
    tools = [rig.add("x", answer(after=1)), rig.add("y", answer(after=1))]
    tasks = [rig.start(**{**base, **scope}) for scope in (one, other)]
    replies = [expect_answer(await task) for task in tasks]
    assert sum(tool.attempts for tool in tools) == 2
    assert {reply.source for reply in replies} == {Source.EXECUTED}
    assert len({reply.call_id for reply in replies}) == 2


# -- other arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "moment"),
    [
        ([answer(after=1)], "running"),
        ([answer()], "done"),
        ([hang()], "unknown"),
    ],
)
async def test_other_arguments_are_refused_with_what_differs(
    rig: Rig, script: list[Any], moment: str
) -> None:
    """key_reused with the first call's id and the members that differ, never their values (R045)."""
    tool = rig.add("pay", *script, timeout_s=2.0)
    first = rig.start("pay", "k", arguments={"amt": 1, "to": "a", "cur": "EUR"})
    await rig.at(0.5 if moment == "running" else 3.0)
    failure = await rig.failed("pay", "k", arguments={"amt": 2, "cur": "EUR", "memo": "secret"})
    call_id = (await first).call_id
    assert (failure.kind, failure.call_id) == (ErrorKind.KEY_REUSED, call_id)
    assert (failure.attempts, failure.outcome) == (0, Outcome.NOT_RUN)
    assert failure.facts["differing"] == "amt, memo, to"
    assert "secret" not in failure.message
    assert tool.attempts == 1


async def test_after_a_call_that_did_not_run_the_key_takes_other_arguments(rig: Rig) -> None:
    """What provably did not run is not remembered (R045)."""
    rig.add("pay", transient(), answer())
    await rig.failed("pay", "k", budget=1, arguments={"amt": 1})
    await rig.answered("pay", "k", arguments={"amt": 2})


async def test_spelling_makes_no_difference(rig: Rig) -> None:
    """Order of members, 1 and 1.0, -0.0 and 0, deadline and budget: the same call (R046)."""
    tool = rig.add("pay", answer(after=1))
    one = rig.start("pay", "k", arguments={"a": 1, "b": [0, {"x": 1, "y": 2}]})
    two = rig.start(
        "pay", "k", arguments={"b": [-0.0, {"y": 2.0, "x": 1.0}], "a": 1.0}, timeout_s=5, budget=3
    )
    assert {reply.source for reply in (await one, await two)} == {Source.EXECUTED, Source.JOINED}
    assert tool.attempts == 1
    absent = await rig.failed("pay", "k", arguments={"a": 1, "b": [0, {"x": 1, "y": 2}], "c": None})
    assert absent.facts["differing"] == "c"


# -- leaving -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", list(itertools.product([False, True], repeat=4)), ids=str)
async def test_whoever_leaves_never_fails_the_others(rig: Rig, left: tuple[bool, ...]) -> None:
    """Every subset of four callers cancels in flight: the others get the answer, one effect (R047)."""
    tool = rig.add("mail", answer(after=1))
    tasks = [rig.start("mail", "k") for _ in left]
    await rig.at(0.2)
    for leaves, task in zip(left, tasks, strict=True):
        if leaves:
            task.cancel()
    replies = await asyncio.gather(*tasks, return_exceptions=True)
    for leaves, reply in zip(left, replies, strict=True):
        assert isinstance(reply, asyncio.CancelledError if leaves else Answer), reply
    await rig.at(2)
    assert (tool.attempts, len(rig.effects)) == (1, 1)
    assert (await rig.standing("mail", "k")).state is RowState.DONE


@pytest.mark.parametrize("when", [0.0, 0.05, 0.2, 0.9999, 1.0, 1.02])
async def test_the_first_callers_cancel_at_any_time(rig: Rig, when: float) -> None:
    """In the claim, in the queue, in flight, in the instant of the end: the joiners are served (R047)."""
    tool = rig.add("mail", answer(after=1))
    rig.store.delay_s = {"claim": 0.05, "save": 0.02}
    first = rig.start("mail", "k")
    await rig.at(0.0)
    joiners = [rig.start("mail", "k") for _ in range(2)]
    await rig.at(when)
    first.cancel()
    for task in joiners:
        assert value_of(await task) == "ok"
    assert tool.attempts == 1


async def test_an_earlier_deadline_ends_there_and_the_work_goes_on(rig: Rig) -> None:
    """A has 300 ms, B 5 s, the tool takes 1 s: A is told IN_PROGRESS, B gets the answer (R047)."""
    tool = rig.add("mail", answer(after=1))
    a, b = rig.start("mail", "k", timeout_s=0.3), rig.start("mail", "k", timeout_s=5)
    early = expect_failure(await a)
    assert (early.kind, early.outcome) == (ErrorKind.TIMEOUT, Outcome.IN_PROGRESS)
    assert rig.loop.time() <= 0.3 + 0.02
    assert early.call_id != ""
    assert value_of(await b) == "ok"
    assert tool.attempts == 1


async def test_a_later_joiner_brings_a_later_deadline(rig: Rig) -> None:
    """A joiner with more time extends an attempt that the owner's deadline would have ended."""
    rig.add("mail", answer(after=1))
    a = rig.start("mail", "k", timeout_s=0.5)
    await rig.at(0.4)
    b = rig.start("mail", "k", timeout_s=5)
    assert expect_failure(await a).outcome is Outcome.IN_PROGRESS
    assert value_of(await b) == "ok"


async def test_a_later_joiner_brings_a_longer_attempt(rig: Rig) -> None:
    """The owner shortened its attempts, the joiner did not: the attempt may take the tool's own limit."""
    rig.add("mail", answer(after=1), timeout_s=2.0)
    a = rig.start("mail", "k", attempt_timeout_s=0.5)
    await rig.at(0.4)
    b = rig.start("mail", "k")
    assert value_of(await a) == value_of(await b) == "ok"


async def test_a_leaving_joiner_takes_its_deadline_along(rig: Rig) -> None:
    """The one with the long deadline leaves: the work ends at the deadline of those who stay."""
    rig.add("mail", hang(), timeout_s=30.0)
    a, b = rig.start("mail", "k", timeout_s=1), rig.start("mail", "k", timeout_s=20)
    await rig.at(0.5)
    b.cancel()
    failure = expect_failure(await a)
    assert (failure.kind, failure.outcome) == (ErrorKind.TIMEOUT, Outcome.UNKNOWN)
    assert rig.loop.time() <= 1.02


async def test_a_leaving_joiner_does_not_cut_an_attempt(rig: Rig) -> None:
    """Who stays asked for short attempts, but this one runs already under a longer limit: it goes on."""
    rig.add("mail", answer(after=1), timeout_s=2.0)
    a, b = rig.start("mail", "k", attempt_timeout_s=0.2), rig.start("mail", "k")
    await rig.at(0.5)
    b.cancel()
    assert value_of(await a) == "ok"


async def test_a_leaving_joiner_ends_a_back_off_that_no_longer_fits(rig: Rig) -> None:
    """The hint fitted B's deadline only: A is told at once, with the hint, instead of waiting in vain."""
    rig.add("mail", transient(after=0.1, retry_after_s=10))
    a, b = rig.start("mail", "k", timeout_s=3), rig.start("mail", "k", timeout_s=60)
    await rig.at(1)
    b.cancel()
    failure = expect_failure(await a)
    assert (failure.kind, failure.stopped_by, rig.loop.time()) == (ErrorKind.TRANSIENT, "DEADLINE", 1.0)
    assert failure.retry_after_s == pytest.approx(9.1)


async def test_a_leaving_joiner_ends_a_wait_for_a_slot(rig: Rig) -> None:
    """In the queue: those who stay get their timeout as NOT_RUN at their own deadline."""
    rig.add("mail", answer(after=50), concurrency=1)
    busy = rig.start("mail")
    await rig.at(0.1)
    a, b = rig.start("mail", "k", timeout_s=1), rig.start("mail", "k", timeout_s=20)
    await rig.at(0.5)
    b.cancel()
    failure = expect_failure(await a)
    assert (failure.reason_token, failure.outcome) == ("DEADLINE_IN_QUEUE", Outcome.NOT_RUN)
    assert rig.loop.time() <= 1.12
    await busy


# -- the last one leaves -----------------------------------------------------------------------------------


async def test_the_last_waiter_leaves_in_the_queue(rig: Rig) -> None:
    """No attempt starts and the key is free."""
    tool = rig.add("mail", answer(after=5), concurrency=1)
    busy = rig.start("mail")
    await rig.at(1)
    tasks = [rig.start("mail", "k") for _ in range(3)]
    for number, task in enumerate(tasks):
        await rig.at(2 + number / 10)
        task.cancel()
    await rig.at(3)
    assert rig.slots("mail").waiting == 0
    assert rig.ledger.entries() == []
    await busy
    assert (tool.attempts, await rig.row("mail", "k")) == (1, None)


@pytest.mark.parametrize(("spec", "state"), [({}, None), (IDEMPOTENT, None)])
async def test_the_last_waiter_leaves_in_a_back_off(
    rig: Rig, spec: dict[str, Any], state: RowState | None
) -> None:
    """No further attempt; the row as the attempts so far say."""
    tool = rig.add("mail", transient(retry_after_s=5), answer(), **spec)
    task = rig.start("mail", "k")
    await rig.at(1)
    task.cancel()
    await rig.at(10)
    row = await rig.row("mail", "k")
    assert (tool.attempts, None if row is None else row.state) == (1, state)


async def test_a_by_key_call_left_in_a_back_off_stays_unknown(rig: Rig) -> None:
    """Its first attempt may have had its effect."""
    tool = rig.add("put", hang(effect_at=0.1), timeout_s=1.0, **BY_KEY)
    task = rig.start("put", "k")
    await rig.at(1.05)
    task.cancel()
    await rig.at(10)
    assert (tool.attempts, (await rig.standing("put", "k")).state) == (1, RowState.UNKNOWN)


@pytest.mark.parametrize(
    ("step", "state", "later"),
    [
        (answer(after=1), RowState.DONE, Source.REPLAYED),
        (hang(), RowState.UNKNOWN, None),
    ],
)
async def test_the_last_waiter_leaves_in_flight(
    rig: Rig, step: Any, state: RowState, later: Source | None
) -> None:
    """The attempt runs to its limit and is recorded, none follows."""
    tool = rig.add("mail", step, timeout_s=2.0)
    task = rig.start("mail", "k", timeout_s=600)
    await rig.at(0.5)
    task.cancel()
    await rig.at(3)
    assert (tool.attempts, (await rig.standing("mail", "k")).state) == (1, state)
    reply = await rig.dispatch("mail", "k")
    if later is None:
        assert expect_failure(reply).kind is ErrorKind.OUTCOME_UNKNOWN
    else:
        assert expect_answer(reply).source is later


async def test_no_retry_without_a_waiter(rig: Rig) -> None:
    """The attempt in flight fails transiently after everybody left: nothing follows, the key is free."""
    tool = rig.add("mail", transient(after=1), answer())
    task = rig.start("mail", "k")
    await rig.at(0.5)
    task.cancel()
    await rig.at(5)
    assert (tool.attempts, await rig.row("mail", "k")) == (1, None)


async def test_a_keyless_call_is_cancelled_at_once(rig: Rig) -> None:
    """Its attempt is given up, its slot free again in the same instant."""
    tool = rig.add("mail", hang())
    task = rig.start("mail")
    await rig.at(1)
    task.cancel()
    await rig.at(1.001)
    assert (tool.running, rig.slots("mail").running, rig.slots("mail").abandoned) == (0, 0, 0)
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_keyless_cancel_of_a_deaf_tool_is_abandoned(rig: Rig, key: str | None) -> None:
    """The tool that ignores the cancel is counted until it ends; the caller is gone."""
    rig.add("deaf", swallow_cancel(answer(after=5)))
    task = rig.start("deaf", key)
    await rig.at(1)
    task.cancel()
    await rig.at(2)
    slots = rig.slots("deaf")
    assert (slots.running, slots.abandoned) == ((0, 1) if key is None else (1, 0))


# -- coming back -------------------------------------------------------------------------------------------


async def test_rejoining_work_that_everybody_left(rig: Rig) -> None:
    """The attempt still runs: a new caller of the key gets its result (R047)."""
    tool = rig.add("mail", answer("first", after=2), answer("second"))
    task = rig.start("mail", "k")
    await rig.at(0.5)
    task.cancel()
    await rig.at(1)
    reply = await rig.answered("mail", "k")
    assert (value_of(reply), reply.source, tool.attempts) == ("first", Source.JOINED, 1)


async def test_rejoining_in_the_instant_of_leaving_keeps_the_back_off(rig: Rig) -> None:
    """One leaves, another joins in the same instant: the retry still comes no earlier than the hint said."""
    tool = rig.add("mail", transient(retry_after_s=5), answer())
    first = rig.start("mail", "k")
    await rig.at(1)
    first.cancel()
    second = rig.start("mail", "k")
    reply = expect_answer(await second)
    assert tool.attempts == 2
    if reply.source is Source.JOINED:  # in other orders the key was free before it came
        assert tool.started_s[1] - tool.started_s[0] >= 5


async def test_rejoining_in_the_instant_of_leaving_the_queue(rig: Rig) -> None:
    """One leaves, another joins in the same instant while the work waits for a slot: served, one attempt."""
    tool = rig.add("mail", answer(after=5), concurrency=1)
    busy = rig.start("mail")
    await rig.at(1)
    first = rig.start("mail", "k")
    await rig.at(2)
    first.cancel()
    second = rig.start("mail", "k")
    assert value_of(await second) == "ok"
    assert tool.attempts == 2
    await busy


async def test_nobody_joins_deserted_work(rig: Rig) -> None:
    """Everybody left and the key is being given back: the next caller waits for that, then executes."""
    tool = rig.add("mail", transient(retry_after_s=5), answer("mine"))
    rig.store.delay_s = {"release": 2.0}
    first = rig.start("mail", "k")
    await rig.at(1)
    first.cancel()
    await rig.at(1.5)
    reply = await rig.answered("mail", "k")
    assert (value_of(reply), reply.source, tool.attempts) == ("mine", Source.EXECUTED, 2)


async def test_a_caller_waits_for_a_deserted_key_no_longer_than_its_deadline(rig: Rig) -> None:
    """The store takes too long to give it back: a timeout at the caller's deadline, nothing started."""
    tool = rig.add("mail", transient(retry_after_s=5), answer())
    rig.store.delay_s = {"release": 20.0}
    first = rig.start("mail", "k")
    await rig.at(1)
    first.cancel()
    await rig.at(1.5)
    failure = await rig.failed("mail", "k", timeout_s=3)
    assert (failure.kind, failure.reason_token) == (ErrorKind.TIMEOUT, "DEADLINE_IN_LOOK_UP")
    assert rig.loop.time() == pytest.approx(4.5)
    assert tool.attempts == 1


async def test_coming_while_the_end_is_written(rig: Rig) -> None:
    """The answer is known but not durable: whoever comes now waits for the record and has it replayed.

    It is no waiter of the work any more, so that what is written need not be kept for its deadline's sake.
    """
    tool = rig.add("mail", answer())
    rig.store.delay_s = {"save": 2.0}
    first = rig.start("mail", "k")
    await rig.at(3)
    joiner = await rig.answered("mail", "k")
    assert (joiner.source, tool.attempts) == (Source.REPLAYED, 1)
    assert (await first).call_id == joiner.call_id
    assert rig.loop.time() == pytest.approx(4.0)
