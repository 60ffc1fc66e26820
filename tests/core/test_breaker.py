"""The breaker: its table, its window, its permits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from lineside_service.core.attempt import AttemptEnd, Verdict, breaker_verdict
from lineside_service.core.breaker import (
    TRANSITIONS,
    Breaker,
    BreakerEvent,
    BreakerRules,
    BreakerState,
    Permit,
)
from lineside_service.core.errors import ErrorKind, Outcome

RULES = BreakerRules()
LEASE_S = 30.0


def _report(breaker: Breaker, verdict: Verdict, now: float) -> None:
    permit = breaker.acquire(now, LEASE_S)
    assert permit is not None
    breaker.settle(permit, verdict, now)


def _opened(rules: BreakerRules = RULES, now: float = 0.0) -> Breaker:
    breaker = Breaker(rules)
    for _ in range(rules.min_attempts):
        _report(breaker, Verdict.FAILURE, now)
    assert breaker.state(now) is BreakerState.OPEN
    return breaker


def _probing(now: float = 5.0) -> tuple[Breaker, Permit]:
    breaker = _opened()
    probe = breaker.acquire(now, LEASE_S)
    assert probe is not None
    return breaker, probe


class TestTable:
    @pytest.mark.parametrize("state", list(BreakerState))
    @pytest.mark.parametrize("event", list(BreakerEvent))
    def test_an_illegal_step_raises_and_changes_nothing(
        self, state: BreakerState, event: BreakerEvent
    ) -> None:
        """Every pair outside the table is refused with the generation untouched."""
        breaker = Breaker(RULES)
        breaker._state = state
        if (state, event) in TRANSITIONS:
            breaker._move(event, 0.0)
            assert breaker._state is TRANSITIONS[state, event]
            assert breaker._generation == 1
        else:
            with pytest.raises(RuntimeError, match=state.value):
                breaker._move(event, 0.0)
            assert (breaker._state, breaker._generation) == (state, 0)


class TestRules:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("failure_ratio", 0.0),
            ("failure_ratio", 1.1),
            ("failure_ratio", math.nan),
            ("min_attempts", 0),
            ("window_s", 0.0),
            ("open_s", 0.0),
            ("open_s", math.inf),
            ("probes", 0),
            ("grace_s", -1.0),
        ],
    )
    def test_a_bad_value_is_refused_by_name_and_bound(self, field: str, value: Any) -> None:
        """The error names the field, the value and what would be accepted."""
        with pytest.raises(ValueError, match=rf"^{field} = .*must be between"):
            BreakerRules(**{field: value})


class TestOpening:
    def test_it_opens_at_half_failed_of_twenty(self) -> None:
        """Nineteen attempts decide nothing; the twentieth, with ten failed, opens it and says why."""
        breaker = Breaker(RULES)
        for i in range(19):
            _report(breaker, Verdict.FAILURE if i % 2 else Verdict.SUCCESS, 0.0)
        assert breaker.state(0.0) is BreakerState.CLOSED
        permit = breaker.acquire(0.0, LEASE_S)
        assert permit is not None
        made = breaker.settle(permit, Verdict.FAILURE, 0.0)
        assert made is not None
        assert (made.choice, made.reason) == ("open", "FAILURE_RATIO")
        assert made.numbers == {"open_s": 5.0, "failures": 10, "attempts": 20}
        assert breaker.state(0.0) is BreakerState.OPEN

    def test_fewer_than_half_failed_keeps_it_closed(self) -> None:
        """Nine in twenty, for as long as it goes on."""
        breaker = Breaker(RULES)
        for i in range(400):
            _report(breaker, Verdict.FAILURE if i % 20 > 10 else Verdict.SUCCESS, i * 0.01)
        assert breaker.state(4.0) is BreakerState.CLOSED

    def test_failures_older_than_the_window_are_forgotten(self) -> None:
        """Nineteen failures, ten seconds, nineteen more: closed."""
        breaker = Breaker(RULES)
        for now in (0.0, 10.0):
            for _ in range(19):
                _report(breaker, Verdict.FAILURE, now)
        assert breaker.state(10.0) is BreakerState.CLOSED

    def test_an_open_breaker_refuses_with_the_time_to_half_open(self) -> None:
        """`check` carries the numbers, and the hint shrinks with time."""
        breaker = _opened(now=2.0)
        assert breaker.is_open(4.0)
        assert breaker.acquire(4.0, LEASE_S) is None
        assert breaker.retry_after_s(4.0) == pytest.approx(3.0)
        refusal = breaker.check(4.0)
        assert refusal is not None
        assert refusal.reason == "CIRCUIT_OPEN"
        assert refusal.numbers == {"retry_after_s": pytest.approx(3.0), "failures": 20, "attempts": 20}
        assert breaker.check(7.0) is None

    def test_caller_errors_never_open_it(self) -> None:
        """A hundred business errors on a healthy tool, then another tenant's good call passes (R034)."""
        breaker = Breaker(RULES)
        for _ in range(100):
            _report(
                breaker, breaker_verdict(AttemptEnd(kind=None, outcome=Outcome.DONE, tool_error=True)), 0.0
            )
        assert breaker.acquire(0.0, LEASE_S) is not None
        assert breaker.counts(0.0) == (100, 0)

    def test_neutral_endings_neither_reset_nor_help(self) -> None:
        """Failures with ignored endings between them open it exactly as failures alone do (R035)."""
        breaker = Breaker(BreakerRules(min_attempts=5))
        for step in range(4):
            _report(breaker, Verdict.FAILURE, float(step))
            _report(breaker, Verdict.IGNORED, float(step))
        assert breaker.counts(4.0) == (4, 4)
        _report(breaker, Verdict.FAILURE, 4.0)
        assert breaker.state(4.0) is BreakerState.OPEN

    def test_our_own_refusals_leave_the_counts_unchanged(self) -> None:
        """Fifty over budget, fifty over the queue's limit: not an attempt more in the window (R039)."""
        breaker = Breaker(RULES)
        for kind in [ErrorKind.BUDGET_EXCEEDED] * 50 + [ErrorKind.OVERLOADED] * 50:
            _report(breaker, breaker_verdict(AttemptEnd(kind=kind, outcome=Outcome.NOT_RUN)), 0.0)
        assert breaker.counts(0.0) == (0, 0)
        assert breaker.state(0.0) is BreakerState.CLOSED


