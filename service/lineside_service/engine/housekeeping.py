"""What leaves the ledger by itself: expired rows in small batches, and the alert of old unknowns."""

from __future__ import annotations

import asyncio

from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Log
from lineside_service.ports import LedgerRecords, StoreUnavailable

SWEEP_EVERY_S = 5.0
SWEEP_BATCH = 200
"""Rows per transaction: few enough that a durable write waiting behind it stays within milliseconds."""


class Housekeeping:
    """Sweeps the ledger for as long as its task lives. alerts: old unknowns seen since start."""

    def __init__(self, records: LedgerRecords, sources: Sources, log: Log) -> None:
        self._records = records
        self._sources = sources
        self._log = log
        self.alerts = 0

    async def run(self) -> None:
        """Sweep every few seconds until cancelled."""
        while True:
            await self.sweep()
            await asyncio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> int:
        """Delete everything that has expired by now, batch by batch; returns how many rows."""
        deleted = 0
        while True:
            try:
                swept = await self._records.sweep(self._sources.wall(), SWEEP_BATCH)
            except StoreUnavailable as error:
                self._log.warning("ledger.sweep_failed", error=str(error))
                return deleted
            deleted += swept.deleted
            if swept.alerted:
                self.alerts += swept.alerted
                self._log.error("ledger.unknown_for_7_days", calls=swept.alerted)
            if swept.deleted < SWEEP_BATCH:
                return deleted
            await asyncio.sleep(0)
