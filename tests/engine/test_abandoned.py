"""Attempts that outlive their time limit, and tools that end in ways of their own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import pytest

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.breaker import BreakerRules
from lineside_service.core.errors import ErrorKind, Outcome
from lineside_service.core.ledger import RowState, SettledBy
from lineside_service.ports import AttemptRequest
from tests.support.engine_rig import BY_KEY, IDEMPOTENT, Rig, expect_answer, expect_failure, value_of
from tests.support.scripted_tool import (
    Step,
    Turn,
    answer,
    begins_late,
    clean_up,
    ends,
    hang,
    raises,
    says_no,
    swallow_cancel,
    transient,
)

pytestmark = pytest.mark.parametrize("virtual_loop", range(3), indirect=True)

keyed_or_not = pytest.mark.parametrize("key", [None, "k"])
LIMIT_S = 0.2


async def _timed_out(rig: Rig, tool: str, key: str | None = "k", **more: Any) -> None:
    failure = await rig.failed(tool, key, **more)
    assert (failure.kind, failure.outcome) == (ErrorKind.TIMEOUT, Outcome.UNKNOWN)


# -- the caller is answered in time ------------------------------------------------------------------------


@keyed_or_not
@pytest.mark.parametrize(
    "step",
    [
        hang(),
        swallow_cancel(answer(after=30)),
        swallow_cancel(hang()),
        clean_up(30, hang()),
        answer(after=LIMIT_S + 0.001),
    ],
    ids=["hang", "swallows", "never ends", "cleans up", "just late"],
)
async def test_the_caller_is_answered_at_the_limit(rig: Rig, step: Step, key: str | None) -> None:
    """timeout, UNKNOWN, within 250 ms of the limit, whatever the tool does (R019)."""
    tool = rig.add("hostile", step, timeout_s=LIMIT_S)
    await _timed_out(rig, "hostile", key)
    assert LIMIT_S <= rig.loop.time() <= LIMIT_S + 0.25
    tool.script = [answer("next")]
    assert value_of(await rig.dispatch("hostile", key and "other")) == "next"
    tool.let_go()


@keyed_or_not
async def test_a_slot_moves_to_the_abandoned_account_and_back(rig: Rig, key: str | None) -> None:
    """The slot is free at the limit; the attempt is counted until it really ends."""
    rig.add("deaf", swallow_cancel(answer(after=5)), timeout_s=LIMIT_S, concurrency=2)
    slots = rig.slots("deaf")
    task = rig.start("deaf", key)
    await rig.at(0.1)
    assert (slots.running, slots.abandoned) == (1, 0)
    await task
    assert (slots.running, slots.abandoned, slots.usable) == (0, 1, 2)
    await rig.at(5.1)
    assert (slots.running, slots.abandoned) == (0, 0)
    assert rig.state("deaf").counters.late == 1


async def test_beyond_its_concurrency_each_abandoned_attempt_takes_a_slot(rig: Rig) -> None:
    """Usable slots are min(c, 2c - abandoned): 2, 2, 2, 1, 0, and back as they end (R023)."""
    rig.add("deaf", swallow_cancel(answer(after=50)), timeout_s=0.1, concurrency=2)
    usable = []
    for _ in range(4):
        await rig.failed("deaf")
        usable.append(rig.slots("deaf").usable)
    assert usable == [2, 2, 1, 0]
    await rig.at(60)
    assert rig.slots("deaf").usable == 2


async def test_two_hundred_stuck_calls_leave_other_tools_alone(rig: Rig) -> None:
    """Each call ends in time, by timeout or STUCK; a quick tool still runs (R023)."""
    rig.add("deaf", swallow_cancel(answer(after=3600)), timeout_s=0.1)
    rig.add("quick")
    kinds = []
    for _ in range(200):
        before = rig.loop.time()
        failure = await rig.failed("deaf")
        kinds.append(failure.kind)
        assert rig.loop.time() <= before + 0.1 + 0.25
    assert kinds.count(ErrorKind.TIMEOUT) == 16
    assert kinds.count(ErrorKind.OVERLOADED) == 184
    await rig.answered("quick")


# -- tools that end in ways of their own -------------------------------------------------------------------


@keyed_or_not
@pytest.mark.parametrize("error", [TimeoutError, asyncio.TimeoutError])
async def test_a_tools_own_timeout_error_is_not_our_timeout(
    rig: Rig, error: type[Exception], key: str | None
) -> None:
    """After 10 ms of 5 s: a failure of the tool, at 10 ms, the breaker not told (R018)."""
    touchy = BreakerRules(min_attempts=1)
    rig.add("mail", raises(error, after=0.01), timeout_s=5.0, breaker=touchy)
    failure = await rig.failed("mail", key)
    assert failure.kind is ErrorKind.INTERNAL
    assert rig.loop.time() == pytest.approx(0.01)
    assert rig.state("mail").breaker.counts(rig.loop.time()) == (0, 0)


@keyed_or_not
@pytest.mark.parametrize("after", [0.0, 0.05])
async def test_a_tool_that_cancels_itself_has_failed(rig: Rig, after: float, key: str | None) -> None:
    """CancelledError raised by the tool is neither our cancel nor a hang: internal, UNKNOWN (R001)."""
    rig.add("mail", raises(lambda: asyncio.CancelledError("x"), after=after))
    failure = await rig.failed("mail", key)
    assert (failure.kind, failure.outcome) == (ErrorKind.INTERNAL, Outcome.UNKNOWN)
    assert failure.reason_token == "TOOL_CANCELLED_ITSELF"
    assert rig.loop.time() == after


@keyed_or_not
async def test_a_tool_that_lets_an_inner_cancel_escape_has_failed(rig: Rig, key: str | None) -> None:
    """It cancelled a task of its own and awaited it (R001)."""

    async def careless(turn: Turn) -> None:
        inner = asyncio.get_running_loop().create_task(asyncio.sleep(9))
        await turn.until(0.01)
        inner.cancel()
        await inner

    rig.add("mail", careless, answer("next"))
    assert (await rig.failed("mail", key)).kind is ErrorKind.INTERNAL
    assert value_of(await rig.dispatch("mail", key and "other")) == "next"


async def test_a_self_cancel_before_the_effect_did_not_run(rig: Rig) -> None:
    """With phases: NOT_RUN before begin_effect, UNKNOWN after it."""
    rig.add(
        "mail",
        raises(lambda: asyncio.CancelledError("x")),
        raises(lambda: asyncio.CancelledError("x"), begin_at=0.0),
        phases=True,
    )
    assert (await rig.failed("mail", "a")).outcome is Outcome.NOT_RUN
    assert (await rig.failed("mail", "b")).outcome is Outcome.UNKNOWN
    assert await rig.row("mail", "a") is None
    assert (await rig.standing("mail", "b")).state is RowState.UNKNOWN


@keyed_or_not
async def test_a_limit_that_the_caller_shortened_is_no_evidence(rig: Rig, key: str | None) -> None:
    """attempt_timeout and deadline below the tool's own limit: timeouts that the breaker does not count."""
    rig.add("slow", hang(), timeout_s=1.0, breaker=BreakerRules(min_attempts=1))
    await _timed_out(rig, "slow", key and "a", attempt_timeout_s=0.5)
    await _timed_out(rig, "slow", key and "b", timeout_s=0.5)
    breaker = rig.state("slow").breaker
    assert breaker.counts(rig.loop.time()) == (0, 0)
    await _timed_out(rig, "slow", key and "c", attempt_timeout_s=5.0)
    assert breaker.is_open(rig.loop.time())


