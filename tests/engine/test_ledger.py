"""What work leaves behind under its key, for how long, and what a later duplicate gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.errors import ErrorKind, Outcome, Source
from lineside_service.core.ledger import RowState
from lineside_service.core.tool import Idempotency
from tests.support.engine_rig import BY_KEY, IDEMPOTENT, SAFE, Rig, expect_answer, value_of
from tests.support.scripted_tool import Step, answer, ends, hang, raises, says_no, transient

pytestmark = pytest.mark.parametrize("virtual_loop", range(3), indirect=True)

CITY = b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'


async def _state(rig: Rig, tool: str = "mail", key: str = "k") -> RowState | None:
    row = await rig.row(tool, key)
    return None if row is None else row.state


# -- ran ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{}, IDEMPOTENT, BY_KEY, SAFE])
async def test_an_answer_is_replayed(rig: Rig, spec: dict[str, Any]) -> None:
    """REPLAYED with the first run's time, attempts and id; not run again, not charged (R053)."""
    tool = rig.add("mail", transient(), answer({"id": 7}), **spec)
    first = await rig.answered("mail", "k")
    await rig.at(30)
    again = await rig.answered("mail", "k", budget=0)
    assert (again.source, again.result, again.call_id) == (Source.REPLAYED, first.result, first.call_id)
    assert (
        (again.attempts, again.first_started_s)
        == (first.attempts, first.first_started_s)
        == (
            2,
            rig.loop.wall() - rig.loop.time(),
        )
    )
    assert tool.attempts == 2


async def test_a_tool_error_is_replayed(rig: Rig) -> None:
    """It ran and said no: that is its answer (R051)."""
    tool = rig.add("mail", says_no({"why": "closed"}))
    await rig.answered("mail", "k")
    again = await rig.answered("mail", "k")
    assert (again.source, again.tool_error, value_of(again)) == (Source.REPLAYED, True, {"why": "closed"})
    assert tool.attempts == 1


async def test_an_unusable_answer_is_replayed_as_the_failure_it_was(rig: Rig) -> None:
    """bad_output: it ran, outcome DONE, and is not run again (R053)."""
    bad = AttemptEnd(
        kind=ErrorKind.BAD_OUTPUT, outcome=Outcome.DONE, message="too large", reason="RESULT_TOO_LARGE"
    )
    tool = rig.add("mail", ends(bad, effect_at=0.0), **IDEMPOTENT)
    first = await rig.failed("mail", "k")
    assert (first.kind, first.outcome, first.attempts) == (ErrorKind.BAD_OUTPUT, Outcome.DONE, 1)
    again = await rig.failed("mail", "k")
    assert (again.kind, again.outcome, again.source) == (first.kind, first.outcome, Source.REPLAYED)
    assert (again.message, again.reason, again.call_id) == (first.message, first.reason, first.call_id)
    assert tool.attempts == 1


# -- did not run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [{}, IDEMPOTENT, BY_KEY, SAFE])
async def test_what_did_not_run_is_not_remembered(rig: Rig, spec: dict[str, Any]) -> None:
    """Every attempt provably not run: the key is released, the next call executes under a new id."""
    tool = rig.add("mail", transient(), transient(), transient(), answer(), **spec)
    first = await rig.failed("mail", "k")
    assert first.outcome is Outcome.NOT_RUN
    assert await _state(rig) is None
    again = await rig.answered("mail", "k")
    assert (again.source, again.attempts, tool.attempts) == (Source.EXECUTED, 1, 4)
    assert again.call_id != first.call_id


# -- unknown -----------------------------------------------------------------------------------------------

UNKNOWN_ENDS: list[tuple[str, Step]] = [
    ("timeout", hang(effect_at=0.1)),
    ("exception", raises(ValueError, effect_at=0.0)),
    ("cancelled itself", raises(asyncio.CancelledError, effect_at=0.0)),
]
unknown_ends = pytest.mark.parametrize("step", [s for _, s in UNKNOWN_ENDS], ids=[n for n, _ in UNKNOWN_ENDS])


