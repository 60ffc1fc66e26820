"""Back-off, the tool's retry budget, and the decision after an attempt."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside_service.core.attempt import AttemptEnd, Verdict, breaker_verdict
from lineside_service.core.deadline import MIN_ATTEMPT_S
from lineside_service.core.errors import KIND_RULES, ErrorKind, Outcome
from lineside_service.core.retry import (
    MAX_HINT_S,
    RetryBudget,
    RetryDecision,
    RetryRules,
    backoff_s,
    decide_retry,
    server_hint_s,
)

LOCAL = RetryRules()
REMOTE = RetryRules(preset="remote")
DRAWS = st.floats(min_value=0, max_value=1, exclude_max=True)


def _end(
    kind: ErrorKind | None = ErrorKind.TRANSIENT, outcome: Outcome = Outcome.NOT_RUN, **more: Any
) -> AttemptEnd:
    return AttemptEnd(kind=kind, outcome=outcome, **more)


def _decide(**change: Any) -> RetryDecision:
    asked: dict[str, Any] = {
        "rules": LOCAL,
        "may_resend": False,
        "end": _end(),
        "attempts": 1,
        "budget_left": None,
        "now": 100.0,
        "deadline": 160.0,
        "retry_budget_allows": True,
        "u": 0.0,
    }
    return decide_retry(**{**asked, **change})


class TestBackoff:
    @pytest.mark.parametrize(
        ("n", "low", "high"), [(1, 0.1, 0.15), (2, 0.4, 0.6), (3, 1.6, 2.4), (5, 25.6, 30.0), (6, 30.0, 30.0)]
    )
    def test_local_grows_fourfold_to_30_s(self, n: int, low: float, high: float) -> None:
        """min(30, 0.1 x 4^(n-1) x (1 + u/2))."""
        assert backoff_s(LOCAL, n, 0.0) == pytest.approx(low)
        assert backoff_s(LOCAL, n, 0.999_999_999) == pytest.approx(high)

    @pytest.mark.parametrize(
        ("n", "low", "high"), [(1, 1, 2), (2, 2, 3), (5, 16, 17), (6, 31, 32), (1000, 31, 32)]
    )
    def test_remote_doubles_and_is_still_jittered_at_the_cap(self, n: int, low: float, high: float) -> None:
        """1 x 2^(n-1) + u; from the cap on 32 - u, so that a herd spreads over the last second."""
        waits = sorted(backoff_s(REMOTE, n, u / 1000) for u in range(1000))
        assert waits[0] == pytest.approx(low, abs=0.002)
        assert waits[-1] == pytest.approx(high, abs=0.002)
        assert len(set(waits)) == 1000

    @pytest.mark.parametrize("initial_s", [None, 0.0, 1e-9, 1.0, 1e308])
    @pytest.mark.parametrize("n", [1, 64, 1_023, 1_024, 1_025, 10_000, 2**31])
    @pytest.mark.parametrize("preset", ["local", "remote"])
    def test_no_attempt_number_overflows(self, preset: Any, n: int, initial_s: float | None) -> None:
        """Finite and inside [0, cap], whatever the attempt and first step; a step of 0 stays 0 (R025)."""
        rules = RetryRules(preset=preset, initial_s=initial_s)
        for u in (0.0, 0.5, 1 - 1e-16):
            wait = backoff_s(rules, n, u)
            assert math.isfinite(wait)
            assert 0.0 <= wait <= 32.0
            assert initial_s != 0.0 or wait == 0.0

    def test_it_is_cheap_at_any_attempt_number(self) -> None:
        """Under 10 us each, the best of several rounds (R025)."""
        best = math.inf
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(200):
                backoff_s(REMOTE, 2**31, 0.5)
            best = min(best, (time.perf_counter() - start) / 200)
        assert best < 10e-6

    @given(
        preset=st.sampled_from(["local", "remote"]),
        initial_s=st.none() | st.floats(min_value=0, max_value=1e308),
        cap_s=st.none() | st.floats(min_value=0, max_value=600),
        n=st.integers(min_value=1, max_value=2**31),
        u=DRAWS,
    )
    def test_every_rule_gives_a_wait_inside_its_cap(
        self, preset: Any, initial_s: float | None, cap_s: float | None, n: int, u: float
    ) -> None:
        """Never NaN, never negative, never over the cap (R025)."""
        wait = backoff_s(RetryRules(preset=preset, initial_s=initial_s, cap_s=cap_s), n, u)
        assert 0.0 <= wait <= (32.0 if cap_s is None else cap_s)


class TestRules:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("preset", "fast"),
            ("max_attempts", 0),
            ("max_attempts", 101),
            ("budget_ratio", -0.1),
            ("budget_ratio", math.nan),
            ("budget_floor", -1),
            ("budget_window_s", 0.0),
            ("initial_s", math.inf),
            ("initial_s", -1.0),
            ("cap_s", 601.0),
        ],
    )
    def test_a_bad_value_is_refused_by_name_and_bound(self, field: str, value: Any) -> None:
        """The error names the field, the value and what would be accepted."""
        with pytest.raises(ValueError, match=rf"^{field} = .*must be"):
            RetryRules(**{field: value})


class TestRetryBudget:
    def test_the_floor_counts_while_calls_are_few(self) -> None:
        """Three retries are always allowed in a window, the fourth needs more calls."""
        budget = RetryBudget(0.2, 3, 10.0)
        for _ in range(3):
            assert budget.allows(0.0)
            budget.record_retry(0.0)
        assert not budget.allows(0.0)
        assert budget.counts(0.0) == (0, 3)

    def test_a_fifth_of_many_calls_may_be_retried(self) -> None:
        """With 100 calls in the window exactly 20 retries pass."""
        budget = RetryBudget(0.2, 3, 10.0)
        for i in range(100):
            budget.record_call(i * 0.01)
        passed = 0
        while budget.allows(1.0):
            budget.record_retry(1.0)
            passed += 1
        assert passed == 20

    def test_the_window_slides(self) -> None:
        """What happened more than 10 s ago neither allows nor forbids."""
        budget = RetryBudget(0.2, 3, 10.0)
        for _ in range(3):
            budget.record_retry(0.0)
        assert not budget.allows(9.0)
        assert budget.allows(10.0)

    @given(
        st.lists(st.tuples(st.booleans(), st.floats(min_value=0, max_value=2)), max_size=150),
        st.sampled_from([0.0, 0.1, 0.2, 0.29, 1.0]),
    )
    def test_retries_never_exceed_the_budget(self, steps: list[tuple[bool, float]], ratio: float) -> None:
        """However calls and failures come, an allowed retry keeps retries <= max(floor, ratio x calls)."""
        budget, now = RetryBudget(ratio, 3, 10.0), 0.0
        for is_call, gap in steps:
            now += gap
            if is_call:
                budget.record_call(now)
            elif budget.allows(now):
                budget.record_retry(now)
                calls, retries = budget.counts(now)
                assert retries <= max(3, ratio * calls + 1e-6)


class TestDecision:
    def test_an_answer_ends_the_call(self) -> None:
        """Nothing follows an answer, tool_error or not."""
        for tool_error in (False, True):
            made = _decide(end=_end(None, Outcome.DONE, tool_error=tool_error), may_resend=True)
            assert (made.retry, made.stopped_by, made.decision.reason) == (False, "", "ANSWERED")

    @pytest.mark.parametrize("kind", list(ErrorKind))
    @pytest.mark.parametrize("outcome", list(Outcome))
    @pytest.mark.parametrize("may_resend", [False, True])
    def test_only_retried_kinds_that_are_safe_to_send_again(
        self, kind: ErrorKind, outcome: Outcome, may_resend: bool
    ) -> None:
        """The table says which kinds; an unknown outcome needs an idempotent tool, DONE ends it (R029)."""
        made = _decide(end=_end(kind, outcome), may_resend=may_resend)
        safe = outcome is Outcome.NOT_RUN or (outcome is Outcome.UNKNOWN and may_resend)
        assert made.retry == (KIND_RULES[kind].retried and safe)
        assert made.stopped_by == ""

    @pytest.mark.parametrize("kind", [ErrorKind.TIMEOUT, ErrorKind.TRANSIENT])
    def test_work_that_may_have_run_is_not_sent_again(self, kind: ErrorKind) -> None:
        """A timeout, a 502 after the effect, a reset after the body: unknown, so no second effect (R029)."""
        made = _decide(end=_end(kind, Outcome.UNKNOWN), rules=RetryRules(max_attempts=4))
        assert (made.retry, made.decision.reason) == (False, "MAY_HAVE_RUN")

    def test_work_that_never_began_is_sent_again_even_if_not_idempotent(self) -> None:
        """Connect refused or no free connection: not run, so it is not lost either (R030)."""
        first = _decide(attempts=1)
        second = _decide(attempts=2)
        assert first.retry
        assert second.retry
        assert second.wait_s > first.wait_s

    def test_attempts_are_bounded(self) -> None:
        """The third of three attempts is the last."""
        assert _decide(attempts=2).retry
        made = _decide(attempts=3)
        assert (made.retry, made.stopped_by) == (False, "MAX_ATTEMPTS")
        assert made.decision.numbers == {"attempts": 3, "max_attempts": 3}

    def test_the_callers_budget_is_never_overspent(self) -> None:
        """With nothing left the last attempt's kind stands, stopped by the budget."""
        assert _decide(budget_left=1).retry
        made = _decide(budget_left=0, end=_end(retry_after_s=2.0))
        assert (made.retry, made.stopped_by, made.retry_after_s) == (False, "BUDGET_EXCEEDED", 2.0)

    def test_the_tools_retry_budget_stops_a_storm(self) -> None:
        """Out of budget: fail now, and say when a repeat makes sense."""
        made = _decide(retry_budget_allows=False)
        assert (made.retry, made.stopped_by) == (False, "RETRY_BUDGET")
        assert made.retry_after_s == pytest.approx(0.1)

    @pytest.mark.parametrize(
        ("hint_s", "wait_s"),
        [(None, 0.1), (0.02, 0.1), (2.0, 2.0), (-1.0, 0.1), (-0.0, 0.1), (math.nan, 0.1)],
    )
    def test_never_earlier_than_the_server_said(self, hint_s: float | None, wait_s: float) -> None:
        """The longer of back-off and hint; a past hint is 0, junk is none, the back-off stays (R027)."""
        made = _decide(end=_end(retry_after_s=hint_s))
        assert made.retry
        assert made.wait_s == pytest.approx(wait_s)
        assert made.decision.reason == ("SERVER_HINT" if wait_s > 0.1 else "BACKOFF")

    @pytest.mark.parametrize(
        ("hint_s", "told_s"), [(-1.0, 0.0), (-math.inf, 0.0), (math.nan, None), (2.0, 2.0)]
    )
    def test_a_caller_is_told_a_hint_that_it_can_wait_for(self, hint_s: float, told_s: float | None) -> None:
        """After the last attempt: past is 0, junk is none (R027)."""
        made = _decide(end=_end(retry_after_s=hint_s), attempts=3)
        assert (made.stopped_by, made.retry_after_s) == ("MAX_ATTEMPTS", told_s)

    @pytest.mark.parametrize("hint_s", [9_999_999_999.0, 1e9, 99_999_999_999_999_999_999_999.0, math.inf])
    def test_a_hint_beyond_the_deadline_fails_at_once_with_the_hint(self, hint_s: float) -> None:
        """No sleep of days, no crash: the caller gets the hint, bounded so that wires carry it (R026)."""
        made = _decide(end=_end(retry_after_s=hint_s), deadline=103.0)
        assert (made.retry, made.stopped_by, made.wait_s) == (False, "DEADLINE", 0.0)
        assert made.retry_after_s == min(hint_s, MAX_HINT_S)

    def test_a_retry_leaves_enough_time_for_an_attempt(self) -> None:
        """It goes on while 5 ms stay after the back-off, and not with less (R031)."""
        wait = backoff_s(LOCAL, 1, 0.0)
        assert _decide(deadline=100.0 + wait + MIN_ATTEMPT_S + 1e-9).retry
        made = _decide(deadline=100.0 + wait + MIN_ATTEMPT_S - 1e-6)
        assert (made.retry, made.stopped_by) == (False, "DEADLINE")
        assert made.retry_after_s == pytest.approx(0.1)

    def test_a_deadline_in_the_past_ends_the_call(self) -> None:
        """Time that ran out during the attempt is not spent on another (R031)."""
        assert _decide(deadline=99.0).stopped_by == "DEADLINE"

    def test_no_resend_starts_after_the_key_is_forgotten(self) -> None:
        """A `by_key` tool is sent to again only while its upstream still knows our key."""
        unknown = _end(ErrorKind.TIMEOUT, Outcome.UNKNOWN)
        assert _decide(end=unknown, may_resend=True, resend_until=100.2).retry
        made = _decide(end=unknown, may_resend=True, resend_until=100.05)
        assert (made.retry, made.stopped_by) == (False, "KEY_TTL")

    def test_a_later_attempt_that_did_not_run_does_not_lift_the_key_limit(self) -> None:
        """An earlier unknown attempt may have had its effect, whatever the last one says."""
        assert _decide(may_resend=True, resend_until=100.05, attempts=2).stopped_by == "KEY_TTL"

    def test_a_backoff_that_outlasts_the_drain_ends_now(self) -> None:
        """While draining, a wait that does not fit the grace ends with the last kind and the hint."""
        assert _decide(draining_until=101.0).retry
        made = _decide(draining_until=100.05)
        assert (made.retry, made.stopped_by) == (False, "DRAINING")
        assert made.retry_after_s == pytest.approx(0.1)

    def test_the_drain_leaves_enough_time_for_an_attempt_too(self) -> None:
        """The grace must hold the back-off and 5 ms."""
        fits = 100.0 + backoff_s(LOCAL, 1, 0.0) + MIN_ATTEMPT_S
        assert _decide(draining_until=fits + 1e-9).retry
        assert _decide(draining_until=fits - 1e-6).stopped_by == "DRAINING"

    @given(
        kind=st.none() | st.sampled_from(list(ErrorKind)),
        outcome=st.sampled_from(list(Outcome)),
        may_resend=st.booleans(),
        attempts=st.integers(min_value=1, max_value=12),
        budget_left=st.none() | st.integers(min_value=0, max_value=3),
        left_s=st.floats(min_value=-1, max_value=100),
        hint_s=st.none() | st.floats(),
        allows=st.booleans(),
        limits=st.tuples(*[st.none() | st.floats(min_value=-1, max_value=50)] * 2),
        preset=st.sampled_from(["local", "remote"]),
        u=DRAWS,
    )
    def test_a_retry_breaks_no_limit(
        self,
        *,
        kind: ErrorKind | None,
        outcome: Outcome,
        may_resend: bool,
        attempts: int,
        budget_left: int | None,
        left_s: float,
        hint_s: float | None,
        allows: bool,
        limits: tuple[float | None, float | None],
        preset: Any,
        u: float,
    ) -> None:
        """Whatever ended how, a retry is inside every limit at once and a stop is explained."""
        rules = RetryRules(preset=preset, max_attempts=10)
        resend_until, draining_until = limits
        made = decide_retry(
            rules=rules,
            may_resend=may_resend,
            end=_end(kind, outcome, retry_after_s=hint_s),
            attempts=attempts,
            budget_left=budget_left,
            now=0.0,
            deadline=left_s,
            retry_budget_allows=allows,
            u=u,
            resend_until=resend_until,
            draining_until=draining_until,
        )
        assert made.decision.reason
        assert math.isfinite(made.wait_s)
        assert made.retry_after_s is None or 0 <= made.retry_after_s <= MAX_HINT_S
        assert not (made.retry and made.stopped_by)
        if not made.retry:
            assert made.wait_s == 0.0
            return
        assert attempts < rules.max_attempts
        assert budget_left != 0
        assert allows
        assert made.wait_s >= max(backoff_s(rules, attempts, u), server_hint_s(hint_s) or 0.0)
        assert made.wait_s + MIN_ATTEMPT_S <= left_s
        assert resend_until is None or made.wait_s <= resend_until
        assert draining_until is None or made.wait_s + MIN_ATTEMPT_S <= draining_until