async def test_a_longer_attempt_timeout_than_the_tools_is_cut(rig: Rig) -> None:
    """A caller can only shorten."""
    rig.add("slow", hang(), timeout_s=1.0)
    await _timed_out(rig, "slow", None, attempt_timeout_s=100.0)
    assert rig.loop.time() == 1.0


# -- the point of no return --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin_at", "outcome", "state"),
    [(None, Outcome.NOT_RUN, None), (0.1, Outcome.UNKNOWN, RowState.UNKNOWN)],
    ids=["before", "after"],
)
async def test_the_phase_decides_what_a_timeout_means(
    rig: Rig, begin_at: float | None, outcome: Outcome, state: RowState | None
) -> None:
    """Before begin_effect a timeout is NOT_RUN and leaves nothing, after it UNKNOWN."""
    rig.add("mail", hang(begin_at=begin_at), timeout_s=LIMIT_S, phases=True)
    failure = await rig.failed("mail", "k", budget=1)
    assert (failure.kind, failure.outcome) == (ErrorKind.TIMEOUT, outcome)
    row = await rig.row("mail", "k")
    assert (None if row is None else row.state) is state


async def test_an_abandoned_attempt_cannot_begin_its_effect(rig: Rig) -> None:
    """Given up before its point of no return: begin_effect raises, and the retry's effect is the only one."""
    tool = rig.add("mail", begins_late(5, then=_effect), answer(), timeout_s=LIMIT_S, phases=True)
    reply = await rig.answered("mail", "k")
    assert (reply.attempts, tool.attempts) == (2, 2)
    await rig.at(10)
    assert [effect.attempt for effect in rig.effects] == [2]
    assert (await rig.standing("mail", "k")).settled_by is None


