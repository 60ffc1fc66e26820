"""The order of the road: what ends a call, and what it has spent by then."""

from __future__ import annotations

from typing import Any

import pytest

from lineside_service.core.breaker import BreakerRules
from lineside_service.core.errors import ErrorKind, Outcome, Source
from lineside_service.core.ledger import RowState
from lineside_service.engine.calls import CallView
from tests.support.engine_rig import BY_KEY, SAFE, Rig, expect_failure, value_of
from tests.support.scripted_tool import Turn, answer, hang, says_no, swallow_cancel, transient

pytestmark = pytest.mark.parametrize("virtual_loop", range(3), indirect=True)

CITY = b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
TOUCHY = BreakerRules(min_attempts=2, failure_ratio=0.5, open_s=5.0)


async def _open_breaker(rig: Rig, tool: str) -> None:
    for _ in range(2):
        await rig.failed(tool, budget=1)


# -- the tool and its arguments ----------------------------------------------------------------------------


async def test_an_unknown_tool_is_not_found_and_a_near_name_is_offered(rig: Rig) -> None:
    """not_found, attempts 0, nothing asked of the store."""
    rig.add("send_mail")
    failure = await rig.failed("send_mial", "k")
    assert (failure.kind, failure.outcome, failure.attempts) == (ErrorKind.NOT_FOUND, Outcome.NOT_RUN, 0)
    keyless = await rig.failed("send_mial")
    assert "send_mail" in keyless.message


@pytest.mark.parametrize("spec", [{"enabled": False}, {"tenants": frozenset({"other"})}])
@pytest.mark.parametrize("key", [None, "k"])
async def test_a_hidden_or_disabled_tool_looks_like_no_tool(
    rig: Rig, spec: dict[str, Any], key: str | None
) -> None:
    """The answer is the one for a name that does not exist, and no attempt starts."""
    tool = rig.add("secret", **spec)
    failure = await rig.failed("secret", key)
    nothing = await rig.failed("absent", key)
    assert (failure.kind, failure.reason_token) == (nothing.kind, nothing.reason_token)
    assert failure.message.replace("secret", "absent") == nothing.message
    assert tool.attempts == 0


async def test_arguments_are_checked_before_anything_is_spent(rig: Rig) -> None:
    """Refused with a JSON Pointer, although the budget is 0; nothing claimed, no attempt."""
    tool = rig.add("weather", input_schema=CITY)
    failure = await rig.failed("weather", arguments={"city": 7}, budget=0)
    assert failure.kind is ErrorKind.SCHEMA
    assert [violation.field for violation in failure.violations] == ["/city"]
    keyed = await rig.failed("weather", "k", arguments={})
    assert keyed.kind is ErrorKind.SCHEMA
    assert tool.attempts == 0
    assert ("claim", "claimed") not in rig.store.done


@pytest.mark.parametrize("key", [None, "k"])
async def test_validate_only_ends_at_the_schema(rig: Rig, key: str | None) -> None:
    """VALIDATED with attempts 0, even with no budget; bad arguments are still refused; nothing is stored."""
    tool = rig.add("weather", input_schema=CITY)
    good = await rig.answered("weather", key, arguments={"city": "x"}, validate_only=True, budget=0)
    assert (good.source, good.attempts, good.call_id) == (Source.VALIDATED, 0, "")
    bad = await rig.failed("weather", key, validate_only=True)
    assert bad.kind is ErrorKind.SCHEMA
    assert (tool.attempts, rig.store.done) == (0, [])


async def test_a_tool_that_wants_keys_refuses_calls_without(rig: Rig) -> None:
    """Refused with the proto path of the key; with a key it runs."""
    rig.add("pay", key_required=True)
    failure = await rig.failed("pay")
    assert (failure.kind, failure.violations[0].field) == (ErrorKind.SCHEMA, "call.idempotency_key")
    await rig.answered("pay", "k")


async def test_a_channels_own_retry_of_a_keyless_call_is_not_run_again(rig: Rig) -> None:
    """outcome_unknown, attempts 0, unless the tool is idempotent or the call has a key."""
    tool = rig.add("pay")
    rig.add("read", **SAFE)
    failure = await rig.failed("pay", previous_rpc_attempts=1)
    assert (failure.kind, failure.outcome) == (ErrorKind.OUTCOME_UNKNOWN, Outcome.UNKNOWN)
    assert (failure.attempts, tool.attempts) == (0, 0)
    await rig.answered("read", previous_rpc_attempts=1)
    await rig.answered("pay", "k", previous_rpc_attempts=1)


# -- look-up, budget, claim --------------------------------------------------------------------------------


