"""A store that fails: attempts that must not start do not, and ends that must be written are."""

from __future__ import annotations

from typing import Any

import pytest

from lineside_service.core.errors import ErrorKind, Outcome, Source
from lineside_service.core.ledger import RowState, SettledBy
from lineside_service.ports import StoreUnavailable
from tests.support.engine_rig import BY_KEY, IDEMPOTENT, SAFE, Rig, expect_answer, expect_failure, value_of
from tests.support.scripted_tool import answer, hang, raises, swallow_cancel, transient

pytestmark = pytest.mark.parametrize("virtual_loop", range(3), indirect=True)


@pytest.mark.parametrize("operation", ["find", "claim", "save"])
async def test_no_attempt_without_the_store(rig: Rig, operation: Any) -> None:
    """A look-up, claim or intent that fails: unavailable at once, NOT_RUN, with a hint, nothing started."""
    tool = rig.add("mail", answer())
    rig.store.fail[operation] = 1
    failure = await rig.failed("mail", "k")
    assert (failure.kind, failure.reason_token) == (ErrorKind.UNAVAILABLE, "STORE_UNAVAILABLE")
    assert (failure.outcome, failure.attempts, tool.attempts) == (Outcome.NOT_RUN, 0, 0)
    assert failure.pushback_safe
    assert failure.retry_after_s is not None
    assert rig.loop.time() == 0.0
    await rig.answered("mail", "k")
    assert await rig.row("mail", "k") is not None


async def test_a_store_that_hangs_holds_no_caller_beyond_its_deadline(rig: Rig) -> None:
    """The look-up, the claim and the intent take a minute: the caller is answered in time, nothing starts."""
    tool = rig.add("mail", answer())
    for operation in ("find", "claim", "save"):
        rig.store.delay_s = {operation: 60.0}
        before = rig.loop.time()
        failure = await rig.failed("mail", operation, timeout_s=1)
        assert failure.kind is ErrorKind.TIMEOUT
        assert before + 1 <= rig.loop.time() <= before + 1.02
    await rig.at(300)
    assert tool.attempts == 0


async def test_a_failed_intent_is_told_at_once_even_if_the_release_fails_too(rig: Rig) -> None:
    """The store is gone altogether: the caller does not wait for the key to be given back."""
    tool = rig.add("mail", answer())
    rig.store.fail.update(save=-1, release=-1)
    failure = await rig.failed("mail", "k", timeout_s=60)
    assert (failure.kind, failure.outcome, rig.loop.time()) == (ErrorKind.UNAVAILABLE, Outcome.NOT_RUN, 0.0)
    assert rig.ledger.unwritten == 1
    again = await rig.failed("mail", "k", timeout_s=60)
    assert (again.kind, rig.loop.time()) == (ErrorKind.UNAVAILABLE, 0.0)
    rig.store.fail.clear()
    await rig.at(10)
    assert rig.ledger.unwritten == 0
    await rig.answered("mail", "k")
    assert tool.attempts == 1


async def test_keyless_calls_and_safe_tools_need_no_intent(rig: Rig) -> None:
    """With a store that cannot save, a keyless call runs; a keyed `safe` one runs but is not acknowledged."""
    rig.add("mail", answer())
    rig.add("read", answer(), **SAFE)
    rig.store.fail["save"] = -1
    await rig.answered("mail")
    failure = await rig.failed("read", "k", timeout_s=5)
    assert (failure.kind, failure.outcome) == (ErrorKind.UNAVAILABLE, Outcome.DONE)
    rig.store.fail.clear()


async def test_a_finish_is_retried_until_it_is_written(rig: Rig) -> None:
    """The answer waits for its record; `unwritten` tells, and is 0 again (no OK without a durable record)."""
    tool = rig.add("mail", answer(7, after=1))
    task = rig.start("mail", "k")
    await rig.at(0.5)
    rig.store.fail["save"] = 5
    await rig.at(1.02)
    assert rig.ledger.unwritten == 1
    reply = expect_answer(await task)
    assert (value_of(reply), tool.attempts, rig.ledger.unwritten) == (7, 1, 0)
    assert rig.loop.time() == pytest.approx(1 + 0.05 + 0.1 + 0.2 + 0.4 + 0.8)
    assert (await rig.standing("mail", "k")).state is RowState.DONE