async def _effect(turn: Turn) -> str:
    turn.effect()
    return "ok"


async def test_begin_effect_needs_declared_phases(rig: Rig) -> None:
    """In a tool without `phases` it raises, which fails the attempt."""
    rig.add("mail", answer(begin_at=0.0))
    failure = await rig.failed("mail", "k")
    assert (failure.kind, failure.outcome) == (ErrorKind.INTERNAL, Outcome.UNKNOWN)
    assert len(rig.effects) == 0


@pytest.mark.parametrize("delta_s", [-1e-9, 0.0, 1e-9])
async def test_begin_effect_and_the_limit_at_one_moment(rig: Rig, delta_s: float) -> None:
    """Whichever comes first under the lock: either UNKNOWN with the effect begun, or NOT_RUN for good."""
    rig.add("mail", begins_late(LIMIT_S + delta_s, then=_effect), timeout_s=LIMIT_S, phases=True)
    reply = await rig.dispatch("mail", "k", budget=1)
    if len(rig.effects):
        row = await rig.standing("mail", "k")
        assert row.state in (RowState.DONE, RowState.UNKNOWN)
    else:
        assert expect_failure(reply).outcome is Outcome.NOT_RUN
        assert await rig.row("mail", "k") is None
    await rig.at(1)
    count = rig.effects.count("acme/mail/k")
    assert count == (0 if await rig.row("mail", "k") is None else 1)


# -- the late end ------------------------------------------------------------------------------------------

LATE: list[tuple[str, Step, RowState, SettledBy | None]] = [
    ("result", answer({"id": 7}, after=5), RowState.DONE, SettledBy.LATE_COMPLETION),
    ("tool_error", says_no(after=5), RowState.DONE, SettledBy.LATE_COMPLETION),
    ("transient", transient(after=5), RowState.NOT_RUN, SettledBy.LATE_COMPLETION),
    ("exception", raises(ValueError, after=5, effect_at=5), RowState.UNKNOWN, None),
    ("cancelled", raises(asyncio.CancelledError, after=5), RowState.UNKNOWN, None),
]


@pytest.mark.parametrize(("step", "state", "by"), [row[1:] for row in LATE], ids=[row[0] for row in LATE])
async def test_a_late_end_settles_an_unknown_call(
    rig: Rig, step: Step, state: RowState, by: SettledBy | None
) -> None:
    """A result is DONE, a TransientError not run, any other exception stays UNKNOWN."""
    rig.add("mail", swallow_cancel(step), timeout_s=LIMIT_S)
    await _timed_out(rig, "mail")
    assert (await rig.standing("mail", "k")).state is RowState.UNKNOWN
    assert rig.ledger.settlements.unknown_count == 1
    await rig.at(6)
    row = await rig.standing("mail", "k")
    assert (row.state, row.settled_by) == (state, by)
    assert rig.ledger.settlements.unknown_count == (1 if state is RowState.UNKNOWN else 0)


async def test_a_settled_call_replays(rig: Rig) -> None:
    """After its late completion the key answers with what the abandoned attempt returned."""
    rig.add("mail", swallow_cancel(answer({"id": 7}, after=5)), timeout_s=LIMIT_S)
    await _timed_out(rig, "mail")
    assert (await rig.failed("mail", "k")).kind is ErrorKind.OUTCOME_UNKNOWN
    await rig.at(6)
    assert value_of(await rig.dispatch("mail", "k")) == {"id": 7}
    assert len(rig.effects) == 1


async def test_a_call_settled_as_not_run_executes_again(rig: Rig) -> None:
    """The late TransientError freed the key."""
    rig.add("mail", swallow_cancel(transient(after=5)), answer(), timeout_s=LIMIT_S)
    await _timed_out(rig, "mail")
    await rig.at(6)
    await rig.answered("mail", "k")
    assert len(rig.effects) == 1