class TestHalfOpen:
    def test_one_probe_at_a_time(self) -> None:
        """While it runs others are refused, and told when to come back: at most open_s."""
        breaker, _ = _probing()
        assert breaker.state(5.0) is BreakerState.HALF_OPEN
        assert breaker.acquire(5.0, LEASE_S) is None
        refusal = breaker.check(5.0)
        assert refusal is not None
        assert refusal.reason == "PROBE_RUNNING"
        assert breaker.retry_after_s(5.0) == 5.0
        assert breaker.retry_after_s(35.5) == pytest.approx(0.5)

    def test_a_good_probe_closes_with_an_empty_window(self) -> None:
        """The failures that opened it are forgotten: the next failure does not open it again."""
        breaker, probe = _probing()
        made = breaker.settle(probe, Verdict.SUCCESS, 6.0)
        assert made is not None
        assert made.reason == "PROBE_SUCCEEDED"
        _report(breaker, Verdict.FAILURE, 6.0)
        assert breaker.state(6.0) is BreakerState.CLOSED

    def test_a_bad_probe_opens_for_another_rest(self) -> None:
        """The rest starts when the probe failed."""
        breaker, probe = _probing()
        made = breaker.settle(probe, Verdict.FAILURE, 7.0)
        assert made is not None
        assert made.reason == "PROBE_FAILED"
        assert breaker.is_open(11.9)
        assert not breaker.is_open(12.0)

    @pytest.mark.parametrize(
        "end",
        [
            AttemptEnd(kind=ErrorKind.CANCELLED, outcome=Outcome.UNKNOWN),
            AttemptEnd(kind=ErrorKind.TIMEOUT, outcome=Outcome.UNKNOWN),
            AttemptEnd(kind=ErrorKind.TIMEOUT, outcome=Outcome.UNKNOWN, caller_shortened=True),
            AttemptEnd(kind=None, outcome=Outcome.DONE, tool_error=True),
            AttemptEnd(kind=ErrorKind.BAD_OUTPUT, outcome=Outcome.DONE),
            AttemptEnd(kind=ErrorKind.BUDGET_EXCEEDED, outcome=Outcome.NOT_RUN),
            AttemptEnd(kind=ErrorKind.INTERNAL, outcome=Outcome.UNKNOWN, local=True),
            AttemptEnd(kind=ErrorKind.UNAVAILABLE, outcome=Outcome.NOT_RUN),
        ],
        ids=["cancel", "timeout", "deadline", "tool_error", "bad_output", "budget", "internal", "drain"],
    )
    def test_every_ending_gives_the_probe_place_back(self, end: AttemptEnd) -> None:
        """Once settled, however, and rested if need be, the next attempt is let through (R037)."""
        breaker, probe = _probing()
        breaker.settle(probe, breaker_verdict(end), 6.0)
        assert breaker.live_probes(6.0) == 0
        assert breaker.acquire(6.0 + RULES.open_s, LEASE_S) is not None

    def test_a_probe_that_never_reports_lapses(self) -> None:
        """After lease and grace the next attempt becomes the probe; the lost one moves nothing (R037)."""
        breaker, lost = _probing(now=5.0)
        lapse = 5.0 + LEASE_S + RULES.grace_s
        assert breaker.acquire(lapse, LEASE_S) is None
        second = breaker.acquire(lapse + 0.001, LEASE_S)
        assert second is not None
        assert breaker.settle(lost, Verdict.SUCCESS, lapse + 1) is None
        assert breaker.state(lapse + 1) is BreakerState.HALF_OPEN
        assert breaker.live_probes(lapse + 1) == 1
        breaker.settle(second, Verdict.SUCCESS, lapse + 2)
        assert breaker.state(lapse + 2) is BreakerState.CLOSED

    def test_an_ignored_probe_is_no_proof(self) -> None:
        """It neither closes nor opens; the place is free again (R035)."""
        breaker, probe = _probing()
        assert breaker.settle(probe, Verdict.IGNORED, 6.0) is None
        assert breaker.state(6.0) is BreakerState.HALF_OPEN
        assert not breaker.is_open(6.0)

    def test_attempts_from_before_it_opened_decide_nothing(self) -> None:
        """Fifty slow old successes neither close it nor free the hanging probe's place (R038)."""
        breaker = Breaker(BreakerRules(open_s=1.0))
        old = [breaker.acquire(0.0, LEASE_S) for _ in range(50)]
        for _ in range(20):
            _report(breaker, Verdict.FAILURE, 1.0)
        probe = breaker.acquire(2.0, LEASE_S)
        assert probe is not None
        for permit in old:
            assert permit is not None
            assert breaker.settle(permit, Verdict.SUCCESS, 3.0) is None
        assert breaker.state(3.0) is BreakerState.HALF_OPEN
        assert breaker.live_probes(3.0) == 1
        assert breaker.acquire(3.0, LEASE_S) is None
        breaker.settle(probe, Verdict.SUCCESS, 3.0)
        assert breaker.state(3.0) is BreakerState.CLOSED

    def test_a_second_report_is_harmless(self) -> None:
        """Settling twice counts once, in the window and for the probe place."""
        breaker = Breaker(RULES)
        permit = breaker.acquire(0.0, LEASE_S)
        assert permit is not None
        breaker.settle(permit, Verdict.FAILURE, 0.0)
        breaker.settle(permit, Verdict.FAILURE, 0.0)
        assert breaker.counts(0.0) == (1, 1)
        breaker, probe = _probing()
        breaker.settle(probe, Verdict.IGNORED, 6.0)
        breaker.acquire(6.0, LEASE_S)
        breaker.settle(probe, Verdict.SUCCESS, 6.0)
        assert (breaker.state(6.0), breaker.live_probes(6.0)) == (BreakerState.HALF_OPEN, 1)


