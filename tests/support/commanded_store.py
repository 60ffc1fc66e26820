"""A ledger store around a real one: slow or failing when the test says so, and it writes down what it did."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from lineside_service.core.ledger import Row, RowState
from lineside_service.ports import Claim, RowFilter, StoreUnavailable, Swept
from lineside_service.stores.memory import MemoryStore

Operation = Literal["find", "claim", "save", "release", "by_call_id", "list", "count", "sweep"]


class CommandedStore:
    """LedgerStore and LedgerRecords over `inner`.

    fail: operation -> how many of its next calls raise StoreUnavailable, changing nothing (-1: all).
    delay_s: operation -> seconds that it takes, half of them before and half after it has happened.
    done: every operation that happened, with the row's state and version for writes.
    """

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.fail: Counter[Operation] = Counter()
        self.delay_s: dict[Operation, float] = {}
        self.done: list[tuple[Operation, str]] = []

    @property
    def member_secret(self) -> bytes:
        """See LedgerStore."""
        return self.inner.member_secret

    async def find(self, row_id: bytes) -> Row | None:
        """See LedgerStore."""
        await self._before("find")
        row = await self.inner.find(row_id)
        await self._after("find", "" if row is None else row.state.value)
        return row

    async def claim(self, row: Row) -> tuple[Claim, Row | None]:
        """See LedgerStore."""
        await self._before("claim")
        claimed = await self.inner.claim(row)
        await self._after("claim", claimed[0].value)
        return claimed

    def save(self, row: Row) -> asyncio.Future[bool]:
        """See LedgerStore."""
        return asyncio.ensure_future(self._save(row))

    def release(self, row: Row) -> asyncio.Future[None]:
        """See LedgerStore."""
        return asyncio.ensure_future(self._release(row))

    async def _save(self, row: Row) -> bool:
        await self._before("save")
        is_saved = await self.inner.save(row)
        await self._after("save", row.state.value if is_saved else "refused")
        return is_saved

    async def _release(self, row: Row) -> None:
        await self._before("release")
        await self.inner.release(row)
        await self._after("release", "")

    async def by_call_id(self, call_id: str) -> Row | None:
        """See LedgerRecords."""
        await self._before("by_call_id")
        row = await self.inner.by_call_id(call_id)
        await self._after("by_call_id", "")
        return row

    async def list(self, which: RowFilter, limit: int) -> Sequence[Row]:
        """See LedgerRecords."""
        await self._before("list")
        rows = await self.inner.list(which, limit)
        await self._after("list", "")
        return rows

    async def count(self, state: RowState) -> int:
        """See LedgerRecords."""
        await self._before("count")
        rows = await self.inner.count(state)
        await self._after("count", "")
        return rows

    async def sweep(self, wall_s: float, limit: int) -> Swept:
        """See LedgerRecords."""
        await self._before("sweep")
        swept = await self.inner.sweep(wall_s, limit)
        await self._after("sweep", "")
        return swept

    async def close(self) -> None:
        """See LedgerRecords."""
        await self.inner.close()

    async def _before(self, operation: Operation) -> None:
        await self._wait(operation)
        if self.fail[operation]:
            self.fail[operation] -= self.fail[operation] > 0
            raise StoreUnavailable(f"{operation} fails on command")

    async def _after(self, operation: Operation, detail: str) -> None:
        self.done.append((operation, detail))
        await self._wait(operation)

    async def _wait(self, operation: Operation) -> None:
        if delay_s := self.delay_s.get(operation, 0.0):
            await asyncio.sleep(delay_s / 2)


def reopened(store: MemoryStore) -> MemoryStore:
    """What another process finds in the same file: the rows that were written, and no claims."""
    fresh = MemoryStore(member_secret=store.member_secret)
    for row in store._rows.values():
        fresh._put(row)
    return fresh
