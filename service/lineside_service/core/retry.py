"""Whether an attempt that ended is followed by another, and when.

`decide_retry` asks in this order and the first "no" ends the call:

    answered?  kind ever retried?  re-sending safe?  attempts left?  caller's budget?  tool's retry budget?
    key still known downstream?  deadline?  drain?

The first three are about the ending itself; the others are refusals of ours, named in `stopped_by`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.bounds import require_between
from lineside_service.core.deadline import MAX_CALL_S, MIN_ATTEMPT_S
from lineside_service.core.decision import Decision
from lineside_service.core.errors import KIND_RULES, Outcome
from lineside_service.core.window import WindowCount

Preset = Literal["local", "remote"]

LOCAL_INITIAL_S: Final = 0.1
LOCAL_FACTOR: Final = 4.0
LOCAL_CAP_S: Final = 30.0
REMOTE_INITIAL_S: Final = 1.0
REMOTE_FACTOR: Final = 2.0
REMOTE_CAP_S: Final = 32.0

MAX_HINT_S: Final = 315_576_000.0
"""Ten years: a server hint beyond it says "never", and goes on as this, so that every wire can carry it."""

_MAX_EXPONENT: Final = 500
"""4^500 = 2^1000 is still a float, and far beyond any cap: larger steps change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """How a tool's failed attempts are repeated.

    preset: `local` for work in this process or next door, `remote` for servers shared with others.
    max_attempts: in all, the first included (1-100). budget_ratio, budget_floor, budget_window_s: retries of
    the whole tool <= max(floor, ratio x calls) over the window (seconds). initial_s, cap_s: replace the
    preset's first step and its longest back-off (seconds). ValueError names the field and its bound.
    """

    preset: Preset = "local"
    max_attempts: int = 3
    budget_ratio: float = 0.2
    budget_floor: int = 3
    budget_window_s: float = 10.0
    initial_s: float | None = None
    cap_s: float | None = None

    def __post_init__(self) -> None:
        if self.preset not in ("local", "remote"):
            raise ValueError(f"preset = {self.preset!r}: must be 'local' or 'remote'")
        require_between("max_attempts", self.max_attempts, 1, 100)
        require_between("budget_ratio", self.budget_ratio, 0, 100)
        require_between("budget_floor", self.budget_floor, 0, 1_000_000)
        require_between("budget_window_s", self.budget_window_s, 0.1, 3600)
        if self.initial_s is not None:
            require_between("initial_s", self.initial_s, 0, 1.7e308)
        if self.cap_s is not None:
            require_between("cap_s", self.cap_s, 0, MAX_CALL_S)


def backoff_s(rules: RetryRules, n: int, u: float) -> float:
    """Seconds before the n-th retry (from 1), for a uniform draw u in [0, 1); finite, in [0, cap].

    local: min(30, 0.1 x 4^(n-1) x (1 + u/2)). remote: 1 x 2^(n-1) + u, and 32 - u once that reaches 32, or
    a herd would form at exactly 32 s. The jitter of `remote` is one first step wide.
    """
    if rules.preset == "local":
        initial = LOCAL_INITIAL_S if rules.initial_s is None else rules.initial_s
        cap = LOCAL_CAP_S if rules.cap_s is None else rules.cap_s
        step = initial * LOCAL_FACTOR ** min(n - 1, _MAX_EXPONENT)
        return min(cap, step * (1.0 + u / 2.0))
    initial = REMOTE_INITIAL_S if rules.initial_s is None else rules.initial_s
    cap = REMOTE_CAP_S if rules.cap_s is None else rules.cap_s
    jitter = u * initial
    grown = initial * REMOTE_FACTOR ** min(n - 1, 2 * _MAX_EXPONENT) + jitter
    return grown if grown < cap else max(0.0, cap - min(jitter, u * cap))


