"""Attempt after attempt: when the next one comes, and what ends the call."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.breaker import BreakerRules
from lineside_service.core.errors import ErrorKind, Outcome, Source
from lineside_service.core.retry import RetryRules
from tests.support.engine_rig import AMPLE, BY_KEY, IDEMPOTENT, SAFE, Rig, expect_answer, expect_failure
from tests.support.scripted_tool import answer, ends, hang, raises, transient

pytestmark = pytest.mark.parametrize("virtual_loop", range(3), indirect=True)

keyed_or_not = pytest.mark.parametrize("key", [None, "k"])
RESET = AttemptEnd(kind=ErrorKind.TRANSIENT, outcome=Outcome.UNKNOWN, message="reset after sending")


def _gaps(started_s: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(started_s)]


@keyed_or_not
async def test_the_local_preset_waits_longer_each_time_and_by_chance(rig: Rig, key: str | None) -> None:
    """0.1 x 4^(n-1) x (1 + u/2) before the n-th retry, u drawn for each decision."""
    rules = RetryRules(max_attempts=5, budget_ratio=100)
    tool = rig.add("mail", transient(), transient(), transient(), transient(), answer(), retry=rules)
    reply = await rig.answered("mail", key)
    assert reply.attempts == 5
    for n, gap in enumerate(_gaps(tool.started_s)):
        assert 0.1 * 4**n <= gap < 0.15 * 4**n
    assert len({gap / 4**n for n, gap in enumerate(_gaps(tool.started_s))}) == 4


@keyed_or_not
@pytest.mark.parametrize("hint_s", [0.0, 2.5, 7.0])
async def test_a_hint_is_kept_exactly(rig: Rig, key: str | None, hint_s: float) -> None:
    """Never earlier than Retry-After said; not later either once it is longer than the back-off."""
    tool = rig.add("mail", transient(hint_s), answer())
    await rig.answered("mail", key)
    (gap,) = _gaps(tool.started_s)
    assert gap == pytest.approx(hint_s) if hint_s else 0.1 <= gap < 0.15


@keyed_or_not
@pytest.mark.parametrize("hint_s", [10.0, 1e10, float("inf")])
async def test_a_hint_beyond_the_deadline_ends_the_call_at_once(
    rig: Rig, key: str | None, hint_s: float
) -> None:
    """The last attempt's kind, stopped_by DEADLINE, and the hint for the caller (R026)."""
    rig.add("mail", transient(hint_s))
    failure = await rig.failed("mail", key, timeout_s=3)
    assert (failure.kind, failure.stopped_by) == (ErrorKind.TRANSIENT, "DEADLINE")
    assert (failure.attempts, failure.outcome, rig.loop.time()) == (1, Outcome.NOT_RUN, 0.0)
    assert failure.retry_after_s is not None
    assert failure.retry_after_s >= min(hint_s, 315_576_000.0)


@keyed_or_not
async def test_no_attempt_starts_after_the_deadline(rig: Rig, key: str | None) -> None:
    """A tool slower than its limit, ten attempts allowed, 500 ms: the call ends by then (R031)."""
    rules = RetryRules(max_attempts=10, budget_ratio=100)
    tool = rig.add("slow", hang(), timeout_s=0.2, retry=rules, **IDEMPOTENT)
    failure = await rig.failed("slow", key, timeout_s=0.5)
    assert failure.kind is ErrorKind.TIMEOUT
    assert rig.loop.time() <= 0.51
    assert all(started <= 0.495 for started in tool.started_s)
    assert failure.attempts == tool.attempts >= 2


@keyed_or_not
async def test_attempts_end_at_the_maximum(rig: Rig, key: str | None) -> None:
    """Three attempts, then the last one's kind with stopped_by MAX_ATTEMPTS."""
    tool = rig.add("mail", transient())
    failure = await rig.failed("mail", key)
    assert (failure.kind, failure.stopped_by) == (ErrorKind.TRANSIENT, "MAX_ATTEMPTS")
    assert (failure.attempts, tool.attempts, failure.outcome) == (3, 3, Outcome.NOT_RUN)


