"""The concurrent attempts of one tool, and who waits for a place.

The account. A tool has `concurrency` c slots. An attempt that outlives its limit is abandoned: it stops
holding a slot, but it still burns the tool, so beyond c abandoned ones each takes a slot away:

    usable = max(0, min(c, 2c - abandoned))        0 = stuck: everybody is refused at once

The waiting list holds at most `limit_waiting` waiters; tenants take turns, inside a tenant first come first
served. When it is full, the newest waiter of the tenant with most waiting goes (the newcomer counts, and
loses a tie): an impatient one is refused, a patient one steps back. Patient waiters (items of a batch stream)
are never refused for a full list: they stand in the overflow, where tenants take turns, then the streams of
a tenant, and enter the list as places free.

After every call:
- running and abandoned are never negative; a grant is made only while running < usable;
- somebody waiting means running >= usable, or nobody would be waiting;
- somebody in the overflow means that the list is full;
- usable = 0 means nobody waits;
- a waiter is exactly one of: waiting, granted, refused, gone.

Pure structure: a call returns whom the shell must wake. An illegal step raises and changes nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from lineside_service.core.bounds import require_between
from lineside_service.core.decision import Decision
from lineside_service.core.turns import Line, Turns

LIMIT_WAITING: Final = 64
"""Waiters per tool that may stand in the list."""

MAX_CONCURRENCY: Final = 100_000


class WaiterState(enum.Enum):
    """Where a waiter stands. Only WAITING is not final, apart from a granted one that leaves."""

    WAITING = "waiting"
    GRANTED = "granted"
    REFUSED = "refused"
    LEFT = "left"


@dataclass(slots=True, eq=False, kw_only=True)
class Waiter:
    """One attempt that wants a slot; made by the shell, moved by `Slots` alone.

    stream: identity of the batch stream, for fairness between patient waiters. ticket: the shell's own, say
    the future to wake; never looked at here. refusal: why, once the state is REFUSED. arrived: order of
    joining the list, -1 before `enqueue`.
    """

    tenant: str
    stream: int = 0
    patient: bool = False
    ticket: object = None
    state: WaiterState = WaiterState.WAITING
    refusal: Decision | None = None
    arrived: int = field(default=-1, repr=False)
    in_overflow: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class Wake:
    """Whom to wake, in order: `granted` hold a slot each, `refused` carry their reason."""

    granted: tuple[Waiter, ...] = ()
    refused: tuple[Waiter, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.granted or self.refused)


NOBODY: Final = Wake()


def _tenant(waiter: Waiter) -> str:
    return waiter.tenant


def _stream(waiter: Waiter) -> int:
    return waiter.stream


def _streams() -> Turns[Waiter, Line[Waiter]]:
    return Turns(_stream, Line[Waiter])


class Slots:
    """One tool's slots and waiting list; see the top of this module for the rules.

    running: attempts that hold a slot; abandoned: attempts past their limit that have not really ended;
    usable: slots that may be held at once.
    """

    __slots__ = (
        "_list",
        "_overflow",
        "_tally",
        "abandoned",
        "concurrency",
        "limit_waiting",
        "running",
        "usable",
    )

    def __init__(self, concurrency: int, limit_waiting: int = LIMIT_WAITING) -> None:
        require_between("concurrency", concurrency, 1, MAX_CONCURRENCY)
        require_between("limit_waiting", limit_waiting, 0, 1_000_000)
        self.concurrency = concurrency
        self.limit_waiting = limit_waiting
        self.running = 0
        self.abandoned = 0
        self.usable = concurrency
        self._tally = 0
        self._list: Turns[Waiter, Line[Waiter]] = Turns(_tenant, Line[Waiter])
        self._overflow: Turns[Waiter, Turns[Waiter, Line[Waiter]]] = Turns(_tenant, _streams)

    @property
    def waiting(self) -> int:
        """Waiters in the bounded list."""
        return self._list.size

    @property
    def overflow(self) -> int:
        """Patient waiters for whom the list has no place yet."""
        return self._overflow.size

    @property
    def stuck(self) -> bool:
        """Whether abandoned attempts have taken every slot."""
        return self.usable == 0

    def try_take(self, tenant: str) -> bool:  # noqa: ARG002 - the choice may come to depend on the tenant
        """Take a slot if one is free; whenever somebody waits none is, so nobody is overtaken."""
        if self.running < self.usable:
            self.running += 1
            return True
        return False

    def enqueue(self, waiter: Waiter) -> Wake:
        """Wait for a slot. Look at `waiter.state` afterwards: it may be refused, or granted, already.

        Refused as OVERLOADED (list full; may be another waiter) or STUCK. RuntimeError when it waited before.
        """
        if waiter.arrived >= 0 or waiter.state is not WaiterState.WAITING:
            raise RuntimeError(f"a waiter enters once; this one is {waiter.state.value}")
        waiter.arrived = self._next_number()
        if self.usable == 0:
            return Wake(refused=(self._refuse(waiter, "STUCK"),))
        if self.running < self.usable:
            self.running += 1
            waiter.state = WaiterState.GRANTED
            return Wake(granted=(waiter,))
        if waiter.patient and self._list.size >= self.limit_waiting:
            self._step_back(waiter, at_head=False)
            return NOBODY
        self._list.push(waiter)
        return self._shed() if self._list.size > self.limit_waiting else NOBODY

    def leave(self, waiter: Waiter) -> Wake:
        """Stop waiting (cancelled, or its deadline came). Idempotent.

        A granted waiter that never took up its slot gives it on. One that took it calls `release` instead.
        """
        if waiter.state is WaiterState.GRANTED:
            wake = self.release()
            waiter.state = WaiterState.LEFT
            return wake
        if waiter.state is WaiterState.WAITING:
            waiter.state = WaiterState.LEFT
            if waiter.in_overflow:
                waiter.in_overflow = False
                self._overflow.remove(waiter)
            elif waiter.arrived >= 0:
                self._list.remove(waiter)
                self._refill()
        return NOBODY

    def release(self) -> Wake:
        """Give a slot back at the end of its attempt. RuntimeError when none is held."""
        if self.running <= 0:
            raise RuntimeError("released a slot that nobody holds")
        self.running -= 1
        if self._list.size or self._overflow.size:
            return self._grant()
        return NOBODY

    def abandon(self) -> Wake:
        """Move a held slot to the abandoned account: its attempt outlived its limit and still runs."""
        if self.running <= 0:
            raise RuntimeError("abandoned a slot that nobody holds")
        self.running -= 1
        self.abandoned += 1
        return self._recount()

    def reclaim(self) -> Wake:
        """Strike an abandoned attempt off: it really ended. RuntimeError when there is none."""
        if self.abandoned <= 0:
            raise RuntimeError("reclaimed an attempt that nobody abandoned")
        self.abandoned -= 1
        return self._recount()

    def resize(self, concurrency: int) -> Wake:
        """Change the number of slots; those held beyond it run to their end. ValueError below 1."""
        require_between("concurrency", concurrency, 1, MAX_CONCURRENCY)
        self.concurrency = concurrency
        return self._recount()

    def _recount(self) -> Wake:
        self.usable = max(0, min(self.concurrency, 2 * self.concurrency - self.abandoned))
        if self.usable:
            return self._grant()
        refused = []
        while self._list.size or self._overflow.size:
            refused.append(self._refuse(self._take_next(), "STUCK"))
        return Wake(refused=tuple(refused)) if refused else NOBODY

    def _grant(self) -> Wake:
        granted = []
        while self.running < self.usable and (self._list.size or self._overflow.size):
            waiter = self._take_next()
            waiter.state = WaiterState.GRANTED
            self.running += 1
            granted.append(waiter)
        return Wake(granted=tuple(granted)) if granted else NOBODY

    def _take_next(self) -> Waiter:
        """Whose turn it is. With a list of no places the overflow is served directly."""
        if not self._list.size:
            waiter = self._overflow.pop()
            waiter.in_overflow = False
            return waiter
        waiter = self._list.pop()
        self._refill()
        return waiter

    def _refill(self) -> None:
        while self._overflow.size and self._list.size < self.limit_waiting:
            waiter = self._overflow.pop()
            waiter.in_overflow = False
            waiter.arrived = self._next_number()
            self._list.push(waiter)

    def _shed(self) -> Wake:
        """Bring an overfull list back to its limit."""
        longest = max(self._list.lanes(), key=lambda lane: (lane.size, lane.newest().arrived))
        victim = longest.newest()
        self._list.remove(victim)
        if victim.patient:
            self._step_back(victim, at_head=True)
            return NOBODY
        return Wake(refused=(self._refuse(victim, "OVERLOADED"),))

    def _step_back(self, waiter: Waiter, *, at_head: bool) -> None:
        waiter.in_overflow = True
        if at_head:
            self._overflow.push_front(waiter)
        else:
            self._overflow.push(waiter)

    def _refuse(self, waiter: Waiter, reason: str) -> Waiter:
        waiter.state = WaiterState.REFUSED
        waiter.refusal = Decision(
            "refuse",
            reason,
            {
                "running": self.running,
                "usable": self.usable,
                "abandoned": self.abandoned,
                "waiting": self._list.size,
                "limit_waiting": self.limit_waiting,
            },
        )
        return waiter

    def _next_number(self) -> int:
        self._tally += 1
        return self._tally
