"""The ledger at work: one piece of work per key, written down before and after.

The process's own map is asked before the store. A key is in the map from its claim until its end is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

from lineside_service.core import ledger as rules
from lineside_service.core.call import Call, Reply
from lineside_service.core.errors import Failure, Outcome, Source
from lineside_service.core.fingerprint import differing_members, member_hashes, scope_id
from lineside_service.core.ledger import Evidence, Lookup, Row, RowState, Scope, Settlement
from lineside_service.core.tool import Idempotency
from lineside_service.engine import refusals
from lineside_service.engine.eager import EagerTasks, Ended, within
from lineside_service.engine.endings import RETRY_CAP_S, RETRY_FIRST_S, Endings
from lineside_service.engine.entry import Entry, may_be_told, standing_reply
from lineside_service.engine.registry import RegisteredTool
from lineside_service.engine.rows import KeyedCall, claimed_row, reply_from_row
from lineside_service.engine.settlement import Settlements, late_evidence
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Log
from lineside_service.engine.waiters import Waiter, for_waiter
from lineside_service.engine.work import Keyed, Work
from lineside_service.ports import Claim, LedgerRecords, LedgerStore, StoreUnavailable

WorkMaker = Callable[[str, Callable[[], str], Keyed], Work]
"""Makes the work of a call: (call_id, what tells the downstream key, what the ledger adds)."""


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
        self._eager = EagerTasks()
        self._entries: dict[bytes, Entry] = {}
        # By call id: executions whose attempts may still run. A `by_key` call that is sent again keeps
        # its id, so there can be several.
        self._executions: dict[str, list[Entry]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._settling: dict[bytes, asyncio.Event] = {}
        self._ended = 0
        self._endings = Endings(store, self.settlements, sources, log, self._over)

    # -- what others may ask ----------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether some key's end, or some settlement, is still on its way."""
        return bool(self._tasks or self._entries)

    @property
    def unwritten(self) -> int:
        """Finished calls, and settlements, that the store refuses to write so far."""
        return self._endings.unwritten

    @property
    def executions(self) -> int:
        """Calls in memory: worked on, or with a given-up attempt that still runs."""
        return len(self._executions)

    def attempt_in_flight(self, call_id: str) -> bool:
        """Whether an attempt of this call still runs, given up or not."""
        return any(entry.work.attempt_running for entry in self._executions.get(call_id, ()))

    def entry_of(self, call_id: str) -> Entry | None:
        """The entry with this call id, while this process works on it."""
        return next((e for e in self._executions.get(call_id, ()) if self._is_current(e)), None)

    def entry_at(self, scope: Scope) -> Entry | None:
        """The entry of this key, while this process works on it."""
        return self._entries.get(scope_id(scope.tenant, scope.tool, scope.key))

    def entries(self) -> list[Entry]:
        """Everything that this process works on."""
        return list(self._entries.values())

    async def find(self, scope: Scope) -> Row | None:
        """The stored row of a key. StoreUnavailable when the store does not answer."""
        return await self._store.find(scope_id(scope.tenant, scope.tool, scope.key))

    async def settle(
        self, row: Row, evidence: Evidence, *, etag: str | None = None
    ) -> tuple[Settlement, Row]:
        """Judge evidence about a call and apply it. StoreUnavailable when it can't be written."""
        async with self._settles(row.id):
            if self.entry_of(row.call_id) is not None:
                return Settlement.STILL_RUNNING, row
            in_flight = self.attempt_in_flight(row.call_id)
            return await self.settlements.settle(row, evidence, attempt_in_flight=in_flight, etag=etag)

    @contextlib.asynccontextmanager
    async def _settles(self, row_id: bytes) -> AsyncIterator[None]:
        """One settlement of a row at a time; a look-up of its key waits for the end of it."""
        while (other := self._settling.get(row_id)) is not None:
            await other.wait()
        moment = self._settling[row_id] = asyncio.Event()
        try:
            yield
        finally:
            del self._settling[row_id]
            moment.set()

    async def wait_idle(self) -> None:
        """Return once every key's end is written and every settlement on its way is made."""
        while self.busy:
            if self._entries:
                await next(iter(self._entries.values())).written.wait()
            if self._tasks:
                await asyncio.wait(self._tasks)

    # -- the road ---------------------------------------------------------------------------------------

    async def look_up(self, keyed: KeyedCall, key_ttl_s: float | None) -> Reply | Row | Entry | None:
        """What the key finds: a reply that ends the road, an entry to join, a row to go on from, or nothing.

        A Row comes back when the key may execute although a row stands (settled as not run, expired, or an
        UNKNOWN `by_key` one within its time): the claim replaces exactly that row. Nothing may be awaited
        between this and `begin`. StoreUnavailable when the store does not answer.
        """
        try:
            found = await within(self._standing(keyed.row_id), keyed.call.deadline)
        except TimeoutError:
            return refusals.deadline_in_look_up()
        if isinstance(found, Entry):
            return found if found.row.fingerprint == keyed.print else self._conflict(found.row, keyed.call)
        return self._judged(found, keyed, key_ttl_s)

    async def _standing(self, row_id: bytes) -> Entry | Row | None:
        """What stands under a key, once nobody is on the way out of it or settling it."""
        while True:
            entry, moment = self._entries.get(row_id), self._settling.get(row_id)
            if entry is not None and entry.is_deserted:
                moment = entry.written
            if moment is not None:
                await moment.wait()
                continue
            if entry is not None:
                return entry
            ended = self._ended
            row = await self._store.find(row_id)
            if not (row_id in self._entries or row_id in self._settling or self._is_stale(row, ended)):
                return row

    def _judged(self, row: Row | None, keyed: KeyedCall, key_ttl_s: float | None) -> Reply | Row | None:
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

    async def join(self, entry: Entry, call: Call, source: Source) -> Reply | None:
        """Wait for the work of a key until the caller's own deadline; None: look the key up again."""
        work = entry.work
        if entry.is_stalled and (said := may_be_told(work)) is not None:
            return for_waiter(said, source)
        # Work that has its reply takes nobody in any more: who comes while that is written down is one of
        # the later duplicates, which look the key up once more.
        return await self._reply_to(work.enter(call, source), work)

    async def _reply_to(self, waiter: Waiter, work: Work) -> Reply | None:
        try:
            return await waiter.wait(lambda: work.waiters.deadline, lambda: standing_reply(work))
        finally:
            work.leave(waiter)

    async def execute(
        self, keyed: KeyedCall, registered: RegisteredTool, before: Row | None, make: WorkMaker
    ) -> Reply | None:
        """Own the key in this process, start its work and wait for it like `join`.

        before: the row that may be replaced. The owner's task starts at once: with a store that answers at
        once and a tool that does, a keyed call costs no turn of the loop.
        """
        entry = self._begin(keyed, registered, before, make)
        waiter = entry.work.enter(keyed.call, Source.EXECUTED)
        running = self._eager.start(self._run(entry), "ledger:owner", contextvars.copy_context())
        if not isinstance(running, Ended):
            self._keep(running)
        if waiter.early is not None:
            entry.work.leave(waiter)
            return waiter.early[0]
        return await self._reply_to(waiter, entry.work)

    def _begin(
        self, keyed: KeyedCall, registered: RegisteredTool, before: Row | None, make: WorkMaker
    ) -> Entry:
        row = claimed_row(
            keyed,
            registered.spec,
            before,
            call_id=self._sources.new_call_id(),
            incarnation=self._incarnation,
            secret=self._store.member_secret,
            wall_s=self._sources.wall(),
        )
        entry = Entry(self, row, self._resend_until(row, registered))
        entry.work = make(row.call_id, keyed.downstream_key, entry)
        self._entries[row.id] = entry
        siblings = self._executions.setdefault(row.call_id, [])
        for sibling in siblings:  # their late ends no longer tell the whole story of the call
            sibling.work.has_siblings()
        siblings.append(entry)
        return entry

    async def _run(self, entry: Entry) -> None:
        """Own a key: claim it, make the attempts, set the end on its way."""
        try:
            claim, standing = await self._claim(entry)
            if claim is Claim.CLAIMED:
                await self._attempts(entry)
                self._endings.write(entry)
                return
            entry.work.reply = self._not_claimed(entry, claim, standing)
        except BaseException:
            self._over(entry)
            raise
        self._over(entry)

    async def _claim(self, entry: Entry) -> tuple[Claim | None, Row | None]:
        """How the store answered; None when it did not."""
        try:
            return await self._store.claim(entry.row)
        except StoreUnavailable as error:
            self._log.error("ledger.claim_failed", error=str(error))
            return None, None

    def _not_claimed(self, entry: Entry, claim: Claim | None, standing: Row | None) -> Failure | None:
        """Why the key is not ours; None: it has changed since it was looked up."""
        if claim is Claim.STANDING:
            held = standing is None or standing.state is RowState.RUNNING
            if held or (standing is not None and standing.version == entry.row.version):
                return refusals.busy_elsewhere(standing, self._sources.wall())
            return None
        full = claim is Claim.TENANT_FULL
        refusal = refusals.tenant_full() if full else refusals.store_failed(pushback_safe=True)
        return replace(refusal, outcome=Outcome.UNKNOWN) if entry.resumed else refusal

    async def _attempts(self, entry: Entry) -> None:
        """Make the attempts, whatever comes."""
        work = entry.work
        if entry.resumed:
            self.settlements.unknown_count -= 1
        try:
            await work.run()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the key claimed for ever
            self._log.error("ledger.work_failed", call_id=work.call_id, exc_info=error)
            work.reply = work.history.filled(refusals.broken())

    async def write_intent(self, entry: Entry) -> Failure | None:
        """Make the claim durable, once, before the first attempt that could have an effect."""
        first_send = entry.row.first_send_s or self._sources.wall()
        row = entry.row.but(attempts=1, first_send_s=first_send)
        try:
            if not await self._store.save(row):
                return refusals.busy_elsewhere(None, self._sources.wall())
        except StoreUnavailable as error:
            self._log.error("ledger.intent_failed", error=str(error))
            return refusals.store_failed(pushback_safe=True)
        entry.row = row.but(version=row.version + 1)
        entry.has_intent = True
        return None

    def _over(self, entry: Entry) -> None:
        """Nothing is left to do for the key: answer everybody and let it go."""
        if entry.is_stalled:
            self._endings.unwritten -= 1
        entry.work.answer_all()
        del self._entries[entry.row.id]
        self._ended += 1
        self._forget(entry)
        entry.over()

    # -- an attempt that ends later ---------------------------------------------------------------------

    def ended_late(self, entry: Entry) -> None:
        """An attempt has really ended after its work had its reply."""
        self._forget(entry)
        self._spawn(self._insist(entry))

    async def _insist(self, entry: Entry) -> None:
        """Settle what a late end says, as often as it takes."""
        delay_s, is_failing = RETRY_FIRST_S, False
        try:
            while True:
                try:
                    return await self._settle_late(entry)
                except StoreUnavailable as error:
                    self._log.error("ledger.write_failed", call_id=entry.row.call_id, error=str(error))
                self._endings.unwritten += not is_failing
                is_failing = True
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_CAP_S)
        finally:
            self._endings.unwritten -= is_failing

    async def _settle_late(self, entry: Entry) -> None:
        row, work = entry.row, entry.work
        while True:
            while (current := self.entry_of(row.call_id)) is not None:
                await current.written.wait()
            async with self._settles(row.id):
                if self.entry_of(row.call_id) is None:
                    return await self.settlements.settle_late(
                        row.id,
                        row.call_id,
                        late_evidence(work.history.outcome, work.history.done_end),
                        attempt_in_flight=self.attempt_in_flight(row.call_id),
                    )

    def _is_stale(self, row: Row | None, ended: int) -> bool:
        """Whether the row was read while this process worked on the key, which it no longer does."""
        mine = row is not None and row.state is RowState.RUNNING and row.incarnation == self._incarnation
        return mine and ended != self._ended

    def _is_current(self, entry: Entry) -> bool:
        return self._entries.get(entry.row.id) is entry

    def _forget(self, entry: Entry) -> None:
        """Drop an execution once it is written and all its attempts have really ended."""
        siblings = self._executions.get(entry.row.call_id, [])
        if entry in siblings and not entry.work.attempt_running and not self._is_current(entry):
            siblings.remove(entry)
            entry.work.forget()
            if not siblings:
                del self._executions[entry.row.call_id]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._keep(asyncio.get_running_loop().create_task(work))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("ledger.task_failed", exc_info=error)

    def _resend_until(self, row: Row, registered: RegisteredTool) -> float | None:
        ttl = registered.spec.key_ttl_s
        if row.first_send_s is None or ttl is None or row.idempotency is not Idempotency.BY_KEY:
            return None
        return self._sources.now() + row.first_send_s + ttl - self._sources.wall()

    def _conflict(self, row: Row, call: Call) -> Failure:
        mine = member_hashes(call.arguments, self._store.member_secret)
        return refusals.key_reused(row.call_id, differing_members(row.members, mine), row.first_started_s)
