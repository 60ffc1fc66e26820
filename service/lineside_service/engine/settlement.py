"""What is not known is found out: late completions, people, restarts. The first settlement stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from lineside_service.core import ledger as rules
from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.errors import Outcome
from lineside_service.core.ledger import Evidence, Row, RowState, SettledBy, Settlement
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Log
from lineside_service.ports import LedgerRecords, LedgerStore, RowFilter

_RECOVER_PAGE = 500


class Settlements:
    """Applies evidence to rows. unknown_count: UNKNOWN rows that stand.

    on_unknown: called with a row that is UNKNOWN and whose attempts have all really ended.
    """

    def __init__(
        self, store: LedgerStore, records: LedgerRecords, sources: Sources, *, incarnation: str, log: Log
    ) -> None:
        self._store = store
        self._records = records
        self._sources = sources
        self._incarnation = incarnation
        self._log = log
        self.unknown_count = 0
        self.on_unknown: Callable[[Row], None] = lambda _: None

    async def settle(
        self, row: Row, evidence: Evidence, *, attempt_in_flight: bool, etag: str | None = None
    ) -> tuple[Settlement, Row]:
        """Judge evidence and apply it. StoreUnavailable when it can't be written."""
        while True:
            verdict = rules.settlement(row, evidence, attempt_in_flight=attempt_in_flight, etag=etag)
            if verdict is Settlement.DIFFERENT:
                self._log.warning("ledger.evidence_differs", call_id=row.call_id, by=evidence.by.value)
            if verdict is not Settlement.APPLY:
                return verdict, row
            after = rules.settled(row, evidence, wall_s=self._sources.wall())
            if await self._store.save(after):
                self.unknown_count -= 1
                self._log.info(
                    "ledger.settled",
                    call_id=row.call_id,
                    tenant=row.scope.tenant,
                    tool=row.scope.tool,
                    by=evidence.by.value,
                    done=evidence.done,
                    reason=evidence.reason,
                )
                return verdict, replace(after, version=after.version + 1)
            standing = await self._store.find(row.id)
            if standing is None or standing.call_id != row.call_id:
                return Settlement.NOT_UNKNOWN, row
            if standing.version == row.version:  # refused although nothing changed: somebody works on the key
                return Settlement.STILL_RUNNING, row
            row = standing

    async def settle_late(
        self, row_id: bytes, call_id: str, evidence: Evidence | None, *, attempt_in_flight: bool
    ) -> None:
        """An attempt that outlived its work has really ended; what is known by now settles an UNKNOWN row.

        evidence None: still nothing. StoreUnavailable when it can't be written.
        """
        row = await self._store.find(row_id)
        if row is None or row.call_id != call_id or row.state is RowState.RUNNING:
            return
        if evidence is not None:
            await self.settle(row, evidence, attempt_in_flight=attempt_in_flight)
        elif not attempt_in_flight and row.state is RowState.UNKNOWN:
            self.on_unknown(row)

    async def recover(self) -> int:
        """Settle what dead processes left RUNNING; returns how many rows. StoreUnavailable as usual."""
        recovered = 0
        while True:
            found = await self._records.list(RowFilter(state=RowState.RUNNING), _RECOVER_PAGE)
            dead = [row for row in found if row.incarnation != self._incarnation]
            if not dead:
                break
            await asyncio.gather(*(self._recover(row) for row in dead))
            recovered += len(dead)
        self.unknown_count = await self._records.count(RowState.UNKNOWN)
        return recovered

    async def _recover(self, row: Row) -> None:
        after = rules.recover(row, wall_s=self._sources.wall())
        if after is None:
            await self._store.release(row)
        else:
            await self._store.save(after)


def late_evidence(outcome: Outcome, done_end: AttemptEnd | None) -> Evidence | None:
    """What the attempts of a call, all together, say by now; None while that is nothing.

    One attempt that did not run proves nothing about another: only the outcome of them all counts.
    """
    reason = "the attempt ended after it was given up"
    if outcome is Outcome.NOT_RUN:
        return Evidence(by=SettledBy.LATE_COMPLETION, done=False, reason=reason)
    if done_end is None:
        return None
    return Evidence(
        by=SettledBy.LATE_COMPLETION,
        done=True,
        result=done_end.result or b"null",
        tool_error=done_end.tool_error,
        failure_kind=done_end.kind,
        failure_message=done_end.message if done_end.kind is not None else "",
        failure_reason=done_end.reason if done_end.kind is not None else "",
        reason=reason,
    )