@keyed_or_not
async def test_a_late_result_never_answers_a_finished_call(rig: Rig, key: str | None) -> None:
    """The caller had its timeout; the value that comes later is dropped, or kept for the key (R019)."""
    rig.add("mail", swallow_cancel(answer("late", after=1)), timeout_s=LIMIT_S)
    task = rig.start("mail", key)
    reply = expect_failure(await task)
    await rig.at(2)
    assert task.result() is reply
    assert reply.kind is ErrorKind.TIMEOUT


async def test_a_late_result_answers_a_call_that_still_retries(rig: Rig) -> None:
    """The first attempt's result comes while the second hangs or waits: no third attempt is made."""
    tool = rig.add("put", swallow_cancel(answer("first", after=0.3)), hang(), timeout_s=0.2, **IDEMPOTENT)
    reply = await rig.answered("put", "k")
    assert value_of(reply) == "first"
    assert tool.attempts <= 2


async def test_a_late_result_ends_a_back_off(rig: Rig) -> None:
    """Nothing is waited for once the answer is known."""
    tool = rig.add(
        "put", swallow_cancel(answer("first", after=0.25)), answer("second"), timeout_s=0.2, **IDEMPOTENT
    )
    reply = await rig.answered("put", "k")
    assert (value_of(reply), tool.attempts) == ("first", 1)
    assert rig.loop.time() == pytest.approx(0.25)


async def test_one_late_word_does_not_speak_for_the_other_attempts(rig: Rig) -> None:
    """Two abandoned attempts: one did not run, of the other nothing is ever known: the call stays UNKNOWN."""
    for order, times in enumerate(((5, 9), (9, 5))):
        tool = rig.add(
            f"put{order}",
            swallow_cancel(transient(after=times[0])),
            swallow_cancel(raises(ValueError, after=times[1])),
            timeout_s=LIMIT_S,
            **BY_KEY,
        )
        await _timed_out(rig, f"put{order}", budget=2)
        assert tool.attempts == 2
    await rig.at(30)
    for order in range(2):
        row = await rig.standing(f"put{order}", "k")
        assert (row.state, row.settled_by) == (RowState.UNKNOWN, None)


async def test_two_late_words_that_agree_settle(rig: Rig) -> None:
    """Both abandoned attempts turn out not to have run: only the second word settles."""
    rig.add(
        "put",
        swallow_cancel(transient(after=5)),
        swallow_cancel(transient(after=9)),
        timeout_s=LIMIT_S,
        **BY_KEY,
    )
    await _timed_out(rig, "put", budget=2)
    await rig.at(6)
    assert (await rig.standing("put", "k")).state is RowState.UNKNOWN
    await rig.at(12)
    assert (await rig.standing("put", "k")).state is RowState.NOT_RUN


async def test_an_earlier_executions_late_word_does_not_speak_for_the_next(rig: Rig) -> None:
    """A by_key call is sent again while its first attempt runs: that one's "not run" settles nothing."""
    rig.add(
        "put",
        swallow_cancel(transient(after=8)),
        swallow_cancel(raises(ValueError, after=2)),
        timeout_s=LIMIT_S,
        **BY_KEY,
    )
    await _timed_out(rig, "put", budget=1)
    await _timed_out(rig, "put", budget=1)
    await rig.at(20)
    row = await rig.standing("put", "k")
    assert (row.state, row.settled_by) == (RowState.UNKNOWN, None)


async def test_an_earlier_executions_late_result_settles_the_call(rig: Rig) -> None:
    """It is the same call with the same downstream key: DONE is DONE, also while it is being sent again."""
    rig.add("put", swallow_cancel(answer("first", after=0.5)), hang(), timeout_s=LIMIT_S, **BY_KEY)
    await _timed_out(rig, "put", budget=1)
    await rig.at(0.4)
    await _timed_out(rig, "put", budget=1)
    await rig.at(1)
    row = await rig.standing("put", "k")
    assert (row.state, row.result, row.settled_by) == (RowState.DONE, b'"first"', SettledBy.LATE_COMPLETION)


