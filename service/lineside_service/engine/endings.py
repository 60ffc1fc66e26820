"""The ends of keyed work, written down as often as it takes, with callbacks: no task waits for the store."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from lineside_service.core import ledger as rules
from lineside_service.core.ledger import Row, RowState
from lineside_service.engine import refusals
from lineside_service.engine.entry import Entry, may_be_told
from lineside_service.engine.rows import ended_row
from lineside_service.engine.settlement import Settlements
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Log
from lineside_service.ports import LedgerStore

RETRY_FIRST_S, RETRY_CAP_S = 0.05, 5.0
"""Pauses between tries to write what must not be lost: doubled from the one up to the other."""


class Endings:
    """Writes ends. over: called when nothing is left to do for an entry. unwritten: ends refused so far."""

    def __init__(
        self,
        store: LedgerStore,
        settlements: Settlements,
        sources: Sources,
        log: Log,
        over: Callable[[Entry], None],
    ) -> None:
        self._store = store
        self._settlements = settlements
        self._sources = sources
        self._log = log
        self._over = over
        self.unwritten = 0

    def write(self, entry: Entry) -> None:
        """Write down what the work leaves behind; whoever waits for it is answered after that."""
        work = entry.work
        # What the attempts say at this moment: a late end that comes while the row is written settles it.
        state = rules.stands_after(work.history.outcome, entry.row.idempotency)
        if state is None or (entry.resumed and not work.history.records and not entry.has_intent):
            self._end(entry, None, is_unknown=state is not None)  # an unknown row stands as it was
            return
        wall, now = self._sources.wall(), self._sources.now()
        row = ended_row(entry.row, work, work.reply, state, wall_s=wall, now=now)
        self._end(entry, row, is_unknown=state is RowState.UNKNOWN)

    def _end(
        self, entry: Entry, row: Row | None, *, is_unknown: bool, delay_s: float = RETRY_FIRST_S
    ) -> None:
        """Store `row`, or release the key, as often as it takes."""
        writing = self._store.release(entry.row) if row is None else self._store.save(row)
        told = functools.partial(self._end_told, entry, row, is_unknown, delay_s)
        if writing.done():
            told(writing)
        else:
            writing.add_done_callback(told)

    def _end_told(
        self,
        entry: Entry,
        row: Row | None,
        is_unknown: bool,  # noqa: FBT001 - positional, for a callback
        delay_s: float,
        writing: asyncio.Future[Any],
    ) -> None:
        if (error := writing.exception()) is None:
            try:
                self._end_stands(entry, row, is_stored=writing.result() is not False, is_unknown=is_unknown)
            finally:
                self._over(entry)
            return
        self._log.error("ledger.write_failed", call_id=entry.row.call_id, error=str(error))
        if not entry.is_stalled:
            self._stall(entry)
        loop = asyncio.get_running_loop()
        again = functools.partial(self._end, is_unknown=is_unknown, delay_s=min(delay_s * 2, RETRY_CAP_S))
        loop.call_later(delay_s, again, entry, row)

    def _stall(self, entry: Entry) -> None:
        """Callers who can be told without a record are told at once."""
        entry.is_stalled = True
        self.unwritten += 1
        said = may_be_told(entry.work)
        for waiter in list(entry.work.waiters.present) if said is not None else ():
            waiter.answer(said)

    def _end_stands(self, entry: Entry, row: Row | None, *, is_stored: bool, is_unknown: bool) -> None:
        if row is not None and not is_stored:
            self._log.error("ledger.lost_ownership", call_id=row.call_id)
            entry.work.reply = refusals.outcome_unknown(row)
            return
        if not is_unknown:
            return
        self._settlements.unknown_count += 1
        if row is not None:
            entry.row = row.but(version=row.version + 1)
            if not entry.work.attempt_running:
                self._settlements.on_unknown(entry.row)
