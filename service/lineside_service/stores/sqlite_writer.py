"""One thread that writes for everybody: what is waiting goes into one transaction and one sync of the disk.

The loop thread gathers the writes of one loop iteration and hands them over as one batch; the thread merges
the batches that came while it was busy. A batch of rows is one statement, because each statement costs the
thread a few contended passes of the interpreter lock. Who waits is told by one call into the loop per batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lineside_service.ports import StoreUnavailable
from lineside_service.stores import sqlite_rows
from lineside_service.stores.sqlite_rows import Values

T = TypeVar("T")
R = TypeVar("R")

_MAX_BATCH = 256
"""Writes in one transaction; more wait for the next one."""
_MAX_ROWS = 64
"""Rows in one statement: each number of rows is a statement that SQLite keeps compiled."""
_GIVE_WAY_EVERY_S = 0.0005
_GIVE_WAY_FOR_S = 0.00001
"""How often, and for how long at least, the loop thread stands aside while writes are in flight. The kernel
makes some 60 us of it: enough to wake a thread. Every 0.2 to 1 ms does equally well (measured)."""

_ROW_AT_FAULT = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    ValueError,
    OverflowError,
)
"""Errors that one write brings about by what it is; every other error is the database's."""


@dataclass(slots=True)
class _Write:
    """One thing to write and who waits for it.

    Either values (a row to store) or job (anything else, within the batch's transaction); on_done turns what
    the database said into the result, on the loop thread, whether or not anybody still waits.
    """

    future: asyncio.Future[Any]
    values: Values | None
    job: Callable[[sqlite3.Connection], Any] | None
    on_done: Callable[[Any], Any]


@dataclass(slots=True)
class Written:
    """Writes made durable since start, in how many transactions, in how many seconds; by the thread alone."""

    writes: int = 0
    commits: int = 0
    commit_s: float = 0.0

    def add(self, results: Sequence[Any], began_s: float) -> None:
        """Count a batch that was begun at a time of the monotonic clock, if anything of it was written."""
        written = sum(not isinstance(result, StoreUnavailable) for result in results)
        self.writes += written
        self.commits += written > 0
        self.commit_s += time.monotonic() - began_s


