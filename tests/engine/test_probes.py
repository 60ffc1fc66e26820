"""The breaker on the road: what moves it, and every way a probe can end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.breaker import BreakerRules, BreakerState
from lineside_service.core.errors import ErrorKind, Outcome, Source
from lineside_service.core.retry import RetryRules
from tests.support.engine_rig import IDEMPOTENT, SAFE, Rig, expect_failure
from tests.support.scripted_tool import Step, answer, ends, hang, raises, says_no, swallow_cancel, transient

pytestmark = pytest.mark.parametrize("virtual_loop", range(3), indirect=True)

keyed_or_not = pytest.mark.parametrize("key", [None, "k"])
RULES = BreakerRules(min_attempts=1, failure_ratio=0.5, open_s=5.0)
ONCE = RetryRules(max_attempts=1)


async def _half_open(rig: Rig, *script: Step, **spec: Any) -> None:
    """A tool `mail` whose breaker is half-open now (at 5 s), with this script."""
    tool = rig.add("mail", transient(), **{"breaker": RULES, "timeout_s": 1.0, **spec})
    await rig.failed("mail", budget=1)
    await rig.at(5)
    tool.script, tool.requests, tool.started_s = list(script), [], []
    assert _state(rig) is BreakerState.HALF_OPEN


def _state(rig: Rig) -> BreakerState:
    return rig.state("mail").breaker.state(rig.loop.time())


def _probes(rig: Rig) -> int:
    return rig.state("mail").breaker.live_probes(rig.loop.time())


async def _next_is_a_probe(rig: Rig) -> None:
    """The place is free: the next call is let through and closes the breaker."""
    assert _probes(rig) == 0
    rig.tools["mail"].script = [answer()]
    await rig.at(rig.loop.time() + 5)
    await rig.answered("mail", "next")
    assert _state(rig) is BreakerState.CLOSED


# -- one probe ---------------------------------------------------------------------------------------------


async def test_one_probe_at_a_time(rig: Rig) -> None:
    """A hundred calls meet a half-open breaker: one reaches the tool, the others are refused."""
    await _half_open(rig, answer(after=0.5))
    replies = await asyncio.gather(*(rig.dispatch("mail") for _ in range(100)))
    refused = [reply for reply in replies if reply.source is not Source.EXECUTED]
    assert (rig.tools["mail"].peak, len(refused)) == (1, 99)
    assert {expect_failure(reply).kind for reply in refused} == {ErrorKind.CIRCUIT_OPEN}
    assert {expect_failure(reply).reason_token for reply in refused} == {"PROBE_RUNNING"}
    assert all(0 < (expect_failure(reply).retry_after_s or 0) <= 5 for reply in refused)
    assert _state(rig) is BreakerState.CLOSED


BAD = AttemptEnd(kind=ErrorKind.BAD_OUTPUT, outcome=Outcome.DONE, message="breaks output_schema")
REMOTE = AttemptEnd(kind=ErrorKind.INTERNAL, outcome=Outcome.UNKNOWN, message="500 from the server")
ENDINGS: list[tuple[str, Step, BreakerState]] = [
    ("answer", answer(after=0.1), BreakerState.CLOSED),
    ("tool_error", says_no(after=0.1), BreakerState.CLOSED),
    ("unusable answer", ends(BAD, after=0.1), BreakerState.CLOSED),
    ("remote internal", ends(REMOTE, after=0.1), BreakerState.CLOSED),
    ("transient", transient(after=0.1), BreakerState.OPEN),
    ("timeout", hang(), BreakerState.OPEN),
    ("deaf timeout", swallow_cancel(answer(after=30)), BreakerState.OPEN),
    ("exception", raises(ValueError, after=0.1), BreakerState.HALF_OPEN),
    ("own timeout error", raises(TimeoutError, after=0.1), BreakerState.HALF_OPEN),
    ("own cancel", raises(asyncio.CancelledError, after=0.1), BreakerState.HALF_OPEN),
]
endings = pytest.mark.parametrize(("step", "state"), [e[1:] for e in ENDINGS], ids=[e[0] for e in ENDINGS])


@keyed_or_not
@endings
async def test_every_ending_of_a_probe_gives_its_place_back(
    rig: Rig, step: Step, state: BreakerState, key: str | None
) -> None:
    """Evidence closes or opens, everything else leaves it half-open; the next call becomes a probe (R037)."""
    await _half_open(rig, step, retry=ONCE)
    await rig.dispatch("mail", key)
    assert _state(rig) is state
    await _next_is_a_probe(rig)


@keyed_or_not
@pytest.mark.parametrize("step", [hang(), swallow_cancel(answer(after=30))])
@pytest.mark.parametrize("limit", [{"timeout_s": 0.5}, {"attempt_timeout_s": 0.5}])
async def test_a_probe_that_its_caller_shortened_decides_nothing(
    rig: Rig, step: Step, limit: dict[str, float], key: str | None
) -> None:
    """The total deadline or the caller's attempt_timeout ended it: still half-open, place free (R037)."""
    await _half_open(rig, step, retry=ONCE)
    await rig.failed("mail", key, **limit)
    assert _state(rig) is BreakerState.HALF_OPEN
    await _next_is_a_probe(rig)