async def test_waiters_whose_deadline_comes_first_learn_that_it_ran(rig: Rig) -> None:
    """unavailable, outcome DONE, a hint and the call's id; the same key gets the answer later, one effect."""
    tool = rig.add("mail", answer(7, after=1))
    a, b = rig.start("mail", "k", timeout_s=3), rig.start("mail", "k", timeout_s=30)
    await rig.at(0.5)
    rig.store.fail["save"] = -1
    early = expect_failure(await a)
    assert (early.kind, early.outcome, early.attempts) == (ErrorKind.UNAVAILABLE, Outcome.DONE, 1)
    assert 3.0 <= rig.loop.time() <= 3.02
    assert early.retry_after_s is not None
    late = rig.start("mail", "k", timeout_s=1)
    assert expect_failure(await late).outcome is Outcome.DONE
    await rig.at(10)
    rig.store.fail.clear()
    reply = expect_answer(await b)
    assert (value_of(reply), reply.call_id, tool.attempts) == (7, early.call_id, 1)
    assert (await rig.answered("mail", "k")).source is Source.REPLAYED


@pytest.mark.parametrize(
    ("step", "spec", "outcome", "state"),
    [
        (hang(), {}, Outcome.UNKNOWN, RowState.UNKNOWN),
        (raises(ValueError, after=0.5), {}, Outcome.UNKNOWN, RowState.UNKNOWN),
        (transient(after=0.5), {}, Outcome.NOT_RUN, None),
        (hang(), IDEMPOTENT, Outcome.UNKNOWN, None),
    ],
)
async def test_a_failure_is_told_before_its_record_is_written(
    rig: Rig, step: Any, spec: dict[str, Any], outcome: Outcome, state: RowState | None
) -> None:
    """It needs no durable record: callers have it at once, also those who come while the store fails."""
    tool = rig.add("mail", step, timeout_s=1.0, **spec)
    task = rig.start("mail", "k", budget=1)
    await rig.at(0.2)
    rig.store.fail.update(save=-1, release=-1)
    failure = expect_failure(await task)
    assert rig.loop.time() <= 1.01
    assert failure.outcome is outcome
    await rig.at(2)
    joiner = await rig.failed("mail", "k")
    assert (joiner.kind, joiner.outcome, rig.loop.time()) == (failure.kind, outcome, 2.0)
    rig.store.fail.clear()
    await rig.at(20)
    assert rig.ledger.unwritten == 0
    row = await rig.row("mail", "k")
    assert (None if row is None else row.state) is state
    assert tool.attempts == 1


async def test_the_map_is_asked_before_the_store(rig: Rig) -> None:
    """While a key is worked on, joining it needs no store at all."""
    rig.add("mail", answer(7, after=1))
    task = rig.start("mail", "k")
    await rig.at(0.5)
    rig.store.fail["find"] = -1
    joined = await rig.answered("mail", "k")
    assert joined.source is Source.JOINED
    assert (await rig.failed("mail", "other")).kind is ErrorKind.UNAVAILABLE
    await task


async def test_a_late_completion_is_not_lost_with_the_store(rig: Rig) -> None:
    """The store fails when the abandoned attempt ends: its word is kept and written afterwards."""
    rig.add("mail", swallow_cancel(answer("late", after=5)), timeout_s=1.0)
    assert (await rig.failed("mail", "k")).outcome is Outcome.UNKNOWN
    rig.store.fail.update(find=-1, save=-1)
    await rig.at(20)
    assert rig.ledger.unwritten == 1
    rig.store.fail.clear()
    await rig.at(40)
    row = await rig.standing("mail", "k")
    assert (row.state, row.settled_by, rig.ledger.unwritten) == (RowState.DONE, SettledBy.LATE_COMPLETION, 0)