@keyed_or_not
@pytest.mark.parametrize("budget", [1, 2])
async def test_attempts_never_exceed_the_callers_budget(rig: Rig, key: str | None, budget: int) -> None:
    """A retry burns the budget too; the last kind ends the call, stopped_by BUDGET_EXCEEDED."""
    tool = rig.add("mail", transient(retry_after_s=0.5))
    failure = await rig.failed("mail", key, budget=budget)
    assert (failure.kind, failure.stopped_by) == (ErrorKind.TRANSIENT, "BUDGET_EXCEEDED")
    assert (failure.attempts, tool.attempts) == (budget, budget)
    assert failure.retry_after_s == 0.5


async def test_a_tools_retries_stay_inside_its_budget(rig: Rig) -> None:
    """Two hundred failing calls in 10 s: retries <= max(3, 20 %), so attempts <= 1.25 x calls (F8)."""
    rules = RetryRules(max_attempts=5)
    tool = rig.add("down", transient(), retry=rules, concurrency=100)
    tasks = []
    for number in range(200):
        await rig.at(number * 0.05)
        tasks.append(rig.start("down"))
    replies = [expect_failure(await task) for task in tasks]
    assert tool.attempts <= 1.25 * len(replies)
    assert tool.attempts > 200
    assert {"RETRY_BUDGET"} <= {reply.stopped_by for reply in replies}


@keyed_or_not
async def test_an_internal_failure_is_not_repeated(rig: Rig, key: str | None) -> None:
    """An unexpected exception ends the call, even of an idempotent tool; its text is opaque."""
    tool = rig.add("mail", raises(lambda: ZeroDivisionError("secret")), **IDEMPOTENT)
    failure = await rig.failed("mail", key)
    assert (failure.kind, tool.attempts, failure.stopped_by) == (ErrorKind.INTERNAL, 1, "")
    assert "secret" not in failure.message


# -- what may have run -------------------------------------------------------------------------------------


@keyed_or_not
async def test_what_may_have_run_is_not_sent_again(rig: Rig, key: str | None) -> None:
    """Not idempotent: a timeout after the effect, and a reset after sending, end the call UNKNOWN (R029)."""
    tool = rig.add("post", hang(effect_at=0.1), timeout_s=1.0)
    failure = await rig.failed("post", key)
    assert (failure.kind, failure.outcome, tool.attempts) == (ErrorKind.TIMEOUT, Outcome.UNKNOWN, 1)
    tool.script = [ends(RESET, effect_at=0.0)]
    failure = await rig.failed("post", key and "other")
    assert (failure.kind, failure.outcome) == (ErrorKind.TRANSIENT, Outcome.UNKNOWN)
    assert len(rig.effects) == 2


@keyed_or_not
async def test_what_provably_did_not_run_is_sent_again(rig: Rig, key: str | None) -> None:
    """A `final`, not idempotent tool: refused connections are repeated until it works, one effect (R030)."""
    refused = AttemptEnd(kind=ErrorKind.TRANSIENT, outcome=Outcome.NOT_RUN, message="connection refused")
    tool = rig.add("post", ends(refused), ends(refused), answer())
    reply = await rig.answered("post", key)
    assert (reply.attempts, tool.attempts, len(rig.effects)) == (3, 3, 1)


@keyed_or_not
async def test_a_timeout_before_the_effect_is_repeated(rig: Rig, key: str | None) -> None:
    """With declared phases a hang before begin_effect is NOT_RUN, so even a `final` tool repeats it."""
    tool = rig.add("post", hang(), answer(), timeout_s=1.0, phases=True)
    reply = await rig.answered("post", key)
    assert (reply.attempts, tool.attempts, len(rig.effects)) == (2, 2, 1)