class TestSwitchedOffAndReload:
    def test_switched_off_it_lets_everything_through(self) -> None:
        """A thousand failures change nothing and count nothing."""
        breaker = Breaker(BreakerRules(enabled=False))
        for _ in range(1000):
            _report(breaker, Verdict.FAILURE, 0.0)
        assert not breaker.is_open(0.0)
        assert breaker.counts(0.0) == (0, 0)

    @pytest.mark.parametrize("change", [{"open_s": 6.0}, {"window_s": 20.0}, {"probes": 2}])
    def test_a_reload_keeps_an_open_breaker_open(self, change: dict[str, Any]) -> None:
        """State survives; a changed rest applies at once."""
        breaker = _opened()
        breaker.adopt(BreakerRules(**change))
        assert breaker.is_open(4.9)
        assert breaker.is_open(5.5) == ("open_s" in change)

    def test_a_reload_keeps_the_window_and_the_permits(self) -> None:
        """Failures before and after a change of the window's length add up, running attempts still count."""
        breaker = Breaker(RULES)
        running = breaker.acquire(0.0, LEASE_S)
        assert running is not None
        for _ in range(18):
            _report(breaker, Verdict.FAILURE, 0.0)
        breaker.adopt(BreakerRules(window_s=20.0))
        breaker.settle(running, Verdict.FAILURE, 1.0)
        assert breaker.counts(1.0) == (19, 19)

    def test_switching_it_off_while_open_closes_it(self) -> None:
        """And switching it on again starts afresh."""
        breaker = _opened()
        breaker.adopt(BreakerRules(enabled=False))
        assert breaker.acquire(1.0, LEASE_S) is not None
        breaker.adopt(RULES)
        assert breaker.state(1.0) is BreakerState.CLOSED


MODEL_RULES = BreakerRules(min_attempts=4, open_s=2.0, probes=2, window_s=10.0, grace_s=1.0)


