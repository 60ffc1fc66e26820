"""The circuit breaker of one tool.

The theory. A window of recent attempts is evidence about the tool. When enough of them failed, sending more
only adds load and makes callers wait, so the breaker opens and calls are refused at once. After `open_s` it
is half-open: a few attempts, the probes, are let through, and the first that brings evidence decides.

    from        event             to          when
    CLOSED      TRIPPED           OPEN        >= min_attempts in the window, failed share >= failure_ratio
    OPEN        RESTED            HALF_OPEN   open_s have passed
    HALF_OPEN   PROBE_SUCCEEDED   CLOSED      a live probe got an answer
    HALF_OPEN   PROBE_FAILED      OPEN        a live probe failed

Anything else raises and changes nothing. Every move starts a new generation with an empty window. An attempt
holds a permit: a lease with the generation it began in. A permit that is settled twice, comes from an earlier
generation or is older than its lease plus grace is void and moves nothing, so a late report can neither close
the breaker nor free a probe place that another holds, and a probe that never reports cannot keep its place.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lineside_service.core.attempt import Verdict
from lineside_service.core.bounds import require_between
from lineside_service.core.decision import Decision
from lineside_service.core.window import WindowCount


class BreakerState(enum.Enum):
    """Whether attempts are let through: all, none, or a few probes."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerEvent(enum.Enum):
    """What moves a breaker."""

    TRIPPED = "tripped"
    RESTED = "rested"
    PROBE_SUCCEEDED = "probe_succeeded"
    PROBE_FAILED = "probe_failed"


