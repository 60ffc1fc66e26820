"""The ledger in memory: the same semantics as on disk, for as long as the process lives."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from lineside_service.core.ledger import ALERT_UNKNOWN_S, Row, RowState, cut
from lineside_service.ports import Claim, RowFilter, StoreLoad, StoreUnavailable, Swept
from lineside_service.stores.holds import DEFAULT_TENANT_BYTES, Hold, TenantBytes

T = TypeVar("T")

_EXPIRES = {RowState.DONE, RowState.NOT_RUN}


class MemoryStore:
    """LedgerStore and LedgerRecords without a file: nothing survives the process, each tenant is bounded.

    member_secret: 32 random bytes. tenant_bytes_limit: bound on one tenant's stored bytes.
    No threads and no waiting: every method ends without suspending.
    """

    def __init__(self, *, member_secret: bytes, tenant_bytes_limit: int = DEFAULT_TENANT_BYTES) -> None:
        self._secret = member_secret
        self._bytes = TenantBytes(tenant_bytes_limit)
        self._rows: dict[bytes, Row] = {}
        self._holds: dict[bytes, Hold] = {}
        self._by_call_id: dict[str, bytes] = {}
        self._by_state: dict[RowState, dict[bytes, None]] = {state: {} for state in RowState}
        # Entries of rows that have changed since are recognised and dropped when they come up.
        self._expiries: list[tuple[float, bytes]] = []
        self._alerted: set[bytes] = set()
        self._is_closed = False

    @property
    def member_secret(self) -> bytes:
        """32 random bytes that live as long as the store."""
        return self._secret

    def stored_bytes(self, tenant: str) -> int:
        """Bytes counted against the tenant's bound."""
        return self._bytes.of(tenant)

    def load(self) -> StoreLoad:
        """What it holds, for metrics; may be asked on any thread."""
        return StoreLoad(fullest_tenant_bytes=self._bytes.fullest, tenant_bytes_limit=self._bytes.limit)

    async def find(self, row_id: bytes) -> Row | None:
        """The standing row, expired ones included."""
        self._check_open()
        return self._rows.get(row_id)

    async def claim(self, row: Row) -> tuple[Claim, Row | None]:
        """Own the key; see LedgerStore."""
        self._check_open()
        stored = self._rows.get(row.id)
        if row.id in self._holds or (stored is not None and stored.version != row.version):
            return Claim.STANDING, stored
        if not self._bytes.has_room_for(row):
            return Claim.TENANT_FULL, None
        self._holds[row.id] = Hold.over(stored, row)
        return Claim.CLAIMED, stored

    def save(self, row: Row) -> asyncio.Future[bool]:
        """Write the row as its next version if it still is the owner's; see LedgerStore."""
        return _told(self._save, row)

    def release(self, row: Row) -> asyncio.Future[None]:
        """End the claim and drop what it wrote; see LedgerStore."""
        return _told(self._release, row)

    def _save(self, row: Row) -> bool:
        self._check_open()
        hold, stored = self._holds.get(row.id), self._rows.get(row.id)
        if hold is not None and not hold.is_of(row):
            return False
        is_current = _may_follow(stored, row, is_held=hold is not None)
        if is_current:
            self._put(row.but(version=row.version + 1))
        if not is_current or row.state is not RowState.RUNNING:
            self._holds.pop(row.id, None)
        return is_current

    def _release(self, row: Row) -> None:
        self._check_open()
        hold, stored = self._holds.get(row.id), self._rows.get(row.id)
        if hold is not None:
            if not hold.is_of(row):
                return
            del self._holds[row.id]
        if stored is None or stored.state is not RowState.RUNNING or stored.incarnation != row.incarnation:
            return
        if stored.version == row.version if hold is None else stored.version > hold.base_version:
            self._drop(stored)

    async def by_call_id(self, call_id: str) -> Row | None:
        """The row of an execution, None when none is stored."""
        self._check_open()
        row_id = self._by_call_id.get(call_id)
        return None if row_id is None else self._rows[row_id]

    async def list(self, which: RowFilter, limit: int) -> Sequence[Row]:
        """At most `limit` rows by call_id, after `which.after`."""
        self._check_open()
        matching = (row for row in self._in_state(which.state) if _matches(row, which))
        return heapq.nsmallest(limit, matching, key=lambda row: row.call_id)

    async def count(self, state: RowState) -> int:
        """How many stored rows are in the state."""
        self._check_open()
        return len(self._by_state[state])

    async def sweep(self, wall_s: float, limit: int) -> Swept:
        """Delete what expired and cut what stayed unknown too long; see LedgerRecords."""
        self._check_open()
        return Swept(deleted=self._expire(wall_s, limit), alerted=self._alert(wall_s, limit))

    async def close(self) -> None:
        """Forget everything; later calls raise StoreUnavailable."""
        self._is_closed = True
        self._rows.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("the memory store is closed")

    def _in_state(self, state: RowState | None) -> Iterable[Row]:
        return self._rows.values() if state is None else (self._rows[i] for i in self._by_state[state])

    def _put(self, row: Row) -> None:
        owner = self._by_call_id.get(row.call_id, row.id)
        if owner != row.id:
            raise StoreUnavailable(f"call_id {row.call_id} already belongs to another row")
        before = self._rows.get(row.id)
        if before is not None:
            self._drop(before)
        self._rows[row.id] = row
        self._by_call_id[row.call_id] = row.id
        self._by_state[row.state][row.id] = None
        self._count(row, row.stored_bytes)
        if row.expires_s is not None and row.state in _EXPIRES:
            heapq.heappush(self._expiries, (row.expires_s, row.id))

    def _drop(self, row: Row) -> None:
        del self._rows[row.id], self._by_call_id[row.call_id], self._by_state[row.state][row.id]
        self._alerted.discard(row.id)
        self._count(row, -row.stored_bytes)

    def _count(self, row: Row, change: int) -> None:
        self._bytes.add(row.scope.tenant, change)

    def _expire(self, wall_s: float, limit: int) -> int:
        deleted = 0
        while self._expiries and self._expiries[0][0] <= wall_s and deleted < limit:
            expires_s, row_id = heapq.heappop(self._expiries)
            row = self._rows.get(row_id)
            if row is not None and row.expires_s == expires_s and row.state in _EXPIRES:
                self._drop(row)
                deleted += 1
        return deleted

    def _alert(self, wall_s: float, limit: int) -> int:
        aged = [
            row
            for row in self._in_state(RowState.UNKNOWN)
            if row.id not in self._alerted and unknown_since_s(row) <= wall_s - ALERT_UNKNOWN_S
        ]
        for row in aged[:limit]:
            self._put(cut(row))
            self._alerted.add(row.id)
        return min(len(aged), limit)


def _told(do: Callable[[Row], T], row: Row) -> asyncio.Future[T]:
    """Do it now, and tell in the shape that a store on disk needs."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    try:
        future.set_result(do(row))
    except StoreUnavailable as error:
        future.set_exception(error)
    return future


def unknown_since_s(row: Row) -> float:
    """From when on the age of an UNKNOWN row counts."""
    return row.claimed_s if row.ended_s is None else row.ended_s


def _may_follow(stored: Row | None, row: Row, *, is_held: bool) -> bool:
    if stored is None:
        return is_held or row.version == 0
    if not is_held and stored.incarnation != row.incarnation:
        return False
    return stored.version == row.version


def _matches(row: Row, which: RowFilter) -> bool:
    return (
        row.call_id > which.after
        and which.tenant in {None, row.scope.tenant}
        and which.tool in {None, row.scope.tool}
    )