class BreakerMachine(RuleBasedStateMachine):
    """Against a model that keeps every event with its time and every permit with its generation.

    Times are multiples of the window's bucket, where the sliding count is exact.
    """

    permits = Bundle("permits")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.breaker = Breaker(MODEL_RULES)
        self.state = BreakerState.CLOSED
        self.generation = 0
        self.opened_at = 0.0
        self.events: list[tuple[float, bool]] = []
        self.leases: dict[Permit, tuple[int, float]] = {}

    def _go(self, state: BreakerState) -> None:
        self.state = state
        self.generation += 1
        self.events = []
        if state is BreakerState.OPEN:
            self.opened_at = self.now

    def _live_probes(self) -> int:
        current = [expires for generation, expires in self.leases.values() if generation == self.generation]
        return sum(self.now <= expires for expires in current)

    def _refuses(self) -> bool:
        if self.state is BreakerState.HALF_OPEN:
            return self._live_probes() >= MODEL_RULES.probes
        return self.state is BreakerState.OPEN

    @rule(halves=st.integers(min_value=1, max_value=12))
    def time_passes(self, halves: int) -> None:
        """An open breaker rests."""
        self.now += halves * 0.5
        if self.state is BreakerState.OPEN and self.now >= self.opened_at + MODEL_RULES.open_s:
            self._go(BreakerState.HALF_OPEN)

    @rule(target=permits, lease_s=st.sampled_from([0.5, 3.0, 30.0]))
    def acquire(self, lease_s: float) -> Permit | None:
        """Refused exactly when the model refuses."""
        return self._take(lease_s)

    def _take(self, lease_s: float) -> Permit | None:
        refused = self._refuses()
        permit = self.breaker.acquire(self.now, lease_s)
        assert (permit is None) == refused
        if permit is not None:
            self.leases[permit] = (self.generation, self.now + lease_s + MODEL_RULES.grace_s)
        return permit

    def _settle(self, permit: Permit | None, verdict: Verdict) -> None:
        if permit is None:
            return
        made = self.breaker.settle(permit, verdict, self.now)
        before = self.state
        generation, expires = self.leases.pop(permit, (-1, 0.0))
        if generation == self.generation and self.now <= expires and verdict is not Verdict.IGNORED:
            self._evidence(failed=verdict is Verdict.FAILURE)
        assert (made is not None) == (self.state is not before)

    def _evidence(self, *, failed: bool) -> None:
        if self.state is BreakerState.HALF_OPEN:
            self._go(BreakerState.OPEN if failed else BreakerState.CLOSED)
            return
        self.events.append((self.now, failed))
        recent = [bad for at, bad in self.events if self.now - at < MODEL_RULES.window_s]
        if len(recent) >= MODEL_RULES.min_attempts and sum(recent) * 2 >= len(recent):
            self._go(BreakerState.OPEN)

    @rule(permit=permits, verdict=st.sampled_from(Verdict))
    def settle_and_keep(self, permit: Permit | None, verdict: Verdict) -> None:
        """The permit stays about, to be reported again later."""
        self._settle(permit, verdict)

    @rule(permit=consumes(permits), verdict=st.sampled_from(Verdict))
    def settle(self, permit: Permit | None, verdict: Verdict) -> None:
        """Report once, early or late."""
        self._settle(permit, verdict)

    @rule(count=st.integers(min_value=1, max_value=5), verdict=st.sampled_from(Verdict))
    def quick_attempts(self, count: int, verdict: Verdict) -> None:
        """Enough evidence to move it often."""
        for _ in range(count):
            self._settle(self._take(1.0), verdict)

    @rule()
    def reload(self) -> None:
        """The same rules again change nothing."""
        self.breaker.adopt(MODEL_RULES)

    @invariant()
    def agrees_with_the_model(self) -> None:
        """State, refusals, hint and counts."""
        assert self.breaker.state(self.now) is self.state
        assert self.breaker.is_open(self.now) == self._refuses()
        retry_after = self.breaker.retry_after_s(self.now)
        assert (retry_after is None) != self._refuses()
        assert retry_after is None or 0.0 <= retry_after <= MODEL_RULES.open_s
        recent = [bad for at, bad in self.events if self.now - at < MODEL_RULES.window_s]
        assert self.breaker.counts(self.now) == (len(recent), sum(recent))

    @invariant()
    def probes_are_bounded(self) -> None:
        """Never more than the rules say, and never one forgotten."""
        assert self.breaker.live_probes(self.now) <= MODEL_RULES.probes
        if self.state is BreakerState.HALF_OPEN:
            assert self.breaker.live_probes(self.now) == self._live_probes()


BreakerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBreakerMachine: Callable[..., Any] = BreakerMachine.TestCase