async def test_a_late_end_of_a_released_key_changes_nothing(rig: Rig) -> None:
    """The key was released and runs again when the old attempt ends: only the new one is recorded."""
    rig.add(
        "put", swallow_cancel(answer("old", after=1)), answer("new", after=2), timeout_s=LIMIT_S, **IDEMPOTENT
    )
    await _timed_out(rig, "put", budget=1)
    rig.change("put", timeout_s=10.0)
    reply = await rig.answered("put", "k")
    assert value_of(reply) == "new"
    row = await rig.standing("put", "k")
    assert (row.call_id, row.result, row.settled_by) == (reply.call_id, b'"new"', None)


async def test_an_unusable_late_answer_is_done(rig: Rig) -> None:
    """bad_output after the limit: it ran; the key replays the failure."""
    bad = AttemptEnd(
        kind=ErrorKind.BAD_OUTPUT, outcome=Outcome.DONE, message="too large", reason="RESULT_TOO_LARGE"
    )
    rig.add("mail", swallow_cancel(ends(bad, after=5, effect_at=5)), timeout_s=LIMIT_S)
    await _timed_out(rig, "mail")
    await rig.at(6)
    failure = await rig.failed("mail", "k")
    assert (failure.kind, failure.reason, failure.outcome) == (bad.kind, bad.reason, Outcome.DONE)


# -- nothing is lost by accident ---------------------------------------------------------------------------


async def test_work_that_nobody_holds_is_not_collected(rig: Rig) -> None:
    """The owner left and the collector runs now and then: the joiner gets the result (R021)."""
    rig.add("mail", answer("kept", after=0.5))
    owner = rig.start("mail", "k")
    await rig.at(0.001)
    joiner = rig.start("mail", "k")
    await rig.at(0.002)
    owner.cancel()
    del owner
    for step in range(600):
        await rig.at(0.003 + step / 1000)
        if step % 100 == 0:
            gc.collect()
    assert value_of(expect_answer(await joiner)) == "kept"


@keyed_or_not
async def test_an_abandoned_attempt_is_not_collected(rig: Rig, key: str | None) -> None:
    """It waits for a future that only it knows: the collector takes neither it nor its place (R021)."""
    woken: list[asyncio.Future[None]] = []
    tool = rig.add("mail", timeout_s=LIMIT_S)

    async def wait(request: AttemptRequest) -> AttemptEnd:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rig.loop.call_at(60.0, _wake, weakref.ref(future))
        await _deaf(future)
        woken.append(future)
        return AttemptEnd(kind=None, outcome=Outcome.DONE, result=b'"late"')

    tool.run = wait  # type: ignore[method-assign] # the scripted one would hold its task itself
    await _timed_out(rig, "mail", key)
    await rig.at(1)  # its cancel has come and gone: no step of it is due
    gc.collect()
    await rig.at(61)
    assert len(woken) == 1
    assert rig.slots("mail").abandoned == 0


def _wake(known: weakref.ref[asyncio.Future[None]]) -> None:
    future = known()
    if future is not None:
        future.set_result(None)


async def _deaf(future: asyncio.Future[None]) -> None:
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(future)


async def test_an_adapter_that_raises_is_a_failure_of_the_tool(rig: Rig) -> None:
    """`run` must not raise; when it does the call still ends, typed, and the loop's handler hears of it."""
    tool = rig.add("mail")

    async def broken(request: Any) -> AttemptEnd:
        raise KeyError("bug")

    tool.run = broken  # type: ignore[method-assign]
    failure = await rig.failed("mail", "k")
    assert (failure.kind, failure.outcome) == (ErrorKind.INTERNAL, Outcome.UNKNOWN)
    (complaint,) = rig.loop.take_exceptions()
    assert isinstance(complaint["exception"], KeyError)


@keyed_or_not
async def test_a_tool_that_cannot_even_start_fails_typed(rig: Rig, key: str | None) -> None:
    """`run` raises before it returns a coroutine: slot, permit and key come back."""
    tool = rig.add("mail", answer("next"))
    good = tool.run

    def broken(request: Any) -> Any:
        raise KeyError("bug")

    tool.run = broken  # type: ignore[method-assign]
    failure = await rig.failed("mail", key)
    assert (failure.kind, failure.outcome) == (ErrorKind.INTERNAL, Outcome.UNKNOWN)
    assert len(rig.loop.take_exceptions()) == 1
    tool.run = good  # type: ignore[method-assign]
    assert value_of(await rig.dispatch("mail", "other")) == "next"