class RetryBudget:
    """A tool's retries against its calls over a sliding window, so that retries cannot double an outage.

    retries <= max(floor, ratio x calls), counted to a twentieth of the window (seconds).
    Source of the defaults (20 %, floor 3): Envoy's retry budget.
    """

    __slots__ = ("_calls", "_retries", "floor", "ratio")

    def __init__(self, ratio: float, floor: int, window_s: float) -> None:
        self.ratio = ratio
        self.floor = floor
        self._calls = WindowCount(window_s)
        self._retries = WindowCount(window_s)

    def record_call(self, now: float) -> None:
        """Count a call that starts its first attempt."""
        self._calls.add(now)

    def record_retry(self, now: float) -> None:
        """Count a retry that was decided; take it when `decide_retry` says so, not when it starts."""
        self._retries.add(now)

    def allows(self, now: float) -> bool:
        """Whether one more retry stays inside the budget."""
        allowed = max(self.floor, self.ratio * self._calls.count(now) + 1e-9)
        return self._retries.count(now) + 1 <= allowed

    def left(self, now: float) -> int:
        """How many more retries stay inside the budget; may be asked on any thread."""
        allowed = max(self.floor, self.ratio * self._calls.peek(now) + 1e-9)
        return max(0, int(allowed) - self._retries.peek(now))

    def counts(self, now: float) -> tuple[int, int]:
        """(calls, retries) inside the window."""
        return self._calls.count(now), self._retries.count(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """What follows an attempt.

    retry: another attempt, `wait_s` seconds from now at the earliest. stopped_by: the reason token of the
    refusal of ours that ended the call, empty when the ending itself did. retry_after_s: seconds after which
    a repeat by the caller may help, None when nothing is known. decision: the record of why.
    """

    retry: bool
    wait_s: float
    stopped_by: str
    retry_after_s: float | None
    decision: Decision


ANSWERED: Final = RetryDecision(
    retry=False,
    wait_s=0.0,
    stopped_by="",
    retry_after_s=None,
    decision=Decision("stop", "ANSWERED", MappingProxyType({})),
)
"""The common case, made once."""


def decide_retry(
    *,
    rules: RetryRules,
    may_resend: bool,
    end: AttemptEnd,
    attempts: int,
    budget_left: int | None,
    now: float,
    deadline: float,
    retry_budget_allows: bool,
    u: float,
    resend_until: float | None = None,
    draining_until: float | None = None,
) -> RetryDecision:
    """Decide what follows an attempt that ended; the order of the questions stands at the top of this module.

    may_resend: the tool is idempotent or `by_key`. attempts: made so far, this one included. budget_left:
    attempts the caller may still spend after them, None = unbounded. now, deadline: loop times; a retry is
    never earlier than the server's hint and must leave MIN_ATTEMPT_S. resend_until: loop time after which
    the upstream no longer knows our key, None unless some attempt of a `by_key` tool may have reached it.
    draining_until: loop time at which the drain's grace ends, None when not draining.
    """
    if end.kind is None:
        return ANSWERED
    hint = server_hint_s(end.retry_after_s)
    numbers: dict[str, float] = {"attempts": attempts}
    if not KIND_RULES[end.kind].retried:
        return _stop("KIND_NOT_RETRIED", hint, numbers)
    if end.outcome is not Outcome.NOT_RUN and not (may_resend and end.outcome is Outcome.UNKNOWN):
        return _stop("MAY_HAVE_RUN", hint, numbers)
    backoff = backoff_s(rules, attempts, u)
    wait = backoff if hint is None else max(backoff, hint)
    resume = now + wait
    if attempts >= rules.max_attempts:
        return _stop("MAX_ATTEMPTS", hint, {**numbers, "max_attempts": rules.max_attempts}, refused=True)
    if budget_left is not None and budget_left <= 0:
        return _stop("BUDGET_EXCEEDED", hint, {**numbers, "budget_left": budget_left}, refused=True)
    if not retry_budget_allows:
        shares = {"budget_ratio": rules.budget_ratio, "budget_floor": rules.budget_floor}
        return _stop("RETRY_BUDGET", wait, {**numbers, **shares}, refused=True)
    numbers |= {"backoff_s": backoff, "wait_s": wait, "left_s": deadline - now}
    if hint is not None:
        numbers["hint_s"] = hint
    if resend_until is not None and resume > resend_until:
        return _stop("KEY_TTL", hint, {**numbers, "key_left_s": resend_until - now}, refused=True)
    if resume + MIN_ATTEMPT_S > deadline:
        return _stop("DEADLINE", wait, numbers, refused=True)
    if draining_until is not None and resume + MIN_ATTEMPT_S > draining_until:
        return _stop("DRAINING", wait, {**numbers, "grace_left_s": draining_until - now}, refused=True)
    return RetryDecision(
        retry=True,
        wait_s=wait,
        stopped_by="",
        retry_after_s=None,
        decision=Decision("retry", "SERVER_HINT" if wait > backoff else "BACKOFF", numbers),
    )


def server_hint_s(said_s: float | None) -> float | None:
    """A server's hint made safe: None when absent or not a number, 0 when past, at most MAX_HINT_S."""
    if said_s is None or math.isnan(said_s):
        return None
    return min(max(said_s, 0.0), MAX_HINT_S)


def _stop(
    reason: str, retry_after_s: float | None, numbers: Mapping[str, float], *, refused: bool = False
) -> RetryDecision:
    return RetryDecision(
        retry=False,
        wait_s=0.0,
        stopped_by=reason if refused else "",
        retry_after_s=retry_after_s,
        decision=Decision("stop", reason, numbers),
    )