@pytest.mark.parametrize("step", [hang(), swallow_cancel(answer(after=30))])
async def test_a_probe_whose_caller_left(rig: Rig, step: Step) -> None:
    """Cancelled: still half-open, place free at once (R037)."""
    await _half_open(rig, step)
    task = rig.start("mail")
    await rig.at(5.5)
    assert _probes(rig) == 1
    task.cancel()
    await rig.at(5.6)
    assert _state(rig) is BreakerState.HALF_OPEN
    await _next_is_a_probe(rig)


async def test_a_probe_that_our_own_refusal_stopped(rig: Rig) -> None:
    """Admitted, then no intent, no time or no caller left: nothing ran, the place is free (R037)."""
    await _half_open(rig, answer())
    rig.store.fail["save"] = 1
    assert (await rig.failed("mail", "a")).kind is ErrorKind.UNAVAILABLE
    assert (_state(rig), _probes(rig)) == (BreakerState.HALF_OPEN, 0)
    rig.store.delay_s = {"save": 1.0}
    assert (await rig.failed("mail", "b", timeout_s=1.001)).kind is ErrorKind.TIMEOUT
    assert (_state(rig), _probes(rig)) == (BreakerState.HALF_OPEN, 0)
    task = rig.start("mail", "c")
    await rig.at(rig.loop.time() + 0.5)
    task.cancel()
    await rig.at(rig.loop.time() + 2)
    assert rig.tools["mail"].attempts == 0
    rig.store.delay_s = {}
    assert _state(rig) is BreakerState.HALF_OPEN
    await _next_is_a_probe(rig)


async def test_a_probe_that_the_drain_ended(rig: Rig) -> None:
    """Given up at the end of the grace: no evidence, nothing held (R037)."""
    await _half_open(rig, hang())
    rig.change("mail", timeout_s=100.0)
    task = rig.start("mail", "k", timeout_s=200)
    await rig.at(6)
    assert not await rig.dispatcher.drain(1)
    assert expect_failure(await task).kind is ErrorKind.UNAVAILABLE
    assert (_state(rig), _probes(rig)) == (BreakerState.HALF_OPEN, 0)


async def test_a_probe_outlasts_the_limit_that_its_caller_shortened(rig: Rig) -> None:
    """A joiner extends the probe's attempt: no second probe beside it, and its result counts (F12)."""
    await _half_open(rig, answer(after=4), timeout_s=10.0)
    owner = rig.start("mail", "k", attempt_timeout_s=0.1)
    await rig.at(5.05)
    joiner = rig.start("mail", "k")
    await rig.at(8)
    assert (await rig.failed("mail", "other")).reason_token == "PROBE_RUNNING"
    await asyncio.gather(owner, joiner)
    assert rig.tools["mail"].peak == 1
    assert _state(rig) is BreakerState.CLOSED


async def test_a_probe_that_retries_is_asked_again_each_time(rig: Rig) -> None:
    """A probe that fails opens the breaker for its own retry: stopped_by CIRCUIT_OPEN, one attempt."""
    await _half_open(rig, transient())
    failure = await rig.failed("mail")
    assert (failure.kind, failure.stopped_by, failure.attempts) == (ErrorKind.TRANSIENT, "CIRCUIT_OPEN", 1)


async def test_late_results_of_an_earlier_time_do_not_decide(rig: Rig) -> None:
    """Slow calls from before the breaker opened succeed during a hanging probe: still one probe (R038)."""
    rules = BreakerRules(min_attempts=50, failure_ratio=0.5, open_s=1.0, window_s=10.0)
    tool = rig.add("mail", timeout_s=10.0, concurrency=200, breaker=rules, retry=ONCE)
    tool.choose = lambda request: {
        "slow": answer(after=3.0),
        "bad": transient(),
        "probe": hang(),
    }[request.tenant]
    slow = [rig.start("mail", tenant="slow") for _ in range(50)]
    await rig.at(1)
    for _ in range(50):
        await rig.failed("mail", tenant="bad")
    assert _state(rig) is BreakerState.OPEN
    await rig.at(2)
    probe = rig.start("mail", tenant="probe")
    await rig.at(2.5)
    assert _probes(rig) == 1
    for task in slow:
        await task
    assert rig.loop.time() == 3.0
    assert (_state(rig), _probes(rig)) == (BreakerState.HALF_OPEN, 1)
    assert (await rig.failed("mail", tenant="bad")).reason_token == "PROBE_RUNNING"
    await probe
    assert _state(rig) is BreakerState.OPEN
    await rig.at(14)


