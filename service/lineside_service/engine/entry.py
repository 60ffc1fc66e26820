"""A key that this process works on, and what its callers can be told before its end is written."""

from __future__ import annotations

import asyncio
from typing import Protocol

from lineside_service.core.call import Reply
from lineside_service.core.errors import ErrorKind, Failure, Outcome
from lineside_service.core.ledger import Row
from lineside_service.engine import refusals
from lineside_service.engine.work import Work


class EntryOwner(Protocol):
    """Whose entry it is."""

    async def write_intent(self, entry: Entry) -> Failure | None:
        """Make the claim durable; a Failure refuses the attempt."""
        ...

    def ended_late(self, entry: Entry) -> None:
        """An attempt has really ended after its work had its reply."""
        ...


class Entry:
    """A key that this process works on, from its claim until its end is written; it is the work's Keyed.

    row: as last written or claimed. resumed: an UNKNOWN row goes on. has_intent: the row is durable.
    is_stalled: the store refuses the end so far.
    """

    __slots__ = (
        "_owner",
        "_written",
        "has_intent",
        "is_stalled",
        "outcome_before",
        "resend_until",
        "resumed",
        "row",
        "work",
    )

    work: Work

    def __init__(self, owner: EntryOwner, row: Row, resend_until: float | None) -> None:
        self._owner = owner
        self._written: asyncio.Event | None = None
        self.row = row
        self.resumed = row.ever_unknown
        self.outcome_before = Outcome.UNKNOWN if row.ever_unknown else Outcome.NOT_RUN
        self.resend_until = resend_until
        self.has_intent = False
        self.is_stalled = False

    @property
    def key(self) -> str:
        """The caller's."""
        return self.row.scope.key

    @property
    def is_deserted(self) -> bool:
        """Whether everybody left before the work came to anything: nobody can join it any more."""
        reply = self.work.reply
        return isinstance(reply, Failure) and reply.kind is ErrorKind.CANCELLED

    @property
    def written(self) -> asyncio.Event:
        """Set once the end is written and the key is nobody's."""
        if self._written is None:
            self._written = asyncio.Event()
        return self._written

    def over(self) -> None:
        """The end is written: who waits for that goes on."""
        if self._written is not None:
            self._written.set()

    async def intent(self) -> Failure | None:
        """See Keyed."""
        return None if self.has_intent else await self._owner.write_intent(self)

    def late(self) -> None:
        """See Keyed."""
        self._owner.ended_late(self)


def may_be_told(work: Work) -> Reply | None:
    """The reply that needs no durable record: anything but the word that the work was done."""
    reply = work.reply
    return reply if isinstance(reply, Failure) and reply.outcome is not Outcome.DONE else None


def standing_reply(work: Work) -> Reply:
    """What a waiter whose deadline has come can be told while the work, or its record, is not finished."""
    first = work.history.first_started_s
    reply = work.reply
    if reply is None:
        return refusals.still_running(work.call_id, work.history.attempts, first)
    return may_be_told(work) or refusals.not_stored_in_time(work.call_id, work.history.attempts, first)
