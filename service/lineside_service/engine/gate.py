"""The slots of one tool, as something to wait at: core.slots decides, this wakes whom it names."""

from __future__ import annotations

import enum
from collections.abc import Callable

from lineside_service.core.decision import Decision
from lineside_service.core.slots import Slots, Waiter, Wake
from lineside_service.engine.pause import Pause


class Entry(enum.Enum):
    """What a wait at the gate can end with besides a refusal and its deadline."""

    GRANTED = "granted"
    STOPPED = "stopped"


Word = Entry | Decision
"""How a wait ended: granted, stopped, or refused with the record of why."""


class Gate:
    """A tool's slots. Every method may wake waiters; none of them waits itself, `enter` apart.

    Each attempt takes a slot and gives it back exactly once: `release` when it ended in time, or `give_up`
    when it outlived its limit, followed by `reclaim` when it has really ended.
    """

    __slots__ = ("slots",)

    def __init__(self, concurrency: int) -> None:
        self.slots = Slots(concurrency)

    async def enter(
        self, pause: Pause[Word], *, tenant: str, stream: int, patient: bool, until: Callable[[], float]
    ) -> Word | None:
        """Wait for a slot; None when `until()` passed first. Cancelling passes the place on."""
        if self.slots.try_take(tenant):
            return Entry.GRANTED
        waiter = Waiter(tenant=tenant, stream=stream, patient=patient, ticket=pause)
        self._carry_out(self.slots.enqueue(waiter))
        try:
            entry = await pause.wait(until)
        except BaseException:
            self._carry_out(self.slots.leave(waiter))
            raise
        if entry is not Entry.GRANTED:
            self._carry_out(self.slots.leave(waiter))
        return entry

    def release(self) -> None:
        """An attempt ended in time."""
        self._carry_out(self.slots.release())

    def give_up(self) -> None:
        """An attempt outlived its limit: its slot moves to the abandoned account."""
        self._carry_out(self.slots.abandon())

    def reclaim(self) -> None:
        """An abandoned attempt has really ended."""
        self._carry_out(self.slots.reclaim())

    def resize(self, concurrency: int) -> None:
        """A reload changed the tool's concurrency."""
        self._carry_out(self.slots.resize(concurrency))

    def _carry_out(self, wake: Wake) -> None:
        for waiter in wake.granted:
            _pause_of(waiter).wake(Entry.GRANTED)
        for waiter in wake.refused:
            if waiter.refusal is not None:
                _pause_of(waiter).wake(waiter.refusal)


def _pause_of(waiter: Waiter) -> Pause[Word]:
    ticket = waiter.ticket
    if not isinstance(ticket, Pause):
        raise TypeError("a waiter at the gate carries the pause it waits in")
    return ticket
