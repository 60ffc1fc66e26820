"""Numbered .sql files, applied once each, in order, with their checksums remembered."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lineside_service.stores.errors import StoreOpenError

APPLICATION_ID = 0x4C4E5344
"""`LNSD` in the database header: how a Lineside database is told from another application's."""

DIRECTORY = Path(__file__).parent / "migrations" / "sqlite"

_TABLE = (
    "CREATE TABLE IF NOT EXISTS schema_migrations ("
    "number INTEGER PRIMARY KEY NOT NULL, name TEXT NOT NULL, checksum TEXT NOT NULL)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema. name: the file's, `0001_ledger`; checksum: SHA-256 hex of its text."""

    number: int
    name: str
    sql: str
    checksum: str


def load(directory: Path = DIRECTORY) -> Sequence[Migration]:
    """The migrations of a directory of `NNNN_name.sql` files, by number."""
    return [_read(path) for path in sorted(directory.glob("*.sql"))]


def _read(path: Path) -> Migration:
    text = path.read_text(encoding="utf-8")
    return Migration(
        number=int(path.stem.partition("_")[0]),
        name=path.stem,
        sql=text,
        checksum=hashlib.sha256(text.encode()).hexdigest(),
    )


def check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreOpenError unless the database is empty or ours. Changes nothing."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id != APPLICATION_ID and (application_id or tables):
        raise StoreOpenError(
            f"{path} is the database of another application (application_id {application_id:#010x}, "
            f"{tables} tables and indexes); give the service a file of its own"
        )


def migrate(connection: sqlite3.Connection, path: Path, known: Sequence[Migration]) -> None:
    """Bring the schema up to the newest known migration, each in a transaction of its own.

    Raises StoreOpenError if the database went through a migration that is not known here or reads
    differently here, sqlite3.Error if one fails; then nothing of that one is left.
    """
    # The mark comes in one transaction with the first table: a kill leaves an empty database or ours.
    _script(connection, f"{_TABLE};\nPRAGMA application_id = {APPLICATION_ID};")
    applied = connection.execute("SELECT number, name, checksum FROM schema_migrations").fetchall()
    _compare(applied, known, path)
    done = {number for number, _, _ in applied}
    for migration in known:
        if migration.number not in done:
            _apply(connection, migration)


def _compare(applied: list[tuple[int, str, str]], known: Sequence[Migration], path: Path) -> None:
    by_number = {migration.number: migration for migration in known}
    for number, name, checksum in applied:
        if number not in by_number:
            raise StoreOpenError(
                f"{path} was made by a newer version of the service (it has migration {name}, the newest "
                f"known here is {known[-1].name}); run that version, or give this one another file"
            )
        if by_number[number].checksum != checksum:
            raise StoreOpenError(
                f"migration {name} of {path} is not the one that this version has (checksum "
                f"{checksum[:12]}..., here {by_number[number].checksum[:12]}...); the database or the "
                "installation was altered: restore the one or reinstall the other"
            )


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    # The values are ours, not a caller's, and free of quotes: a number, a file name, a hex digest.
    note = f"({migration.number}, '{migration.name}', '{migration.checksum}')"
    insert = f"INSERT INTO schema_migrations (number, name, checksum) VALUES {note};"  # noqa: S608 - see above
    _script(connection, f"{migration.sql}\n{insert}")


def _script(connection: sqlite3.Connection, sql: str) -> None:
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{sql}\nCOMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.rollback()
        raise