async def test_replay_join_and_conflict_spend_nothing(rig: Rig) -> None:
    """With budget 0 and the breaker open a known key still replays, joins and is refused as reused."""
    rig.add("mail", answer(1), answer(2, after=10), transient(), breaker=TOUCHY)
    await rig.answered("mail", "done")
    running = rig.start("mail", "running")
    await rig.at(1)
    await _open_breaker(rig, "mail")
    assert (await rig.failed("mail", "new")).kind is ErrorKind.CIRCUIT_OPEN
    replay = await rig.answered("mail", "done", budget=0)
    assert (replay.source, value_of(replay)) == (Source.REPLAYED, 1)
    conflict = await rig.failed("mail", "done", arguments={"x": 1}, budget=0)
    assert conflict.kind is ErrorKind.KEY_REUSED
    joined = await rig.answered("mail", "running", budget=0)
    assert (joined.source, value_of(joined)) == (Source.JOINED, 2)
    await running


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("budget", [0, -1])
async def test_no_budget_no_attempt(rig: Rig, key: str | None, budget: int) -> None:
    """budget_exceeded with attempts 0 before anything is claimed."""
    tool = rig.add("mail")
    failure = await rig.failed("mail", key, budget=budget)
    assert (failure.kind, failure.attempts) == (ErrorKind.BUDGET_EXCEEDED, 0)
    assert failure.outcome is Outcome.NOT_RUN
    assert tool.attempts == 0
    assert ("claim", "claimed") not in rig.store.done


async def test_the_key_is_claimed_before_the_wait_for_a_slot(rig: Rig) -> None:
    """While the owner waits for a slot, a duplicate joins it and takes no second place in the list (R041)."""
    tool = rig.add("mail", answer(after=5), concurrency=1)
    busy = rig.start("mail")
    await rig.at(1)
    first, second = rig.start("mail", "k"), rig.start("mail", "k")
    await rig.at(2)
    assert ("claim", "claimed") in rig.store.done
    assert rig.slots("mail").waiting == 1
    replies = [await task for task in (busy, first, second)]
    assert {reply.source for reply in replies} == {Source.EXECUTED, Source.JOINED}
    assert tool.attempts == 2


async def test_an_open_breaker_refuses_before_the_wait_for_a_slot(rig: Rig) -> None:
    """circuit_open at once with the time to half-open, although no slot is free; the key is free."""
    tool = rig.add("mail", answer(after=20), transient(), concurrency=2, breaker=TOUCHY)
    busy = rig.start("mail")
    await rig.at(1)
    await _open_breaker(rig, "mail")
    tool.script = [answer()]
    rig.change("mail", concurrency=1)
    failure = await rig.failed("mail", "k")
    assert (failure.kind, failure.attempts, rig.loop.time()) == (ErrorKind.CIRCUIT_OPEN, 0, 1.0)
    assert failure.retry_after_s == pytest.approx(5.0)
    assert await rig.row("mail", "k") is None
    await busy


# -- waiting for a slot ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "k"])
async def test_the_wait_for_a_slot_ends_at_the_deadline(rig: Rig, key: str | None) -> None:
    """timeout, attempts 0, NOT_RUN, at the caller's deadline and not when the slot is free."""
    rig.add("slow", answer(after=10), concurrency=1)
    busy = rig.start("slow")
    await rig.at(1)
    failure = await rig.failed("slow", key, timeout_s=2)
    assert (failure.kind, failure.reason_token) == (ErrorKind.TIMEOUT, "DEADLINE_IN_QUEUE")
    assert (failure.attempts, failure.outcome) == (0, Outcome.NOT_RUN)
    assert 3.0 <= rig.loop.time() <= 3.01
    await busy


async def test_a_full_list_refuses_the_newest_of_the_longest_queue(rig: Rig) -> None:
    """64 wait: the 65th of the same tenant is refused with a hint, another tenant's takes its place."""
    rig.add("slow", answer(after=1), concurrency=1)
    waiting = [rig.start("slow", timeout_s=600)]
    await rig.at(0.1)
    waiting += [rig.start("slow", timeout_s=600) for _ in range(64)]
    await rig.at(0.2)
    refused = await rig.failed("slow", "k", timeout_s=600)
    assert (refused.kind, refused.attempts, rig.loop.time()) == (ErrorKind.OVERLOADED, 0, 0.2)
    assert refused.retry_after_s is not None
    assert refused.retry_after_s > 0
    assert await rig.row("slow", "k") is None
    other = rig.start("slow", tenant="other", timeout_s=600)
    await rig.at(0.3)
    done = [task for task in waiting if task.done()]
    assert [expect_failure(task.result()).kind for task in done] == [ErrorKind.OVERLOADED]
    await other
    assert rig.loop.time() < 4, "round robin: the other tenant is second in line"
    for task in waiting:
        await task