class GroupWriter:
    """Durable writes for the tasks of one event loop. Everything public is called on the loop thread.

    connection: in autocommit mode, the thread's alone from start() on; displaced: says why nothing may be
    written any more, empty while all is well. After close(), or if the thread dies, StoreUnavailable.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        displaced: Callable[[], str],
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._displaced = displaced
        self.done = Written()
        self._gathered: list[_Write] = []
        self._queue: queue.SimpleQueue[list[_Write] | None] = queue.SimpleQueue()
        self._in_flight = 0
        self._is_giving_way = False
        self._down = ""
        self._is_stopping = False
        self._ended: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._main, name="lineside-sqlite-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise StoreUnavailable if nothing can be written any more."""
        if self._down:
            raise StoreUnavailable(self._down)

    def told(self, *, result: T) -> asyncio.Future[T]:
        """A result that needs no write."""
        future: asyncio.Future[T] = self._loop.create_future()
        future.set_result(result)
        return future

    def store(self, values: Values, on_done: Callable[[bool], R]) -> asyncio.Future[R]:
        """Store a row over its previous version; False = another version stands, nothing was written."""
        return self._submit(_Write(self._loop.create_future(), values, None, on_done))

    def run(self, job: Callable[[sqlite3.Connection], T], on_done: Callable[[T], R]) -> asyncio.Future[R]:
        """Run a job on the thread, inside a transaction; its result is delivered once that is durable."""
        return self._submit(_Write(self._loop.create_future(), None, job, on_done))

    async def close(self) -> None:
        """Finish what was submitted, then end the thread and close its connection."""
        if not self._down:
            self._down = "the store is closed"
            self._hand_over()
            self._queue.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _submit(self, write: _Write) -> asyncio.Future[Any]:
        if self._down:
            write.future.set_exception(StoreUnavailable(self._down))
            return write.future
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(write)
        return write.future

    def _hand_over(self) -> None:
        if self._gathered:
            if not self._is_giving_way:
                self._is_giving_way = True
                self._loop.call_later(_GIVE_WAY_EVERY_S, self._give_way)
            self._in_flight += len(self._gathered)
            self._queue.put(self._gathered)
            self._gathered = []

    def _give_way(self) -> None:
        """Let the thread have the interpreter lock, however busy the loop is.

        Polling for events, a busy loop drops the lock and takes it back before another thread has woken up,
        and each time restarts that thread's claim to a forced switch: measured, a commit waited seconds.
        """
        self._is_giving_way = self._in_flight > 0
        if self._is_giving_way:
            time.sleep(_GIVE_WAY_FOR_S)
            self._loop.call_later(_GIVE_WAY_EVERY_S, self._give_way)

    def _deliver(self, batch: Sequence[_Write], results: Sequence[Any]) -> None:
        self._in_flight -= len(batch)
        for write, result in zip(batch, results, strict=True):
            future = write.future
            if not isinstance(result, StoreUnavailable):
                value = write.on_done(result)
                if not future.done():
                    future.set_result(value)
            elif not future.done():
                future.set_exception(result)

    def _end(self, batch: Sequence[_Write], reason: str) -> None:
        """The thread is gone: nothing that it had, and nothing later, will be written."""
        self._down = self._down or reason
        self._hand_over()
        left = list(batch)
        while not self._queue.empty():
            left += self._queue.get_nowait() or ()
        self._deliver(left, [StoreUnavailable(reason) for _ in left])
        if not self._ended.done():
            self._ended.set_result(None)

    # ---------------------------------------------------------------------------------------- on the thread

    def _main(self) -> None:
        batch: list[_Write] = []
        reason = "the store is closed"
        try:
            while not self._is_stopping:
                batch = self._next_batch()
                began_s = time.monotonic()
                results = self._commit(batch) if batch else []
                self.done.add(results, began_s)
                if batch and not self._post(self._deliver, batch, results):
                    return
                batch = []
        except BaseException as error:
            reason = f"the store's writer has ended: {error!r}"
            raise
        finally:
            self._close_connection()
            self._post(self._end, batch, reason)

    def _post(self, callback: Callable[..., None], *args: Any) -> bool:
        """Call on the loop thread; False = the loop was closed before the store was, so nobody waits."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            return False
        return True

    def _next_batch(self) -> list[_Write]:
        batch: list[_Write] = []
        more = self._queue.get()
        while more is not None:
            batch += more
            if len(batch) >= _MAX_BATCH:
                return batch
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                return batch
        self._is_stopping = True
        return batch

    def _commit(self, batch: list[_Write]) -> list[Any]:
        try:
            if moved := self._displaced():
                return [StoreUnavailable(f"the database is gone: {moved}") for _ in batch]
            rows = [write.values for write in batch if write.values is not None]
            if len(rows) == len(batch) and self._store_all(rows):
                return [True] * len(batch)
            return self._one_by_one(batch)
        except Exception as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
            self._roll_back()
            return [StoreUnavailable(f"cannot write to the database: {_name(error)}") for _ in batch]

    def _store_all(self, rows: list[Values]) -> bool:
        """Store every row or none; False = some row is in the way of all."""
        try:
            if len(rows) <= _MAX_ROWS:
                self._store(rows)
                return True
            self._connection.execute("BEGIN IMMEDIATE")
            for start in range(0, len(rows), _MAX_ROWS):
                self._store(rows[start : start + _MAX_ROWS])
            self._connection.execute("COMMIT")
            return True
        except _ROW_AT_FAULT:
            self._roll_back()
            return False

    def _store(self, rows: list[Values]) -> None:
        self._connection.execute(sqlite_rows.upsert(len(rows)), list(itertools.chain.from_iterable(rows)))

    def _one_by_one(self, batch: list[_Write]) -> list[Any]:
        self._connection.execute("BEGIN IMMEDIATE")
        results = [self._carry_out(write) for write in batch]
        self._connection.execute("COMMIT")
        return results

    def _carry_out(self, write: _Write) -> Any:
        try:
            if write.job is not None:
                return write.job(self._connection)
            assert write.values is not None  # noqa: S101 - a write is one or the other
            self._store([write.values])
            return True
        except _ROW_AT_FAULT as error:
            # The statement was undone, the transaction goes on.
            if str(error) == sqlite_rows.OTHER_VERSION:
                return False
            return StoreUnavailable(f"this row cannot be stored: {_name(error)}")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.rollback()

    def _close_connection(self) -> None:
        # The log is durable as it is; folding it into the database only makes the next start quicker.
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()


def _name(error: Exception) -> str:
    return f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"