async def test_an_abandoned_probe_does_not_report_twice(rig: Rig) -> None:
    """Its timeout opened the breaker; its late answer, during the next probe, changes nothing (R038)."""
    await _half_open(rig, swallow_cancel(answer(after=6.5)), hang())
    await rig.failed("mail", budget=1)
    await rig.at(11)
    probe = rig.start("mail", "k", budget=1)
    await rig.at(11.6)
    assert rig.slots("mail").abandoned == 0
    assert (_state(rig), _probes(rig)) == (BreakerState.HALF_OPEN, 1)
    await probe


# -- what never moves it -----------------------------------------------------------------------------------


async def test_our_own_refusals_never_move_it(rig: Rig) -> None:
    """Budget, schema, queue, deadline, join, replay, conflict, cancel: no count changes (R039)."""
    schema = b'{"type":"object","properties":{"n":{"type":"integer"}}}'
    tool = rig.add(
        "mail", answer(after=10), concurrency=1, breaker=RULES, input_schema=schema, timeout_s=50.0
    )
    busy = rig.start("mail", "k")
    await rig.at(1)
    waiting = [rig.start("mail", timeout_s=5) for _ in range(64)]
    await rig.at(1.1)
    for _ in range(50):
        assert (await rig.failed("mail", budget=0)).kind is ErrorKind.BUDGET_EXCEEDED
        assert (await rig.failed("mail")).kind is ErrorKind.OVERLOADED
        assert (await rig.failed("mail", arguments={"n": "x"})).kind is ErrorKind.SCHEMA
        assert (await rig.failed("mail", "k", arguments={"n": 1})).kind is ErrorKind.KEY_REUSED
    for task in waiting[:32]:
        task.cancel()
    for task in waiting[32:]:
        assert expect_failure(await task).kind is ErrorKind.TIMEOUT
    assert rig.state("mail").breaker.counts(rig.loop.time()) == (0, 0)
    await busy
    assert rig.state("mail").breaker.counts(rig.loop.time()) == (1, 0)
    assert tool.attempts == 1
    assert _state(rig) is BreakerState.CLOSED


async def test_failures_of_a_healthy_tools_callers_never_open_it(rig: Rig) -> None:
    """A hundred answers that say no, then a good one from another tenant (R034)."""
    rig.add("mail", says_no("404"), breaker=BreakerRules(min_attempts=5))
    for _ in range(100):
        await rig.answered("mail")
    rig.tools["mail"].script = [answer()]
    await rig.answered("mail", tenant="other")
    assert _state(rig) is BreakerState.CLOSED


async def test_refusals_while_open_keep_the_time_to_half_open(rig: Rig) -> None:
    """Hammering an open breaker neither extends nor shortens its rest."""
    rig.add("mail", transient(), breaker=RULES)
    await rig.failed("mail", budget=1)
    for step in range(49):
        await rig.at(0.1 * (step + 1))
        failure = await rig.failed("mail")
        assert failure.retry_after_s == pytest.approx(5 - rig.loop.time())
    await rig.at(5)
    rig.tools["mail"].script = [answer()]
    await rig.answered("mail")


async def test_it_opens_on_failures_of_every_caller_together(rig: Rig) -> None:
    """50 % of 20 attempts in 10 s: open at the 20th, refusing everybody at once."""
    tool = rig.add("mail", breaker=BreakerRules(), retry=ONCE, concurrency=50, **IDEMPOTENT)
    tool.choose = lambda request: answer() if request.tenant == "lucky" else transient()
    for number in range(20):
        await rig.at(number * 0.1)
        await rig.dispatch("mail", tenant="lucky" if number % 2 else "unlucky")
    assert (await rig.failed("mail", tenant="lucky")).kind is ErrorKind.CIRCUIT_OPEN
    assert tool.attempts == 20


async def test_switched_off_it_lets_everything_through(rig: Rig) -> None:
    """With `enabled = false`: a hundred failures, a hundred attempts."""
    tool = rig.add("mail", transient(), retry=ONCE, **SAFE)
    for _ in range(100):
        await rig.failed("mail")
    assert tool.attempts == 100
