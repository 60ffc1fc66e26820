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
from lineside_service.ports import LedgerRecords, LedgerStore, RowFilter, StoreUnavailable

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
            row = standing

    async def settle_late(self, row_id: bytes, call_id: str, end: AttemptEnd | None, *, last: bool) -> None:
        """An attempt that outlived its work has really ended; its word settles an UNKNOWN row.

        end None, or of unknown outcome: it says nothing. last: no other attempt of the call still runs.
        """
        try:
            row = await self._store.find(row_id)
            if row is None or row.call_id != call_id or row.state is RowState.RUNNING:
                return
            if end is not None and end.outcome is not Outcome.UNKNOWN:
                await self.settle(row, _evidence(end), attempt_in_flight=not last)
            elif last and row.state is RowState.UNKNOWN:
                self.on_unknown(row)
        except StoreUnavailable as error:
            self._log.error("ledger.late_completion_lost", call_id=call_id, error=str(error))

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


def _evidence(end: AttemptEnd) -> Evidence:
    done = end.outcome is Outcome.DONE
    return Evidence(
        by=SettledBy.LATE_COMPLETION,
        done=done,
        result=end.result or b"null",
        tool_error=end.tool_error,
        failure_kind=end.kind if done else None,
        failure_message=end.message if done and end.kind is not None else "",
        reason="the attempt ended after it was given up",
    )