async def test_a_late_completion_that_comes_before_its_record(rig: Rig) -> None:
    """The attempt ends late while its call's UNKNOWN is still being written: written first, then settled."""
    rig.add("mail", swallow_cancel(answer("late", after=2)), timeout_s=1.0)
    task = rig.start("mail", "k")
    await rig.at(0.5)
    rig.store.fail["save"] = -1
    failure = expect_failure(await task)
    assert (failure.kind, failure.outcome) == (ErrorKind.TIMEOUT, Outcome.UNKNOWN)
    await rig.at(5)
    rig.store.fail.clear()
    await rig.at(20)
    row = await rig.standing("mail", "k")
    assert (row.state, row.result, row.settled_by) == (RowState.DONE, b'"late"', SettledBy.LATE_COMPLETION)
    assert row.failure_kind is None
    assert rig.ledger.settlements.unknown_count == 0


async def test_a_late_completion_on_a_slow_store(rig: Rig) -> None:
    """The write of UNKNOWN takes longer than the tool: the settlement follows it."""
    rig.add("mail", swallow_cancel(answer("late", after=1.2)), timeout_s=1.0)
    rig.store.delay_s = {"save": 1.0}
    failure = await rig.failed("mail", "k")
    assert failure.outcome is Outcome.UNKNOWN
    await rig.at(20)
    assert (await rig.standing("mail", "k")).settled_by is SettledBy.LATE_COMPLETION


@pytest.mark.parametrize("operation", ["claim", "save"])
async def test_a_by_key_call_stays_unknown_when_its_re_send_cannot_start(rig: Rig, operation: Any) -> None:
    """The claim or intent of the re-send fails: unavailable, outcome UNKNOWN; the row and the count stand."""
    rig.add("put", hang(effect_at=0.1), timeout_s=1.0, **BY_KEY)
    await rig.failed("put", "k", budget=1)
    rig.store.fail[operation] = 1
    failure = await rig.failed("put", "k", budget=1)
    assert (failure.kind, failure.outcome) == (ErrorKind.UNAVAILABLE, Outcome.UNKNOWN)
    assert (await rig.standing("put", "k")).state is RowState.UNKNOWN
    assert rig.ledger.settlements.unknown_count == 1


async def test_looking_at_calls_needs_the_store(rig: Rig) -> None:
    """GetCall, ListCalls and SettleCall say unavailable when it fails, except for what runs here."""
    rig.add("mail", hang(), timeout_s=1.0)
    await rig.failed("mail", "k")
    row = await rig.standing("mail", "k")
    rig.store.fail.update(by_call_id=-1, find=-1, list=-1)
    found = [
        await rig.calls.get("acme", row.call_id),
        await rig.calls.get_by_key("acme", "mail", "k"),
        await rig.calls.list("acme", state=None, tool=None, after="", limit=10),
    ]
    assert [expect_failure(failure).kind for failure in found] == [ErrorKind.UNAVAILABLE] * 3  # type: ignore[arg-type]
    rig.store.fail.clear()


async def test_recovery_needs_the_store(rig: Rig) -> None:
    """A service whose store does not answer at start-up says so instead of starting."""
    rig.store.fail["list"] = 1
    with pytest.raises(StoreUnavailable):
        await rig.ledger.settlements.recover()


async def test_a_sweep_that_fails_is_tried_again_later(rig: Rig) -> None:
    """It logs and deletes nothing; the next one does."""
    rig.add("mail", answer())
    await rig.answered("mail", "k", timeout_s=1)
    await rig.at(200)
    rig.store.fail["sweep"] = 1
    assert await rig.housekeeping.sweep() == 0
    assert "ledger.sweep_failed" in rig.log.events()
    assert await rig.housekeeping.sweep() == 1
