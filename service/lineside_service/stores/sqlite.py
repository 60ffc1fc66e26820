"""The ledger in a SQLite file: what was acknowledged survives the process, kill -9 included."""

from __future__ import annotations

import asyncio
import functools
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lineside_service.core.ledger import Row, RowState
from lineside_service.ports import Claim, RowFilter, StoreLoad, StoreUnavailable, Swept
from lineside_service.stores import sqlite_rows, sqlite_sweep
from lineside_service.stores.holds import DEFAULT_TENANT_BYTES, Hold, TenantBytes
from lineside_service.stores.sqlite_open import OpenFiles, open_files
from lineside_service.stores.sqlite_presence import Presence
from lineside_service.stores.sqlite_writer import GroupWriter

_ANY_VERSION = 1 << 62


async def open_sqlite(
    path: str | os.PathLike[str],
    *,
    incarnation: str,
    tenant_bytes_limit: int = DEFAULT_TENANT_BYTES,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> SqliteStore:
    """Open the store at `path`, made if it is not there, for this process alone and for the running loop.

    incarnation: this process's random id, which the error of a second process names. tenant_bytes_limit:
    bound on one tenant's stored bytes. random_bytes: makes the store's secret, once.
    Raises StoreOpenError with what is wrong and what to do.
    """
    open_now = functools.partial(open_files, Path(path), incarnation=incarnation, random_bytes=random_bytes)
    opening = asyncio.get_running_loop().run_in_executor(None, open_now)
    try:
        files = await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise
    return SqliteStore(files, asyncio.get_running_loop(), tenant_bytes_limit)


def _close_unwanted(opening: asyncio.Future[OpenFiles]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class SqliteStore:
    """LedgerStore and LedgerRecords over one database file. Made by `open_sqlite`, used on its loop alone.

    A claim is an entry in memory: the file belongs to this process, so no one else can make one. Writes go
    to the group writer; one that nobody waits for any more still happens. Reads by id run inline (some
    microseconds); lists and counts on a thread of their own.
    """

    def __init__(self, files: OpenFiles, loop: asyncio.AbstractEventLoop, tenant_bytes_limit: int) -> None:
        self._files = files
        self._bytes = TenantBytes(tenant_bytes_limit, files.tenant_bytes)
        self._holds: dict[bytes, Hold] = {}
        self._presence = Presence(files.ids)
        self._aside_lock = threading.Lock()
        self._writer = GroupWriter(files.writer, loop, files.displaced)
        self._writer.start()
        self._closing: asyncio.Task[None] | None = None

    @property
    def member_secret(self) -> bytes:
        """32 random bytes that live as long as the database file."""
        return self._files.member_secret

    def stored_bytes(self, tenant: str) -> int:
        """Bytes counted against the tenant's bound."""
        return self._bytes.of(tenant)

    def load(self) -> StoreLoad:
        """What it holds and has written, for metrics; may be asked on any thread."""
        done = self._writer.done
        return StoreLoad(
            fullest_tenant_bytes=self._bytes.fullest,
            tenant_bytes_limit=self._bytes.limit,
            writes=done.writes,
            commits=done.commits,
            commit_s=done.commit_s,
        )

    async def find(self, row_id: bytes) -> Row | None:
        """The standing row, expired ones included."""
        return self._stands(row_id)

    async def by_call_id(self, call_id: str) -> Row | None:
        """The row of an execution, None when none is stored."""
        return self._read(sqlite_rows.SELECT_BY_CALL_ID, call_id)

    async def claim(self, row: Row) -> tuple[Claim, Row | None]:
        """Own the key; see LedgerStore."""
        stored = self._stands(row.id)
        if row.id in self._holds or (stored is not None and stored.version != row.version):
            return Claim.STANDING, stored
        if not self._bytes.has_room_for(row):
            return Claim.TENANT_FULL, None
        self._holds[row.id] = Hold.over(stored, row)
        return Claim.CLAIMED, stored

    def save(self, row: Row) -> asyncio.Future[bool]:
        """Write the row durably as its next version if it still is the owner's; see LedgerStore."""
        hold = self._holds.get(row.id)
        if hold is not None and not hold.is_of(row):
            return self._writer.told(result=False)
        if row.version == 0 if hold is None else hold.is_first_write:
            self._presence.add(row.id)
        values = sqlite_rows.encode(row, row.version + 1)
        if hold is not None:
            hold.has_written = True
        if hold is not None or row.version == 0:
            return self._writer.store(values, functools.partial(self._stored, row, hold))
        update = functools.partial(_update, row, values)
        return self._writer.run(update, functools.partial(self._updated, row))

    def release(self, row: Row) -> asyncio.Future[None]:
        """End the claim and drop what it wrote, durably; see LedgerStore."""
        hold = self._holds.get(row.id)
        if hold is not None and not hold.is_of(row):
            return self._writer.told(result=None)
        if hold is not None and not hold.has_written:
            del self._holds[row.id]
            return self._writer.told(result=None)
        lowest, highest = (
            (row.version, row.version) if hold is None else (hold.base_version + 1, _ANY_VERSION)
        )
        delete = functools.partial(_delete, row, lowest, highest)
        return self._writer.run(delete, functools.partial(self._released, row, hold))

    async def list(self, which: RowFilter, limit: int) -> Sequence[Row]:
        """At most `limit` rows by call_id, after `which.after`."""
        where, values = sqlite_rows.condition(which)
        sql = f"SELECT {sqlite_rows.NAMES} FROM ledger WHERE {where} ORDER BY call_id LIMIT ?"  # noqa: S608 - see condition
        found = await self._read_aside(sql, (*values, limit))
        try:
            return [sqlite_rows.decode(values) for values in found]
        except ValueError as error:
            raise StoreUnavailable(f"a row of the database is damaged: {error}") from error

    async def count(self, state: RowState) -> int:
        """How many stored rows are in the state."""
        where, values = sqlite_rows.condition(RowFilter(state=state))
        ((count,),) = await self._read_aside(f"SELECT count(*) FROM ledger WHERE {where}", values)  # noqa: S608 - same
        return int(count)

    async def sweep(self, wall_s: float, limit: int) -> Swept:
        """Delete what expired and cut what stayed unknown too long; see LedgerRecords."""
        job = functools.partial(sqlite_sweep.sweep, wall_s=wall_s, limit=limit)
        swept = await self._writer.run(job, self._swept)
        return Swept(deleted=len(swept.deleted), alerted=len(swept.cut))

    async def close(self) -> None:
        """Write what is waiting, close the file, give the lock back; later calls raise StoreUnavailable."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._writer.close()
        await asyncio.to_thread(self._close_files)

    def _close_files(self) -> None:
        with self._aside_lock:
            self._files.close()

    # ------------------------------------------------------------------------------------------------ reads

    def _stands(self, row_id: bytes) -> Row | None:
        if not self._presence.may_stand(row_id):
            self._writer.check()
            return None
        return self._read(sqlite_rows.SELECT_BY_ID, row_id)

    def _read(self, sql: str, key: bytes | str) -> Row | None:
        try:
            # fetchall: a statement that is not read to its end would keep seeing the past.
            found = self._files.reader.execute(sql, (key,)).fetchall()
            return sqlite_rows.decode(found[0]) if found else None
        except (sqlite3.Error, ValueError) as error:
            raise StoreUnavailable(f"cannot read the database: {error}") from error

    async def _read_aside(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        return await asyncio.to_thread(self._read_under_lock, sql, values)

    def _read_under_lock(self, sql: str, values: Sequence[Any]) -> Sequence[Any]:
        with self._aside_lock:
            try:
                return self._files.aside.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise StoreUnavailable(f"cannot read the database: {error}") from error

    # ----------------------------------------------------- what a write changes in memory, on the loop thread

    def _stored(self, row: Row, hold: Hold | None, is_current: bool) -> bool:  # noqa: FBT001 - a result
        if is_current:
            before = 0 if hold is None else hold.stored_bytes
            self._bytes.add(row.scope.tenant, row.stored_bytes - before)
        if hold is None:
            return is_current
        if is_current:
            hold.stored_bytes = row.stored_bytes
        if not is_current or row.state is not RowState.RUNNING:
            self._end_hold(row.id, hold)
        return is_current

    def _updated(self, row: Row, change: int | None) -> bool:
        self._count(row.id, row.scope.tenant, change or 0)
        return change is not None

    def _released(self, row: Row, hold: Hold | None, freed: int | None) -> None:
        if freed is not None:
            self._presence.remove(row.id)
            self._bytes.add(row.scope.tenant, -freed)
        if hold is not None:
            self._end_hold(row.id, hold)

    def _swept(self, swept: sqlite_sweep.Changes) -> sqlite_sweep.Changes:
        for row_id, _, _ in swept.deleted:
            if row_id not in self._holds:  # whoever holds it may have stored it anew
                self._presence.remove(row_id)
        for row_id, tenant, change in (*swept.deleted, *swept.cut):
            self._count(row_id, tenant, change)
        return swept

    def _count(self, row_id: bytes, tenant: str, change: int) -> None:
        """Count a change of a row's bytes that its holder, if it has one, did not make."""
        self._bytes.add(tenant, change)
        if (hold := self._holds.get(row_id)) is not None:
            hold.stored_bytes += change

    def _end_hold(self, row_id: bytes, hold: Hold) -> None:
        if self._holds.get(row_id) is hold:
            del self._holds[row_id]


# ------------------------------------------------------------------------------- what the writer thread runs


def _update(row: Row, values: sqlite_rows.Values, connection: sqlite3.Connection) -> int | None:
    """Store the next version of a row that nobody holds: the change of its bytes, None if it moved on."""
    standing = connection.execute(
        "SELECT bytes FROM ledger WHERE id = ? AND version = ? AND incarnation = ?",
        (row.id, row.version, row.incarnation),
    ).fetchall()
    if not standing:
        return None
    connection.execute(sqlite_rows.UPDATE, (*values, row.id))
    return row.stored_bytes - int(standing[0][0])


def _delete(row: Row, lowest: int, highest: int, connection: sqlite3.Connection) -> int | None:
    """Delete what a claim wrote, if it still stands: the bytes freed, None if nothing was."""
    freed = connection.execute(
        "DELETE FROM ledger WHERE id = ? AND state = ? AND incarnation = ? AND version BETWEEN ? AND ?"
        " RETURNING bytes",
        (row.id, RowState.RUNNING.value, row.incarnation, lowest, highest),
    ).fetchall()
    return int(freed[0][0]) if freed else None
