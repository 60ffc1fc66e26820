"""Who waits for a piece of work, until when, and who owns it.

The first waiter still present owns the work: attempts burn its budget. A waiter that leaves never fails the
others; the work's deadline is the latest among those present, at most 600 s after the claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from lineside_service.core.call import Call, Reply
from lineside_service.core.deadline import MAX_CALL_S
from lineside_service.core.errors import Source

_LAST_LOOK_S = 0.008
"""How long a waiter whose deadline is the work's own waits for the work's word on it; well inside the margin
that the edge keeps for the reply (20 ms)."""
_LOOKS = 1
"""How often it does so."""


class Waiter:
    """One caller of a piece of work. budget_left: attempts it may still spend, None = unbounded.

    is_late: it came when the work had its reply already.
    """

    __slots__ = ("_timer", "budget_left", "call", "early", "future", "is_late", "source")

    def __init__(self, call: Call, source: Source, *, is_late: bool = False) -> None:
        self.call = call
        self.source = source
        self.is_late = is_late
        self.budget_left = call.budget
        self.future: asyncio.Future[Reply | None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.early: tuple[Reply | None] | None = None

    @property
    def is_spent(self) -> bool:
        """Whether it may pay for no further attempt."""
        return self.budget_left is not None and self.budget_left <= 0

    def answer(self, reply: Reply | None) -> None:
        """End its wait; later answers are ignored. None: this work is not for it, the key must be looked up
        again.
        """
        seen = None if reply is None else for_waiter(reply, self.source)
        if self.future is None:
            self.early = self.early or (seen,)
        elif not self.future.done():
            self.future.set_result(seen)

    async def wait(self, work_deadline: Callable[[], float], standing: Callable[[], Reply]) -> Reply | None:
        """Its reply, at its own deadline at the latest: then what `standing()` can say so far."""
        if self.early is not None:
            return self.early[0]
        loop = asyncio.get_running_loop()
        self.future = loop.create_future()
        self._timer = loop.call_at(self.call.deadline, self._due, loop, work_deadline, standing, _LOOKS)
        try:
            return await self.future
        finally:
            self._timer.cancel()

    def _due(
        self,
        loop: asyncio.AbstractEventLoop,
        work_deadline: Callable[[], float],
        standing: Callable[[], Reply],
        looks: int,
    ) -> None:
        if looks and work_deadline() <= self.call.deadline:
            again = loop.time() + _LAST_LOOK_S
            self._timer = loop.call_at(again, self._due, loop, work_deadline, standing, looks - 1)
            return
        self.answer(standing())


class Waiters:
    """The waiters of one piece of work, in order of arrival. has_budgets: somebody's attempts are counted."""

    __slots__ = ("_latest_cap", "deadline", "has_budgets", "latest_deadline", "present")

    def __init__(self, claimed: float) -> None:
        self._latest_cap = claimed + MAX_CALL_S
        self.present: list[Waiter] = []
        self.has_budgets = False
        self.deadline = claimed
        self.latest_deadline = claimed

    @property
    def owner(self) -> Waiter | None:
        """Whose budget pays for the next attempt."""
        return self.present[0] if self.present else None

    def add(self, waiter: Waiter) -> None:
        """A caller comes."""
        self.present.append(waiter)
        if waiter.budget_left is not None:
            self.has_budgets = True
        self._set_deadline()

    def remove(self, waiter: Waiter) -> None:
        """A caller goes, answered or not; the last one leaves its deadline behind."""
        if waiter in self.present:
            self.present.remove(waiter)
            if self.present:
                self._set_deadline()

    def attempt_timeout_s(self, configured_s: float) -> float:
        """The longest limit any waiter accepts for an attempt; callers can only shorten the tool's own."""
        if len(self.present) == 1:
            own_s = self.present[0].call.attempt_timeout_s
            return configured_s if own_s is None else min(configured_s, own_s)
        limits = [w.call.attempt_timeout_s for w in self.present]
        shortest = [limit for limit in limits if limit is not None]
        if len(shortest) < len(limits) or not shortest:
            return configured_s
        return min(configured_s, max(shortest))

    def _set_deadline(self) -> None:
        present = self.present
        latest = present[0].call.deadline if len(present) == 1 else max(w.call.deadline for w in present)
        self.deadline = latest = min(latest, self._latest_cap)
        self.latest_deadline = max(self.latest_deadline, latest)


def for_waiter(reply: Reply, source: Source) -> Reply:
    """The same ending, as one waiter sees it: who joined says so; nothing executed has no source."""
    if source is Source.EXECUTED or reply.source is source:
        return reply
    return replace(reply, source=source)