@keyed_or_not
async def test_idempotent_tools_are_sent_again_with_one_key(rig: Rig, key: str | None) -> None:
    """After a timeout the same downstream key goes on every attempt; the caller gets the answer (R029)."""
    tool = rig.add("put", hang(effect_at=0.1), answer(), timeout_s=1.0, upstream_keys=100, **IDEMPOTENT)
    reply = await rig.answered("put", key)
    assert reply.attempts == 2
    assert len({request.downstream_key for request in tool.requests}) == 1
    assert [request.number for request in tool.requests] == [1, 2]
    assert len(rig.effects) == 1


@keyed_or_not
async def test_by_key_is_sent_again_only_while_the_key_is_known(rig: Rig, key: str | None) -> None:
    """No re-send starts later than first send + key_ttl: stopped_by KEY_TTL, outcome UNKNOWN."""
    spec = {**BY_KEY, "key_ttl_s": 1.3}
    tool = rig.add(
        "put", hang(effect_at=0.0), timeout_s=1.0, retry=RetryRules(max_attempts=5, budget_ratio=100), **spec
    )
    failure = await rig.failed("put", key)
    assert (failure.kind, failure.stopped_by) == (ErrorKind.TIMEOUT, "KEY_TTL")
    assert (failure.outcome, tool.attempts) == (Outcome.UNKNOWN, 2)
    assert all(started < tool.started_s[0] + 1.3 for started in tool.started_s)


async def test_a_re_send_does_not_wait_for_a_slot_beyond_the_keys_time(rig: Rig) -> None:
    """The slots are taken when the key's time runs out: the call ends then, UNKNOWN, without another send."""
    spec = {**BY_KEY, "key_ttl_s": 5.0}
    tool = rig.add("put", hang(effect_at=0.0), answer(after=60), timeout_s=1.0, concurrency=1, **spec)
    task = rig.start("put", "k", timeout_s=60)
    await rig.at(1.05)
    rig.change("put", timeout_s=100.0)
    blocker = rig.start("put", tenant="other", timeout_s=100)
    failure = expect_failure(await task)
    assert (failure.kind, failure.stopped_by, failure.outcome) == (
        ErrorKind.TIMEOUT,
        "KEY_TTL",
        Outcome.UNKNOWN,
    )
    assert rig.loop.time() == pytest.approx(5.0)
    await blocker
    assert tool.attempts == 2


# -- between attempts --------------------------------------------------------------------------------------


@keyed_or_not
async def test_a_back_off_holds_no_slot(rig: Rig, key: str | None) -> None:
    """Four calls back off for 5 s on four slots; a hundred others of the same tool run meanwhile (R033)."""
    tool = rig.add("mixed", concurrency=4)
    tool.choose = lambda request: (
        answer(after=0.01) if request.number > 1 or request.arguments else transient(retry_after_s=5)
    )
    failing = [rig.start("mixed", key and f"{key}{number}") for number in range(4)]
    await rig.at(0.1)
    assert rig.slots("mixed").running == 0
    healthy = [rig.start("mixed", arguments={"ok": 1}, patient=True) for _ in range(100)]
    for task in healthy:
        await task
    assert rig.loop.time() < 1.0
    for task in failing:
        assert expect_answer(await task).attempts == 2


async def test_our_refusal_after_a_first_attempt_keeps_the_attempts_kind(rig: Rig) -> None:
    """Breaker open, list full or stuck at the retry: the last kind ends the call, with who stopped it."""
    touchy = BreakerRules(min_attempts=1, open_s=5.0)
    rig.add("opens", transient(), breaker=touchy, retry=RetryRules(max_attempts=2, budget_ratio=100))
    failure = await rig.failed("opens", "k")
    assert (failure.kind, failure.stopped_by, failure.attempts) == (ErrorKind.TRANSIENT, "CIRCUIT_OPEN", 1)
    assert failure.retry_after_s == pytest.approx(4.9, abs=0.06)
    assert failure.outcome is Outcome.NOT_RUN


