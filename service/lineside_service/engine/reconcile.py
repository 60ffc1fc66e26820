"""Asks a tool's `reconcile` tool what became of calls whose outcome nobody knows."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from lineside_service.core.call import Answer, Call
from lineside_service.core.fingerprint import downstream_key
from lineside_service.core.ledger import Evidence, Row, RowState, SettledBy, Settlement
from lineside_service.engine.dispatcher import Dispatcher
from lineside_service.engine.ledger import Ledger
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Log
from lineside_service.ports import RowFilter, StoreUnavailable

_ASK_LIMIT_S = 60.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 300.0
_ASKED_AT_ONCE = 8
_PAGE = 500


class Reconciler:
    """Pursues each UNKNOWN row of a tool that has a `reconcile` tool until it is settled.

    Asked once the attempts have really ended and at start-up, then after 1 s x 2^n up to 5 min; as the call's
    tenant, keyless, spending nothing. An answer that can't be used counts as `unknown`.
    """

    def __init__(self, ledger: Ledger, dispatcher: Dispatcher, sources: Sources, log: Log) -> None:
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._sources = sources
        self._log = log
        self._pursuits: dict[str, asyncio.Task[None]] = {}
        self._asking = asyncio.Semaphore(_ASKED_AT_ONCE)
        ledger.settlements.on_unknown = self.pursue

    async def start(self) -> None:
        """Pursue everything that is UNKNOWN already. StoreUnavailable as usual."""
        after = ""
        while True:
            which = RowFilter(state=RowState.UNKNOWN, after=after)
            rows = await self._ledger.records.list(which, _PAGE)
            for row in rows:
                self.pursue(row)
            if len(rows) < _PAGE:
                return
            after = rows[-1].call_id

    def pursue(self, row: Row) -> None:
        """Start asking about a row whose attempts have all ended; once per call."""
        if row.call_id in self._pursuits or self._asked_by(row) == "":
            return
        task = asyncio.get_running_loop().create_task(self._pursue(row), name=f"reconcile:{row.call_id}")
        self._pursuits[row.call_id] = task
        task.add_done_callback(lambda ended: self._ended(row.call_id, ended))

    async def stop(self) -> None:
        """Ask no more."""
        pursuits = list(self._pursuits.values())
        for task in pursuits:
            task.cancel()
        await asyncio.gather(*pursuits, return_exceptions=True)

    def _ended(self, call_id: str, task: asyncio.Task[None]) -> None:
        del self._pursuits[call_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("reconcile.failed", call_id=call_id, exc_info=error)

    def _asked_by(self, row: Row) -> str:
        registered = self._dispatcher.registry.find(row.scope.tool, row.scope.tenant)
        return "" if registered is None else registered.spec.reconcile

    async def _pursue(self, row: Row) -> None:
        wait = _FIRST_WAIT_S
        while not self._dispatcher.draining:
            async with self._asking:
                if await self._ask(row):
                    return
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    async def _ask(self, row: Row) -> bool:
        """One question; True when nothing is left to ask."""
        if self._ledger.entry_at(row.scope) is not None or self._ledger.attempt_in_flight(row.call_id):
            return False
        try:
            standing = await self._ledger.find(row.scope)
        except StoreUnavailable:
            return False
        if standing is None or standing.call_id != row.call_id or standing.state is not RowState.UNKNOWN:
            return self._ledger.entry_at(row.scope) is None
        evidence = await self._evidence(standing)
        if evidence is None:
            return False
        try:
            verdict, _ = await self._ledger.settle(standing, evidence, etag=standing.etag)
        except StoreUnavailable:
            return False
        # A call that was sent again since it was asked about is asked about again.
        return verdict not in (Settlement.STILL_RUNNING, Settlement.STALE_ETAG)

    async def _evidence(self, row: Row) -> Evidence | None:
        now, scope = self._sources.now(), row.scope
        key = downstream_key(scope.tenant, scope.tool, scope.key, row.fingerprint)
        call = Call(
            tenant=scope.tenant,
            tool=self._asked_by(row),
            arguments={"tool": scope.tool, "call_id": row.call_id, "downstream_key": key},
            arrival=now,
            deadline=now + _ASK_LIMIT_S,
            patient=True,
        )
        reply = await self._dispatcher.dispatch(call)
        if not isinstance(reply, Answer) or reply.tool_error:
            return None
        return self._read(msgspec.json.decode(reply.result), row)

    def _read(self, said: Any, row: Row) -> Evidence | None:
        state = said.get("state") if isinstance(said, dict) else None
        if state == "not_run":
            return Evidence(by=SettledBy.RECONCILE, done=False, reason="reconcile: not run")
        if state == "done":
            failed = said.get("tool_error") is not None
            value = said["tool_error"] if failed else said.get("result")
            return Evidence(
                by=SettledBy.RECONCILE,
                done=True,
                result=msgspec.json.encode(value),
                tool_error=failed,
                reason="reconcile: done",
            )
        if state != "unknown":
            self._log.warning("reconcile.unreadable", call_id=row.call_id, tool=row.scope.tool)
        return None
