"""The ledger at work: one piece of work per key, written down before and after.

The process's own map is asked before the store. A key is in the map from its claim until its end is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from lineside_service.core import ledger as rules
from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.call import Answer, Call, Reply
from lineside_service.core.errors import ErrorKind, Failure, Outcome, Source
from lineside_service.core.fingerprint import differing_members, member_hashes, scope_id
from lineside_service.core.ledger import Lookup, Row, RowState, Scope
from lineside_service.core.tool import Idempotency
from lineside_service.engine import refusals
from lineside_service.engine.conclusion import reply_from_row
from lineside_service.engine.registry import RegisteredTool
from lineside_service.engine.rows import KeyedCall, claimed_row, ended_row
from lineside_service.engine.settlement import Settlements
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Log
from lineside_service.engine.work import Keyed, Work
from lineside_service.ports import Claim, LedgerRecords, LedgerStore, StoreUnavailable

_RETRY_FIRST_S, _RETRY_CAP_S = 0.05, 5.0

WorkMaker = Callable[[str, str, Keyed], Work]
"""Makes the work of a call: (call_id, downstream key, what the ledger adds)."""


@dataclass(slots=True)
class Entry:
    """A key that this process works on. row: as last written or claimed; written: set once its end is."""

    row: Row
    work: Work
    resumed: bool
    written: asyncio.Event = field(default_factory=asyncio.Event)


class Ledger:
    """Keyed work, from the key to the reply."""

    def __init__(
        self, store: LedgerStore, records: LedgerRecords, sources: Sources, *, incarnation: str, log: Log
    ) -> None:
        self._store = store
        self.records = records
        self.settlements = Settlements(store, records, sources, incarnation=incarnation, log=log)
        self._sources = sources
        self._incarnation = incarnation
        self._log = log
        self._entries: dict[bytes, Entry] = {}
        self._by_call_id: dict[str, Work] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.unwritten = 0

    # -- what others may ask ----------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether some key's end, or some settlement, is still on its way."""
        return bool(self._tasks)

    def attempt_in_flight(self, call_id: str) -> bool:
        """Whether an attempt of this call still runs, given up or not."""
        work = self._by_call_id.get(call_id)
        return work is not None and work.attempt_running

    def entry_of(self, call_id: str) -> Entry | None:
        """The entry with this call id, while this process works on it."""
        work = self._by_call_id.get(call_id)
        return next((e for e in self._entries.values() if e.work is work), None) if work is not None else None

    def entry_at(self, scope: Scope) -> Entry | None:
        """The entry of this key, while this process works on it."""
        return self._entries.get(scope_id(scope.tenant, scope.tool, scope.key))

    def entries(self) -> list[Entry]:
        """Everything that this process works on."""
        return list(self._entries.values())

    async def find(self, scope: Scope) -> Row | None:
        """The stored row of a key. StoreUnavailable when the store does not answer."""
        return await self._store.find(scope_id(scope.tenant, scope.tool, scope.key))

    async def wait_idle(self) -> None:
        """Return once every key's end is written and every settlement on its way is made."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    # -- the road ---------------------------------------------------------------------------------------

    async def look_up(self, keyed: KeyedCall, key_ttl_s: float | None) -> Reply | Row | Entry | None:
        """What the key finds: a reply that ends the road, an entry to join, a row to go on from, or nothing.

        A Row comes back when the key may execute although a row stands (settled as not run, expired, or an
        UNKNOWN `by_key` one within its time): the claim replaces exactly that row. Nothing may be awaited
        between this and `begin`. StoreUnavailable when the store does not answer.
        """
        row = None
        entry = self._entries.get(keyed.row_id)
        if entry is None:
            row = await self._store.find(keyed.row_id)
            entry = self._entries.get(keyed.row_id)
        if entry is not None:
            return entry if entry.row.fingerprint == keyed.print else self._conflict(entry.row, keyed.call)
        wall = self._sources.wall()
        choice = rules.look_up(
            row, fingerprint=keyed.print, wall_s=wall, key_ttl_s=key_ttl_s, incarnation=self._incarnation
        )
        if row is None or choice is Lookup.EXECUTE:
            return row
        if choice is Lookup.CONFLICT:
            return self._conflict(row, keyed.call)
        if choice is Lookup.REPLAY:
            return reply_from_row(row)
        if choice is Lookup.BUSY_ELSEWHERE:
            return refusals.busy_elsewhere(row, wall)
        return refusals.outcome_unknown(row)

    async def join(self, entry: Entry, call: Call, source: Source) -> Reply:
        """Wait for the work of a key until the caller's own deadline."""
        work = entry.work
        waiter = work.enter(call, source)
        try:
            return await waiter.wait(lambda: work.waiters.deadline, lambda: standing_reply(work))
        finally:
            work.leave(waiter)

    def begin(
        self, keyed: KeyedCall, registered: RegisteredTool, before: Row | None, make: WorkMaker
    ) -> Entry:
        """Own the key in this process and start its work; before: the row that may be replaced."""
        row = claimed_row(
            keyed,
            registered.spec,
            before,
            call_id=self._sources.new_call_id(),
            incarnation=self._incarnation,
            secret=self._store.member_secret,
            wall_s=self._sources.wall(),
        )
        resumed = row.ever_unknown
        extra = Keyed(
            key=keyed.scope.key,
            intent=lambda: self._intent(row.id, registered),
            late=lambda end: self._late(row.id, row.call_id, end),
            outcome_before=Outcome.UNKNOWN if resumed else Outcome.NOT_RUN,
            resend_until=self._resend_until(row, registered),
        )
        work = make(row.call_id, keyed.downstream_key, extra)
        entry = self._entries[row.id] = Entry(row, work, resumed)
        self._by_call_id[row.call_id] = work
        self._spawn(self._run(entry))
        return entry

    async def _run(self, entry: Entry) -> None:
        """The owner task of a key: claim, make the attempts, write the end, answer everybody."""
        work = entry.work
        try:
            refusal = await self._claim(entry)
            work.reply = refusal or await work.run()
            if refusal is None:
                await self._finish(entry, work.reply)
            for waiter in list(work.waiters.present):
                waiter.answer(work.reply)
        finally:
            del self._entries[entry.row.id]
            if not work.attempt_running:
                del self._by_call_id[entry.row.call_id]
            entry.written.set()

    async def _claim(self, entry: Entry) -> Failure | None:
        try:
            claim, standing = await self._store.claim(entry.row)
        except StoreUnavailable as error:
            self._log.error("ledger.claim_failed", error=str(error))
            return refusals.store_failed(pushback_safe=True)
        if claim is Claim.TENANT_FULL:
            return refusals.tenant_full()
        if claim is Claim.STANDING:
            return refusals.busy_elsewhere(standing, self._sources.wall())
        if entry.resumed:
            self.settlements.unknown_count -= 1
        return None

    async def _intent(self, row_id: bytes, registered: RegisteredTool) -> Failure | None:
        """Make the claim durable, once, before the first attempt that could have an effect."""
        entry = self._entries[row_id]
        if entry.row.attempts or not registered.spec.needs_intent:
            return None
        first_send = entry.row.first_send_s or self._sources.wall()
        row = replace(entry.row, attempts=1, first_send_s=first_send)
        try:
            if not await self._store.save(row):
                return refusals.busy_elsewhere(None, self._sources.wall())
        except StoreUnavailable as error:
            self._log.error("ledger.intent_failed", error=str(error))
            return refusals.store_failed(pushback_safe=True)
        entry.row = replace(row, version=row.version + 1)
        return None

    # -- the end ----------------------------------------------------------------------------------------

    async def _finish(self, entry: Entry, reply: Reply) -> None:
        """Write what the work leaves behind, as often as it takes."""
        delay, failing = _RETRY_FIRST_S, False
        try:
            while not await self._try_write(entry, reply):
                if not failing:
                    self.unwritten += 1
                    failing = True
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RETRY_CAP_S)
        finally:
            if failing:
                self.unwritten -= 1

    async def _try_write(self, entry: Entry, reply: Reply) -> bool:
        try:
            await self._write_end(entry, reply)
        except StoreUnavailable as error:
            self._log.error("ledger.finish_failed", call_id=entry.row.call_id, error=str(error))
            return False
        return True

    async def _write_end(self, entry: Entry, reply: Reply) -> None:
        work = entry.work
        state = rules.stands_after(work.outcome, entry.row.idempotency)
        if state is None:
            await self._store.release(entry.row)
            return
        row = ended_row(entry.row, work, reply, state, wall_s=self._sources.wall(), now=self._sources.now())
        if not await self._store.save(row):
            self._log.error("ledger.lost_ownership", call_id=row.call_id)
            work.reply = refusals.outcome_unknown(row)
            return
        entry.row = replace(row, version=row.version + 1)
        if state is RowState.UNKNOWN:
            self.settlements.unknown_count += 1
            if not work.attempt_running:
                self.settlements.on_unknown(entry.row)

    def _late(self, row_id: bytes, call_id: str, end: AttemptEnd | None) -> None:
        """An attempt has really ended after its work had its reply."""
        work = self._by_call_id[call_id]
        last = not work.attempt_running
        if last and row_id not in self._entries:
            del self._by_call_id[call_id]
        self._spawn(self._settle_late(row_id, call_id, end, last=last))

    async def _settle_late(self, row_id: bytes, call_id: str, end: AttemptEnd | None, *, last: bool) -> None:
        entry = self._entries.get(row_id)
        if entry is not None and entry.row.call_id == call_id:
            await entry.written.wait()
        await self.settlements.settle_late(row_id, call_id, end, last=last)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("ledger.task_failed", error=repr(error))

    def _resend_until(self, row: Row, registered: RegisteredTool) -> float | None:
        ttl = registered.spec.key_ttl_s
        if row.first_send_s is None or ttl is None or row.idempotency is not Idempotency.BY_KEY:
            return None
        return self._sources.now() + row.first_send_s + ttl - self._sources.wall()

    def _conflict(self, row: Row, call: Call) -> Failure:
        mine = member_hashes(call.arguments, self._store.member_secret)
        return refusals.key_reused(row.call_id, differing_members(row.members, mine), row.first_started_s)


def standing_reply(work: Work) -> Reply:
    """What a waiter whose deadline has come can be told while the work, or its record, is not finished."""
    first = work.records[0].started_s if work.records else None
    reply = work.reply
    if reply is None:
        return refusals.still_running(work.call_id, work.attempts, first)
    if isinstance(reply, Answer) or reply.kind is ErrorKind.BAD_OUTPUT:
        return refusals.not_stored_in_time(work.call_id, work.attempts, first)
    return reply