@unknown_ends
async def test_unknown_and_not_idempotent_is_never_run_again(rig: Rig, step: Step) -> None:
    """UNKNOWN, counted, listed; duplicates get outcome_unknown, also weeks later; one effect (R029, R051)."""
    tool = rig.add("mail", step, timeout_s=1.0)
    first = await rig.failed("mail", "k")
    assert first.outcome is Outcome.UNKNOWN
    assert rig.ledger.settlements.unknown_count == 1
    for wait_s in (0.0, 100.0, 30 * 86_400.0):
        await rig.at(rig.loop.time() + wait_s)
        await rig.housekeeping.sweep()
        again = await rig.failed("mail", "k")
        assert (again.kind, again.outcome) == (ErrorKind.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
        assert (again.call_id, again.source) == (first.call_id, Source.REPLAYED)
    assert (tool.attempts, len(rig.effects)) == (1, 1)
    listed = await rig.calls.list("acme", state=RowState.UNKNOWN, tool=None, after="", limit=10)
    assert isinstance(listed, list)
    assert [view.row.call_id for view in listed] == [first.call_id]
    assert await rig.calls.list("other", state=RowState.UNKNOWN, tool=None, after="", limit=10) == []


@unknown_ends
async def test_unknown_and_idempotent_is_released(rig: Rig, step: Step) -> None:
    """Re-sending is safe: the next call executes with the same downstream key."""
    tool = rig.add("mail", step, answer(), timeout_s=1.0, **IDEMPOTENT)
    await rig.failed("mail", "k", budget=1)
    assert await _state(rig) is None
    await rig.answered("mail", "k")
    assert len({request.downstream_key for request in tool.requests}) == 1


@unknown_ends
async def test_by_key_executes_again_while_the_upstream_knows_the_key(rig: Rig, step: Step) -> None:
    """Until first send + key_ttl: executed with the same downstream key and the same call id."""
    tool = rig.add("mail", step, answer("again"), timeout_s=1.0, upstream_keys=100.0, **BY_KEY)
    first = await rig.failed("mail", "k", budget=1)
    row = await rig.standing("mail", "k")
    assert (row.state, row.first_send_s) == (RowState.UNKNOWN, rig.loop.wall() - rig.loop.time())
    await rig.at(99.9)
    again = await rig.answered("mail", "k")
    assert (value_of(again), again.call_id) == ("again", first.call_id)
    assert len({request.downstream_key for request in tool.requests}) == 1
    assert rig.ledger.settlements.unknown_count == 0
    assert len(rig.effects) == 1
    assert (await rig.standing("mail", "k")).ever_unknown


@pytest.mark.parametrize("late_s", [100.0, 100.1, 10_000.0])
async def test_by_key_is_unknown_once_the_upstream_has_forgotten(rig: Rig, late_s: float) -> None:
    """After first send + key_ttl: outcome_unknown, no attempt."""
    tool = rig.add("mail", hang(effect_at=0.1), timeout_s=1.0, **BY_KEY)
    await rig.failed("mail", "k", budget=1)
    await rig.at(late_s)
    assert (await rig.failed("mail", "k")).kind is ErrorKind.OUTCOME_UNKNOWN
    assert tool.attempts == 1


async def test_by_key_counts_from_the_first_send_of_all(rig: Rig) -> None:
    """Each execution ends unknown again; the time runs from the very first send, not from the latest."""
    tool = rig.add("mail", hang(effect_at=0.1), timeout_s=1.0, upstream_keys=100.0, **BY_KEY)
    for at in (0, 40, 80, 101):
        await rig.at(at)
        await rig.failed("mail", "k", budget=1)
    assert tool.attempts == 3
    assert len(rig.effects) == 1
    assert rig.ledger.settlements.unknown_count == 1


async def test_a_by_key_call_that_waits_too_long_for_a_slot_is_not_sent(rig: Rig) -> None:
    """It may execute when it arrives, but the slot comes after the key's time: outcome_unknown."""
    tool = rig.add("mail", hang(effect_at=0.1), answer(after=200), timeout_s=1.0, concurrency=1, **BY_KEY)
    first = await rig.failed("mail", "k", budget=1)
    before = await rig.standing("mail", "k")
    rig.change("mail", timeout_s=500.0)
    busy = rig.start("mail", timeout_s=500)
    await rig.at(50)
    failure = await rig.failed("mail", "k", timeout_s=500)
    assert (failure.kind, failure.reason_token) == (ErrorKind.OUTCOME_UNKNOWN, "KEY_TTL")
    assert (failure.outcome, failure.call_id) == (Outcome.UNKNOWN, first.call_id)
    assert rig.loop.time() == pytest.approx(100.0)
    assert (await rig.standing("mail", "k")).record == before.record
    assert rig.ledger.settlements.unknown_count == 1
    await busy
    assert tool.attempts == 2


async def test_a_refused_re_send_leaves_the_unknown_row_as_it_was(rig: Rig) -> None:
    """No slot before the deadline: UNKNOWN for this caller too, the row with its record untouched."""
    rig.add("mail", hang(effect_at=0.1), answer(after=90), timeout_s=1.0, concurrency=1, **BY_KEY)
    await rig.failed("mail", "k", budget=1)
    before = await rig.standing("mail", "k")
    rig.change("mail", timeout_s=500.0)
    busy = rig.start("mail", timeout_s=500)
    await rig.at(5)
    failure = await rig.failed("mail", "k", timeout_s=3)
    assert (failure.kind, failure.outcome) == (ErrorKind.TIMEOUT, Outcome.UNKNOWN)
    assert await rig.standing("mail", "k") == before
    await busy


@pytest.mark.parametrize("spec", [{"arguments": {}}, {"budget": 0}])
async def test_our_refusal_does_not_hide_an_unknown(rig: Rig, spec: dict[str, Any]) -> None:
    """A by_key call that may have run, repeated with what we refuse now: outcome_unknown, never "not run"."""
    tool = rig.add("mail", hang(effect_at=0.1), timeout_s=1.0, **BY_KEY)
    await rig.failed("mail", "k", budget=1)
    rig.change("mail", input_schema=CITY if "arguments" in spec else b'{"type":"object"}')
    failure = await rig.failed("mail", "k", **spec)
    assert (failure.kind, failure.outcome) == (ErrorKind.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
    assert tool.attempts == 1


# -- how long ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_s", "keep_s", "timeout_s", "expires"),
    [
        (1.0, 60.0, 2.0, 62.0),  # 60 s after its latest waiter's deadline
        (1.0, 60.0, 30.0, 90.0),
        (20.0, 300.0, 25.0, 320.0),  # the tool's own term, from the end
        (90.0, 60.0, 95.0, 155.0),  # longer than the term itself: it counts from the end (R050)
    ],
)
async def test_a_done_row_is_kept(
    rig: Rig, run_s: float, keep_s: float, timeout_s: float, expires: float
) -> None:
    """Until the later of its term after the END and 60 s past the latest waiter's deadline."""
    tool = rig.add("mail", answer(after=run_s), timeout_s=600.0, keep_done_s=keep_s)
    await rig.answered("mail", "k", timeout_s=timeout_s)
    row = await rig.standing("mail", "k")
    assert row.expires_s == pytest.approx(rig.loop.wall() - rig.loop.time() + expires)
    await rig.at(expires - 0.001)
    assert (await rig.answered("mail", "k")).source is Source.REPLAYED
    await rig.at(expires)
    again = rig.start("mail", "k", timeout_s=600)
    assert expect_answer(await again).source is Source.EXECUTED
    assert tool.attempts == 2


async def test_the_latest_joiners_deadline_counts(rig: Rig) -> None:
    """A joiner with more time keeps the answer for longer, even when it has left by the end."""
    rig.add("mail", answer(after=5))
    a, b = rig.start("mail", "k", timeout_s=10), rig.start("mail", "k", timeout_s=100)
    await rig.at(1)
    b.cancel()
    await a
    row = await rig.standing("mail", "k")
    assert row.expires_s == pytest.approx(rig.loop.wall() - rig.loop.time() + 160)


async def test_duplicates_of_a_long_call_join_it(rig: Rig) -> None:
    """90 s of work: duplicates at 5, 30, 61 and 89 s join, none runs beside it (R050)."""
    tool = rig.add("slow", answer(after=90), timeout_s=100.0)
    tasks = []
    for at in (0, 5, 30, 61, 89):
        await rig.at(at)
        tasks.append(rig.start("slow", "k", timeout_s=200))
    replies = [expect_answer(await task) for task in tasks]
    assert (tool.attempts, [r.source for r in replies].count(Source.JOINED)) == (1, 4)


async def test_expired_rows_leave(rig: Rig) -> None:
    """The sweep takes what has expired in batches, and only that."""
    rig.add("mail", answer())
    rig.add("odd", hang(), timeout_s=1.0)
    for number in range(450):
        await rig.answered("mail", f"k{number}", timeout_s=1)
    await rig.failed("odd", "unknown")
    await rig.at(100)
    await rig.answered("mail", "fresh", timeout_s=1)
    assert await rig.housekeeping.sweep() == 450
    assert await rig.store.inner.count(RowState.DONE) == 1
    assert await rig.store.inner.count(RowState.UNKNOWN) == 1


async def test_an_old_unknown_raises_an_alert_once_and_still_stands(rig: Rig) -> None:
    """At 7 days it is cut to scope, fingerprint and call id; it never expires by age."""
    tool = rig.add("mail", hang(), timeout_s=1.0)
    await rig.failed("mail", "k", arguments={"a": 1})
    for day in range(6, 60):
        await rig.at(day * 86_400.0)
        await rig.housekeeping.sweep()
    assert rig.housekeeping.alerts == 1
    row = await rig.standing("mail", "k")
    assert (row.state, dict(row.members), row.record) == (RowState.UNKNOWN, {}, b"{}")
    assert (await rig.failed("mail", "k", arguments={"a": 1})).kind is ErrorKind.OUTCOME_UNKNOWN
    assert (await rig.failed("mail", "k", arguments={"a": 2})).kind is ErrorKind.KEY_REUSED
    assert tool.attempts == 1


async def test_an_expired_row_takes_other_arguments(rig: Rig) -> None:
    """The key is free again, swept or not."""
    rig.add("mail", answer())
    await rig.answered("mail", "k", arguments={"a": 1}, timeout_s=1)
    await rig.at(100)
    assert (await rig.answered("mail", "k", arguments={"a": 2})).source is Source.EXECUTED


# -- the tool has changed since ----------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["removed", "disabled"])
async def test_a_removed_tool_still_replays(rig: Rig, change: str) -> None:
    """Replay, join and conflict work without the tool; a new key is not_found."""
    tool = rig.add("mail", answer(1), answer(2, after=10))
    await rig.answered("mail", "k")
    running = rig.start("mail", "r")
    await rig.at(1)
    if change == "removed":
        rig.remove("mail")
    else:
        rig.change("mail", enabled=False)
    assert (await rig.answered("mail", "k")).source is Source.REPLAYED
    assert (await rig.failed("mail", "k", arguments={"x": 1})).kind is ErrorKind.KEY_REUSED
    assert (await rig.answered("mail", "r")).source is Source.JOINED
    assert (await rig.failed("mail", "new")).kind is ErrorKind.NOT_FOUND
    await running
    assert tool.attempts == 2


async def test_a_changed_schema_still_replays(rig: Rig) -> None:
    """Arguments that no longer fit are refused only where no row answers."""
    tool = rig.add("mail", answer(1))
    await rig.answered("mail", "k")
    rig.change("mail", input_schema=CITY)
    assert (await rig.answered("mail", "k")).source is Source.REPLAYED
    assert (await rig.failed("mail", "new")).kind is ErrorKind.SCHEMA
    assert tool.attempts == 1


async def test_a_hidden_tool_does_not_replay(rig: Rig) -> None:
    """Hidden from this tenant now, or removed after it was hidden: always not_found."""
    rig.add("mail", answer(1))
    await rig.answered("mail", "k")
    rig.change("mail", tenants=frozenset({"other"}))
    assert (await rig.failed("mail", "k")).kind is ErrorKind.NOT_FOUND
    rig.remove("mail")
    assert (await rig.failed("mail", "k")).kind is ErrorKind.NOT_FOUND


async def test_a_running_call_keeps_its_snapshot_through_a_reload(rig: Rig) -> None:
    """Its timeout and its retry rules are those it began with; slots and breaker go on by name."""
    tool = rig.add("mail", hang(), timeout_s=5.0, concurrency=3)
    task = rig.start("mail", "k")
    await rig.at(1)
    slots = rig.slots("mail")
    rig.change("mail", timeout_s=50.0, concurrency=1, idempotency=Idempotency.YES)
    await rig.at(1.1)
    assert rig.slots("mail") is slots
    assert (slots.concurrency, slots.running) == (1, 1)
    await task
    assert rig.loop.time() == pytest.approx(5.0, abs=0.02)
    assert (tool.attempts, await _state(rig)) == (1, RowState.UNKNOWN)


async def test_a_full_tenant_is_refused_new_keys(rig: Rig) -> None:
    """overloaded, NOT_RUN, before any attempt; keys it has still replay; other tenants go on."""
    tool = rig.add("mail", answer("x" * 200_000))
    rig.store.inner._bytes._limit = 300_000
    await rig.answered("mail", "a")
    await rig.answered("mail", "b")
    failure = await rig.failed("mail", "c")
    assert (failure.kind, failure.reason_token) == (ErrorKind.OVERLOADED, "TENANT_STORE_FULL")
    assert (failure.outcome, tool.attempts) == (Outcome.NOT_RUN, 2)
    assert (await rig.answered("mail", "a")).source is Source.REPLAYED
    await rig.answered("mail", "c", tenant="other")