class TestBreakerVerdict:
    @pytest.mark.parametrize(
        ("end", "verdict"),
        [
            (_end(None, Outcome.DONE), Verdict.SUCCESS),
            (_end(None, Outcome.DONE, tool_error=True), Verdict.SUCCESS),
            (_end(ErrorKind.BAD_OUTPUT, Outcome.DONE), Verdict.SUCCESS),
            (_end(ErrorKind.INTERNAL, Outcome.UNKNOWN), Verdict.SUCCESS),
            (_end(ErrorKind.INTERNAL, Outcome.UNKNOWN, local=True), Verdict.IGNORED),
            (_end(ErrorKind.TRANSIENT), Verdict.FAILURE),
            (_end(ErrorKind.TIMEOUT, Outcome.UNKNOWN), Verdict.FAILURE),
            (_end(ErrorKind.TIMEOUT, Outcome.UNKNOWN, caller_shortened=True), Verdict.IGNORED),
            (_end(ErrorKind.CANCELLED, Outcome.UNKNOWN), Verdict.IGNORED),
        ],
    )
    def test_what_the_breaker_learns(self, end: AttemptEnd, verdict: Verdict) -> None:
        """Failure: transient, or our own timeout. Success: any answer. The rest: no evidence (R034)."""
        assert breaker_verdict(end) is verdict

    @pytest.mark.parametrize(
        "kind",
        sorted(
            set(ErrorKind)
            - {ErrorKind.TRANSIENT, ErrorKind.TIMEOUT, ErrorKind.BAD_OUTPUT, ErrorKind.INTERNAL},
            key=str,
        ),
    )
    def test_our_own_refusals_are_no_evidence(self, kind: ErrorKind) -> None:
        """Budget, quota, queue, breaker, validation, cancel, drain: ignored, every one (R039)."""
        assert breaker_verdict(_end(kind)) is Verdict.IGNORED