TRANSITIONS: Final[Mapping[tuple[BreakerState, BreakerEvent], BreakerState]] = MappingProxyType(
    {
        (BreakerState.CLOSED, BreakerEvent.TRIPPED): BreakerState.OPEN,
        (BreakerState.OPEN, BreakerEvent.RESTED): BreakerState.HALF_OPEN,
        (BreakerState.HALF_OPEN, BreakerEvent.PROBE_SUCCEEDED): BreakerState.CLOSED,
        (BreakerState.HALF_OPEN, BreakerEvent.PROBE_FAILED): BreakerState.OPEN,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRules:
    """When a tool's breaker opens and how it closes again.

    failure_ratio: share of failures (above 0, at most 1) among >= min_attempts inside window_s seconds.
    open_s: seconds until half-open. probes: attempts at once while half-open. grace_s: seconds beyond its
    lease for which a permit is still believed; covers the 250 ms in which a timed-out attempt is answered.
    enabled = False lets everything through. ValueError names the field and its bound.
    """

    enabled: bool = True
    failure_ratio: float = 0.5
    min_attempts: int = 20
    window_s: float = 10.0
    open_s: float = 5.0
    probes: int = 1
    grace_s: float = 1.0

    def __post_init__(self) -> None:
        require_between("failure_ratio", self.failure_ratio, 0.001, 1)
        require_between("min_attempts", self.min_attempts, 1, 1_000_000)
        require_between("window_s", self.window_s, 0.1, 3600)
        require_between("open_s", self.open_s, 0.001, 3600)
        require_between("probes", self.probes, 1, 1000)
        require_between("grace_s", self.grace_s, 0, 60)


class Permit:
    """The right to start one attempt, as a lease. Opaque: hand it back to `Breaker.settle`."""

    __slots__ = ("expires", "generation", "settled")

    def __init__(self, generation: int, expires: float) -> None:
        self.generation = generation
        self.expires = expires
        self.settled = False


_UNWATCHED: Final = Permit(-1, float("-inf"))

# Names of this module's own: looking a member up on its enum costs more than checking a closed breaker does.
_CLOSED = BreakerState.CLOSED
_OPEN = BreakerState.OPEN
_HALF_OPEN = BreakerState.HALF_OPEN


class Breaker:
    """One tool's breaker. `now` is loop time in seconds and must not run backwards."""

    __slots__ = (
        "_attempts",
        "_failures",
        "_generation",
        "_opened_at",
        "_opened_by",
        "_probes",
        "_state",
        "rules",
    )

    def __init__(self, rules: BreakerRules) -> None:
        self.rules = rules
        self._state = _CLOSED
        self._generation = 0
        self._opened_at = 0.0
        self._opened_by: Mapping[str, float] = MappingProxyType({})
        self._probes: list[Permit] = []
        self._attempts = WindowCount(rules.window_s)
        self._failures = WindowCount(rules.window_s)

    @property
    def is_closed(self) -> bool:
        """Whether everything is let through."""
        return self._state is _CLOSED

    def state(self, now: float) -> BreakerState:
        """The state at loop time `now`; an open breaker that has rested is half-open."""
        if self._state is _OPEN and now >= self._opened_at + self.rules.open_s:
            self._move(BreakerEvent.RESTED, now)
        return self._state

    def peek(self, now: float) -> BreakerState:
        """The state at loop time `now` for somebody who only looks, from any thread: nothing is moved."""
        rested = self._state is BreakerState.OPEN and now >= self._opened_at + self.rules.open_s
        return BreakerState.HALF_OPEN if rested else self._state

    def is_open(self, now: float) -> bool:
        """Whether an attempt would be refused now: open, or half-open with every probe place held."""
        if self._state is _CLOSED:
            return False
        if self.state(now) is _OPEN:
            return True
        return self._state is _HALF_OPEN and self.live_probes(now) >= self.rules.probes

    def retry_after_s(self, now: float) -> float | None:
        """Seconds until an attempt may be let through; None when one would be now.

        Open: the time to half-open. Half-open: until the first probe lapses, at most `open_s`, because a
        probe that fails sooner starts another rest.
        """
        if not self.is_open(now):
            return None
        if self._state is _OPEN:
            return self._opened_at + self.rules.open_s - now
        lapse = min(probe.expires for probe in self._probes)
        return max(0.0, min(lapse - now, self.rules.open_s))

    def check(self, now: float) -> Decision | None:
        """The record of a refusal, or None when an attempt would be let through."""
        retry_after = self.retry_after_s(now)
        if retry_after is None:
            return None
        reason = "CIRCUIT_OPEN" if self._state is _OPEN else "PROBE_RUNNING"
        return Decision("refuse", reason, {"retry_after_s": retry_after, **self._opened_by})

    def acquire(self, now: float, lease_s: float) -> Permit | None:
        """A permit for an attempt that runs at most `lease_s` seconds, or None when it is refused."""
        if self._state is _CLOSED:
            if not self.rules.enabled:
                return _UNWATCHED
            return Permit(self._generation, now + lease_s + self.rules.grace_s)
        if self.is_open(now):
            return None
        permit = Permit(self._generation, now + lease_s + self.rules.grace_s)
        self._probes.append(permit)
        return permit

    def settle(self, permit: Permit, verdict: Verdict, now: float) -> Decision | None:
        """Report how a permit's attempt ended; returns the record of a move, None when the state stays.

        Harmless when repeated or late. IGNORED gives a probe's place back and is no evidence.
        """
        if permit.settled or permit.generation != self._generation:
            return None
        permit.settled = True
        if self._state is _HALF_OPEN:
            return self._settle_probe(permit, verdict, now)
        if verdict is Verdict.IGNORED or now > permit.expires:
            return None
        self._attempts.add(now)
        if verdict is Verdict.FAILURE:
            self._failures.add(now)
        return self._judge(now)

    def adopt(self, rules: BreakerRules) -> None:
        """Go on under new rules with the present state, permits and window; switching off closes."""
        if rules.window_s != self.rules.window_s:
            self._attempts = self._attempts.resized(rules.window_s)
            self._failures = self._failures.resized(rules.window_s)
        if not rules.enabled:
            self._enter(_CLOSED)
        self.rules = rules

    def counts(self, now: float) -> tuple[int, int]:
        """(attempts, failures) of this generation inside the window."""
        return self._attempts.count(now), self._failures.count(now)

    def live_probes(self, now: float) -> int:
        """How many probe places are held at loop time `now`."""
        if self._probes:
            self._probes = [probe for probe in self._probes if now <= probe.expires]
        return len(self._probes)

    def _settle_probe(self, permit: Permit, verdict: Verdict, now: float) -> Decision | None:
        if permit in self._probes:
            self._probes.remove(permit)
        if verdict is Verdict.IGNORED or now > permit.expires:
            return None
        if verdict is Verdict.SUCCESS:
            self._move(BreakerEvent.PROBE_SUCCEEDED, now)
            return Decision("close", "PROBE_SUCCEEDED", {})
        self._opened_by = {"failures": 1, "attempts": 1}
        self._move(BreakerEvent.PROBE_FAILED, now)
        return Decision("open", "PROBE_FAILED", {"open_s": self.rules.open_s})

    def _judge(self, now: float) -> Decision | None:
        """Open when the window says so. Successes count too: one may be the attempt that makes it enough."""
        failures = self._failures.count(now)
        if not failures:
            return None
        attempts = self._attempts.count(now)
        if attempts < self.rules.min_attempts or failures < self.rules.failure_ratio * attempts - 1e-9:
            return None
        self._opened_by = {"failures": failures, "attempts": attempts}
        self._move(BreakerEvent.TRIPPED, now)
        return Decision("open", "FAILURE_RATIO", {"open_s": self.rules.open_s, **self._opened_by})

    def _move(self, event: BreakerEvent, now: float) -> None:
        """Take one step of the table."""
        to = TRANSITIONS.get((self._state, event))
        if to is None:
            raise RuntimeError(f"a breaker that is {self._state.value} cannot be {event.value}")
        if to is _OPEN:
            self._opened_at = now
        self._enter(to)

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._generation += 1
        self._probes = []
        self._attempts.clear()
        self._failures.clear()