async def test_a_deadline_in_the_queue_after_a_first_attempt_keeps_its_kind(rig: Rig) -> None:
    """The retry finds no slot before the deadline: transient, stopped_by DEADLINE_IN_QUEUE."""
    tool = rig.add("mail", transient(), answer(after=30), concurrency=1)
    task = rig.start("mail", timeout_s=2)
    await rig.at(0.05)
    busy = rig.start("mail")
    failure = expect_failure(await task)
    assert (failure.kind, failure.stopped_by) == (ErrorKind.TRANSIENT, "DEADLINE_IN_QUEUE")
    assert failure.attempts == 1
    await busy
    assert tool.attempts == 2


# -- whose budget ------------------------------------------------------------------------------------------


async def test_a_spent_owner_is_answered_and_the_next_waiter_pays(rig: Rig) -> None:
    """Owner with 1, joiner with 5: the owner learns that the work goes on, the joiner gets the answer."""
    tool = rig.add("mail", transient(after=0.1), transient(after=0.1), answer())
    owner = rig.start("mail", "k", budget=1)
    await rig.at(0.05)
    joiner = rig.start("mail", "k", budget=5)
    spent = expect_failure(await owner)
    assert (spent.kind, spent.stopped_by) == (ErrorKind.TRANSIENT, "BUDGET_EXCEEDED")
    assert (spent.attempts, spent.outcome) == (1, Outcome.IN_PROGRESS)
    reply = expect_answer(await joiner)
    assert (reply.attempts, tool.attempts, reply.source) == (3, 3, Source.JOINED)


async def test_each_waiter_pays_with_its_own_budget(rig: Rig) -> None:
    """Budgets 1, 0 and 1: two attempts in all, and everybody learns why no third was made."""
    tool = rig.add("mail", transient(after=0.1))
    tasks = []
    for number, budget in enumerate((1, 0, 1)):
        await rig.at(number * 0.01)
        tasks.append(rig.start("mail", "k", budget=budget))
    replies = [expect_failure(await task) for task in tasks]
    assert tool.attempts == 2
    assert [reply.stopped_by for reply in replies] == ["BUDGET_EXCEEDED"] * 3
    assert replies[-1].outcome is Outcome.NOT_RUN


async def test_an_unbounded_joiner_is_not_stopped_by_the_owners_budget(rig: Rig) -> None:
    """A refusal that belongs to one caller never reaches a joiner."""
    rig.add("mail", transient(after=0.1), answer())
    owner = rig.start("mail", "k", budget=1)
    await rig.at(0.05)
    joiner = rig.start("mail", "k")
    replies = await asyncio.gather(owner, joiner)
    assert expect_failure(replies[0]).stopped_by == "BUDGET_EXCEEDED"
    assert expect_answer(replies[1]).attempts == 2


@pytest.mark.parametrize("spec", [{"retry": AMPLE}, SAFE])
async def test_ten_years_are_ten_minutes(rig: Rig, spec: dict[str, Any]) -> None:
    """However far a caller's deadline, the work of a key ends 600 s after its claim (R031)."""
    rig.add("slow", hang(), timeout_s=3600.0, **spec)
    reply = await rig.dispatch("slow", "k", timeout_s=3.2e8)
    assert expect_failure(reply).kind is ErrorKind.TIMEOUT
    assert rig.loop.time() <= 600.1


@keyed_or_not
@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_a_jump_of_the_wall_clock_moves_no_deadline(rig: Rig, key: str | None, jump_s: float) -> None:
    """Limits, back-offs and deadlines run on the loop's clock."""
    tool = rig.add("mail", transient(retry_after_s=5, after=1), hang(), timeout_s=2.0)
    task = rig.start("mail", key, timeout_s=20)
    for at in (0.5, 3.0, 7.0):
        await rig.at(at)
        rig.loop.step_wall(jump_s)
    failure = expect_failure(await task)
    assert (failure.kind, tool.started_s, rig.loop.time()) == (ErrorKind.TIMEOUT, [0.0, 6.0], 8.0)
