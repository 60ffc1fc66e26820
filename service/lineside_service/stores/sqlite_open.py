"""Opening a database file: whose it is, whether it can be used, its schema, its connections."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lineside_service.stores import sqlite_migrations
from lineside_service.stores.errors import StoreOpenError
from lineside_service.stores.sqlite_lock import FileLock

_OPEN_BUSY_MS = 2000
"""How long opening waits for a program that has the file locked inside SQLite (a backup, a shell)."""
_WRITE_BUSY_MS = 1000
"""The same for a commit: short, since calls with deadlines wait for it."""
_WRITE_CACHE_KIB = 32 * 1024
"""Keeps the randomly ordered index of row ids at hand for some 500,000 rows."""
_WAL_KEPT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFiles:
    """An opened database. writer, reader, aside: connections for the writer thread, the loop thread and
    slow reads; identity: (device, inode) of each file that must stay where it is; ids: of the rows stored.
    """

    path: Path
    lock: FileLock
    writer: sqlite3.Connection
    reader: sqlite3.Connection
    aside: sqlite3.Connection
    identity: Mapping[Path, tuple[int, int]]
    member_secret: bytes
    tenant_bytes: Sequence[tuple[str, int]]
    ids: Sequence[bytes]

    def close(self) -> None:
        """Close every connection, then let the lock go."""
        for connection in (self.aside, self.reader, self.writer):
            connection.close()
        self.lock.release()

    def displaced(self) -> str:
        """What happened to the files since they were opened, empty if nothing did.

        SQLite writes on into a database or log that was deleted or replaced, and all of that would be lost;
        without the lock file, a second process would take the database for free.
        """
        for path, identity in self.identity.items():
            try:
                found = _identity(path)
            except OSError as error:
                return f"{path}: {error.strerror}"
            if found != identity:
                return f"{path} was replaced by another file"
        return ""


def open_files(path: Path, *, incarnation: str, random_bytes: Callable[[int], bytes]) -> OpenFiles:
    """Open or create the database for this process alone. Raises StoreOpenError. Blocks on file I/O."""
    path = path.resolve()  # one file, one lock, whatever symbolic link led here
    with contextlib.ExitStack() as undo:
        _check_place(path)
        lock = FileLock.take(path, incarnation)
        undo.callback(lock.release)
        _create(path)
        try:
            files = _connect(path, lock, incarnation, random_bytes, undo)
        except (sqlite3.Error, OSError) as error:
            raise StoreOpenError(_explain(path, error)) from error
        undo.pop_all()
        return files


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise StoreOpenError(f"{path.parent} is not a directory; create it, or name another database file")
    if path.exists() and not path.is_file():
        raise StoreOpenError(f"{path} is not a regular file; name another database file")


def _create(path: Path) -> None:
    """Make sure that the file exists, is writable, private to its owner, and in its directory for good."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreOpenError(f"cannot write {path}: {error.strerror}; {_CAN_WRITE}") from error


def _connect(
    path: Path,
    lock: FileLock,
    incarnation: str,
    random_bytes: Callable[[int], bytes],
    undo: contextlib.ExitStack,
) -> OpenFiles:
    def connection(*pragmas: str) -> sqlite3.Connection:
        opened = sqlite3.connect(
            f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
        )
        undo.callback(opened.close)
        for pragma in pragmas:
            opened.execute(f"PRAGMA {pragma}")
        # SQLite opens its files with the first query: now, not in the middle of some call.
        opened.execute("SELECT count(*) FROM sqlite_master").fetchall()
        return opened

    writer = connection(f"busy_timeout = {_OPEN_BUSY_MS}")
    sqlite_migrations.check_owner(writer, path)
    _use_wal(writer, path)
    sqlite_migrations.migrate(writer, path, sqlite_migrations.load())
    secret = _introduce(writer, incarnation, random_bytes)
    sums = writer.execute("SELECT tenant, sum(bytes) FROM ledger GROUP BY tenant").fetchall()
    ids = [row_id for (row_id,) in writer.execute("SELECT id FROM ledger")]
    writer.execute(f"PRAGMA busy_timeout = {_WRITE_BUSY_MS}")
    return OpenFiles(
        path=path,
        lock=lock,
        writer=writer,
        # A WAL reader never waits for the writer; should it have to, the loop must not.
        reader=connection("busy_timeout = 0", "query_only = ON"),
        aside=connection(f"busy_timeout = {_WRITE_BUSY_MS}", "query_only = ON"),
        identity={name: _identity(name) for name in (path, path.with_name(f"{path.name}-wal"), lock.path)},
        member_secret=secret,
        tenant_bytes=sums,
        ids=ids,
    )


def _use_wal(writer: sqlite3.Connection, path: Path) -> None:
    (mode,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreOpenError(
            f"{path} cannot use a write-ahead log (journal mode stays {mode}); "
            "put the database on a local file system"
        )
    # FULL: a commit returns after its bytes are synced, so that what was acknowledged survives power loss.
    writer.execute("PRAGMA synchronous = FULL")
    writer.execute(f"PRAGMA cache_size = -{_WRITE_CACHE_KIB}")
    writer.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")


def _introduce(writer: sqlite3.Connection, incarnation: str, random_bytes: Callable[[int], bytes]) -> bytes:
    """Note the new owner - which proves that the database can be written - and return the store's secret."""
    upsert = "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO"
    writer.execute("BEGIN IMMEDIATE")
    writer.execute(f"{upsert} NOTHING", ("member_secret", random_bytes(32)))
    writer.execute(f"{upsert} UPDATE SET value = excluded.value", ("opened_by", incarnation.encode()))
    (secret,) = writer.execute("SELECT value FROM meta WHERE name = 'member_secret'").fetchone()
    writer.execute("COMMIT")
    return bytes(secret)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


_CAN_WRITE = "the service needs to read and write its database file and the directory around it"

_ADVICE = {
    "SQLITE_NOTADB": "it is not a SQLite database; name another file, or move this one away",
    "SQLITE_CORRUPT": "the database is damaged; restore it from a backup, or move it away to start empty",
    "SQLITE_FULL": "the disk is full; free space on it",
    "SQLITE_READONLY": f"it is read-only; {_CAN_WRITE}",
    "SQLITE_CANTOPEN": f"it cannot be opened; {_CAN_WRITE}",
    "SQLITE_PERM": f"access is denied; {_CAN_WRITE}",
    "SQLITE_BUSY": "another program has it locked; close that program (a SQLite shell, a backup)",
    "SQLITE_IOERR": "the disk reports an error; see the system's log, and whether the disk is full",
}


def _explain(path: Path, error: sqlite3.Error | OSError) -> str:
    name = getattr(error, "sqlite_errorname", None) or ""
    # Extended codes name their primary one first: SQLITE_IOERR_WRITE, SQLITE_READONLY_DBMOVED.
    primary = "_".join(name.split("_")[:2])
    advice = _ADVICE.get(primary, "see whether the file, its directory and its disk are in order")
    return f"cannot open {path}: {advice} ({name or type(error).__name__}: {error})"