async def test_tenants_take_turns_at_the_slots(rig: Rig) -> None:
    """Five waiters of one tenant and two of another: a b a b a a a, first come first served inside each."""
    tool = rig.add("slow", answer(after=1), concurrency=1)
    tasks = [rig.start("slow")]
    for tenant in ("a", "a", "a", "a", "a", "b", "b"):
        await rig.at(rig.loop.time() + 0.01)
        tasks.append(rig.start("slow", tenant=tenant))
    for task in tasks:
        await task
    assert [request.tenant for request in tool.requests[1:]] == ["a", "b", "a", "b", "a", "a", "a"]


async def test_patient_items_wait_in_their_stream(rig: Rig) -> None:
    """A hundred batch items over a full list: none refused, streams take turns, all end."""
    rig.add("slow", answer(after=0.1), concurrency=2)
    tasks = [rig.start("slow", patient=True, stream=number % 2, timeout_s=600) for number in range(100)]
    await rig.at(0.05)
    slots = rig.slots("slow")
    assert (slots.running, slots.waiting, slots.overflow) == (2, 64, 34)
    for task in tasks:
        assert value_of(await task) == "ok"
    assert rig.loop.time() == pytest.approx(5.0)


async def test_stuck_attempts_refuse_that_tool_at_once(rig: Rig) -> None:
    """When abandoned attempts hold every slot, new calls get STUCK; other tools run; then it heals (R023)."""
    rig.add("deaf", swallow_cancel(answer(after=60)), concurrency=1, timeout_s=0.1)
    rig.add("fine")
    timeouts = [await rig.failed("deaf"), await rig.failed("deaf")]
    assert {failure.kind for failure in timeouts} == {ErrorKind.TIMEOUT}
    refused = await rig.failed("deaf")
    assert (refused.kind, refused.reason_token) == (ErrorKind.OVERLOADED, "STUCK")
    assert (refused.attempts, refused.outcome) == (0, Outcome.NOT_RUN)
    await rig.answered("fine")
    await rig.at(61)
    assert rig.slots("deaf").usable == 1


async def test_waiting_calls_learn_that_the_tool_is_stuck(rig: Rig) -> None:
    """The last slot is abandoned while calls wait: they are refused at that moment, not at their deadline."""
    rig.add("deaf", swallow_cancel(answer(after=60)), concurrency=1, timeout_s=1.0)
    await rig.failed("deaf")
    last = rig.start("deaf")
    await rig.at(1.5)
    waiting = rig.start("deaf", "k", timeout_s=50)
    refused = expect_failure(await waiting)
    assert (refused.reason_token, rig.loop.time()) == ("STUCK", 2.0)
    await last


# -- with the slot in hand ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "found"), [({}, RowState.RUNNING), (BY_KEY, RowState.RUNNING), (SAFE, None)]
)
async def test_the_intent_is_durable_before_an_attempt_that_is_not_safe(
    rig: Rig, spec: dict[str, Any], found: RowState | None
) -> None:
    """When the tool's first line runs, the store holds a RUNNING row; a `safe` tool needs none."""
    seen: list[RowState | None] = []

    async def look(turn: Turn) -> str:
        row = await rig.row("mail", "k")
        seen.append(None if row is None else row.state)
        return "ok"

    rig.add("mail", look, **spec)
    rig.store.delay_s = {"save": 1.0, "claim": 1.0}
    await rig.answered("mail", "k")
    assert seen == [found]


async def test_the_intent_is_written_once(rig: Rig) -> None:
    """Three attempts, one durable write before them and one after."""
    rig.add("mail", transient(), transient(), answer())
    await rig.answered("mail", "k")
    assert [detail for operation, detail in rig.store.done if operation == "save"] == ["running", "done"]


@pytest.mark.parametrize(("left_s", "attempts"), [(0.0049, 0), (0.0051, 1)])
async def test_no_attempt_starts_with_less_than_5_ms(rig: Rig, left_s: float, attempts: int) -> None:
    """The look after the intent's write: too little left is a timeout with nothing started (R031)."""
    tool = rig.add("mail", answer())
    rig.store.delay_s = {"save": 1.0}
    reply = await rig.dispatch("mail", "k", timeout_s=1.0 + left_s)
    assert tool.attempts == attempts
    if not attempts:
        failure = expect_failure(reply)
        assert (failure.kind, failure.outcome) == (ErrorKind.TIMEOUT, Outcome.NOT_RUN)


async def test_a_caller_who_left_during_the_intent_starts_nothing(rig: Rig) -> None:
    """The row that was written for it goes again."""
    tool = rig.add("mail", answer())
    rig.store.delay_s = {"save": 1.0}
    task = rig.start("mail", "k")
    await rig.at(0.6)
    task.cancel()
    await rig.at(3)
    assert (tool.attempts, await rig.row("mail", "k")) == (0, None)


@pytest.mark.parametrize("late_s", [0.0, 5.0])
@pytest.mark.parametrize("key", [None, "k"])
async def test_an_expired_call_never_reaches_the_tool(rig: Rig, late_s: float, key: str | None) -> None:
    """Its deadline passed before it arrived: timeout, attempts 0 (R031)."""
    tool = rig.add("mail")
    failure = await rig.failed("mail", key, timeout_s=-late_s)
    assert (failure.kind, failure.attempts, tool.attempts) == (ErrorKind.TIMEOUT, 0, 0)


# -- answers and records -----------------------------------------------------------------------------------


async def test_an_answer_says_what_it_cost(rig: Rig) -> None:
    """Queue and run time, attempts, the first attempt's wall clock, and one call id for all of it."""
    rig.add("slow", answer(after=2), concurrency=1)
    busy = rig.start("slow")
    await rig.at(1)
    reply = await rig.answered("slow")
    assert (reply.queue_s, reply.run_s, reply.attempts) == (1.0, 2.0, 1)
    assert reply.first_started_s == rig.loop.wall() - 2.0
    await busy


async def test_a_tool_that_says_no_is_an_answer(rig: Rig) -> None:
    """tool_error, not a failure."""
    rig.add("mail", says_no({"why": "closed"}))
    reply = await rig.answered("mail")
    assert (reply.tool_error, value_of(reply)) == (True, {"why": "closed"})


async def test_the_record_is_visible_while_a_call_runs_and_as_long_as_it_is_kept(rig: Rig) -> None:
    """GetCall shows each attempt and each decision with its numbers; other tenants see nothing."""
    rig.add("mail", transient(retry_after_s=1.0), transient(), answer(after=5))
    task = rig.start("mail", "k")
    await rig.at(3)
    view = await rig.calls.get_by_key("acme", "mail", "k")
    assert isinstance(view, CallView)
    assert (view.row.state, view.row.attempts, view.attempt_in_flight) == (RowState.RUNNING, 3, True)
    assert view.row.record.count(b'"choice":"retry"') == 2
    assert b'"SERVER_HINT"' in view.row.record
    reply = await task
    kept = await rig.calls.get("acme", reply.call_id)
    assert isinstance(kept, CallView)
    assert (kept.row.state, kept.attempt_in_flight) == (RowState.DONE, False)
    assert kept.row.record.count(b'"number"') == 3
    assert expect_failure_kind(await rig.calls.get("other", reply.call_id)) is ErrorKind.NOT_FOUND
    assert expect_failure_kind(await rig.calls.get_by_key("other", "mail", "k")) is ErrorKind.NOT_FOUND


async def test_a_keyless_call_is_known_only_while_it_runs(rig: Rig) -> None:
    """GetCall finds it in flight, for its tenant, and not afterwards; nothing is stored."""
    rig.add("mail", answer(after=1))
    task = rig.start("mail")
    await rig.at(0.5)
    (call_id,) = rig.dispatcher._alone
    view = await rig.calls.get("acme", call_id)
    assert isinstance(view, CallView)
    assert (view.row.id, view.row.scope.key, view.row.state) == (b"", "", RowState.RUNNING)
    assert view.attempt_in_flight
    assert expect_failure_kind(await rig.calls.get("other", call_id)) is ErrorKind.NOT_FOUND
    await task
    assert expect_failure_kind(await rig.calls.get("acme", call_id)) is ErrorKind.NOT_FOUND
    assert await rig.store.inner.count(RowState.DONE) == 0


async def test_a_refusal_keeps_the_numbers_that_core_compared(rig: Rig) -> None:
    """The breaker's record, with its counts, stands on the call that it stopped after a first attempt."""
    rig.add("mail", hang(), timeout_s=1.0, breaker=TOUCHY, **BY_KEY)
    await rig.failed("mail", "other")
    rig.state("mail").breaker.adopt(TOUCHY)
    view = await rig.calls.get_by_key("acme", "mail", "other")
    assert isinstance(view, CallView)
    assert view.row.state is RowState.UNKNOWN
    assert b'"CIRCUIT_OPEN"' in view.row.record
    assert b'"failures":' in view.row.record


def expect_failure_kind(found: object) -> ErrorKind:
    """The kind of a failure of GetCall."""
    return expect_failure(found).kind  # type: ignore[arg-type]
