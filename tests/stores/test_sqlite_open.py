"""A database file that cannot be used gives an error at the start that says why and what to do."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from lineside_service.ports import Claim
from lineside_service.stores import StoreOpenError, open_sqlite, sqlite_open
from lineside_service.stores.sqlite_migrations import APPLICATION_ID, Migration, load, migrate
from tests.stores.conftest import Opener
from tests.stores.disks import small_disk, unprivileged_directory
from tests.stores.rows import claim_of, done, stored

pytestmark = pytest.mark.asyncio


async def refusal(path: Path) -> str:
    """The text of the StoreOpenError that opening the path raises; it always names the file."""
    with pytest.raises(StoreOpenError) as caught:
        await open_sqlite(path, incarnation="late")
    assert path.name in str(caught.value)
    return str(caught.value)


async def test_a_new_file_is_private_ours_and_durable(open_store: Opener, tmp_path: Path) -> None:
    """The first open makes a file that only its owner reads, with WAL and FULL sync, marked as ours."""
    store = await open_store()
    path = tmp_path / "ledger.db"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ledger.db-wal").stat().st_mode) == 0o600
    pragma = {name: store._files.writer.execute(f"PRAGMA {name}").fetchone()[0] for name in _PRAGMAS}
    assert pragma == {"journal_mode": "wal", "synchronous": 2, "application_id": APPLICATION_ID}


_PRAGMAS = ("journal_mode", "synchronous", "application_id")


async def test_rows_sums_and_secret_outlive_the_process(open_store: Opener) -> None:
    """What was saved is there at the next open; the secret is drawn once; stored bytes are summed."""
    first = await open_store(random_bytes=lambda n: b"s" * n)
    row = done(claim_of("k"), b"r" * 1000)
    await first.claim(row)
    assert await first.save(row)
    await first.claim(claim_of("bare"))
    await first.close()
    second = await open_store(incarnation="next", random_bytes=lambda n: b"t" * n)
    assert second.member_secret == b"s" * 32
    assert await second.find(row.id) == stored(row)
    assert second.stored_bytes("t1") == row.stored_bytes
    assert (await second.claim(claim_of("bare", incarnation="next")))[0] is Claim.CLAIMED


async def test_a_second_opener_in_the_process_is_refused_by_name(open_store: Opener, tmp_path: Path) -> None:
    """The error names process and incarnation of the owner, through a symbolic link too."""
    await open_store(incarnation="first-one")
    (tmp_path / "link.db").symlink_to(tmp_path / "ledger.db")
    for name in ("ledger.db", "link.db"):
        with pytest.raises(StoreOpenError, match=rf"process {os.getpid()} \(incarnation first-one\)"):
            await open_sqlite(tmp_path / name, incarnation="second")


async def test_a_refused_or_closed_store_leaves_the_file_free(open_store: Opener, tmp_path: Path) -> None:
    """Neither a failed start nor a closed store keeps the lock."""
    (tmp_path / "ledger.db").write_bytes(b"not a database, and long enough to be sure of it" * 30)
    await refusal(tmp_path / "ledger.db")
    (tmp_path / "ledger.db").unlink()
    for _ in range(2):
        await (await open_store()).close()


async def test_an_open_that_is_cancelled_leaves_the_file_free(open_store: Opener, tmp_path: Path) -> None:
    """The thread that was opening gives the lock back when nobody wants the store any more."""
    opening = asyncio.ensure_future(open_sqlite(tmp_path / "ledger.db", incarnation="hasty"))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(10):
        while True:
            try:
                await open_store()
                return
            except StoreOpenError:
                await asyncio.sleep(0)


async def test_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    """Any other file is left as it is."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"dear diary, " * 200)
    assert "not a SQLite database" in await refusal(path)
    assert path.read_bytes() == b"dear diary, " * 200


async def test_the_database_of_another_application(tmp_path: Path) -> None:
    """Marked or unmarked, a database that holds something else is left as it is."""
    for name, mark in (("marked.db", "PRAGMA application_id = 42"), ("tables.db", "CREATE TABLE theirs (x)")):
        other = sqlite3.connect(tmp_path / name)
        other.execute(mark)
        other.close()
        before = (tmp_path / name).read_bytes()
        assert "another application" in await refusal(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


async def test_a_database_of_a_newer_version(open_store: Opener, tmp_path: Path) -> None:
    """A migration that this version does not know names itself, and the newest that is known."""
    await edit(
        open_store, tmp_path, "INSERT INTO schema_migrations VALUES (9000, '9000_runs_on_mars', 'abc')"
    )
    text = await refusal(tmp_path / "ledger.db")
    assert "newer version" in text
    assert "9000_runs_on_mars" in text
    assert load()[-1].name in text


async def test_a_migration_that_reads_differently_here(open_store: Opener, tmp_path: Path) -> None:
    """A checksum that does not match says which migration was altered."""
    await edit(open_store, tmp_path, "UPDATE schema_migrations SET checksum = 'feed' WHERE number = 1")
    assert "migration 0001_ledger" in await refusal(tmp_path / "ledger.db")


async def edit(open_store: Opener, tmp_path: Path, sql: str) -> None:
    """Make a database, close it and change it behind the store's back."""
    await (await open_store()).close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute(sql)
    connection.close()


async def test_a_damaged_database(open_store: Opener, tmp_path: Path) -> None:
    """Overwritten pages are reported as damage, with advice."""
    await (await open_store()).close()
    with (tmp_path / "ledger.db").open("r+b") as file:
        file.seek(100)
        file.write(b"\xee" * 16_000)
    assert "restore it from a backup" in await refusal(tmp_path / "ledger.db")


async def test_a_database_that_another_program_has_locked(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SQLite shell in the middle of a transaction is waited for shortly, then named as the cause."""
    await (await open_store()).close()
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(sqlite_open, "_OPEN_BUSY_MS", 50)
    assert "another program has it locked" in await refusal(tmp_path / "ledger.db")
    other.close()
    await open_store()


async def test_a_read_only_file_or_directory() -> None:
    """File modes that forbid writing are named, with what the service needs."""
    with unprivileged_directory() as directory:
        path = directory / "ledger.db"
        await (await open_sqlite(path, incarnation="i")).close()
        path.chmod(0o400)
        assert "Permission denied; the service needs to read and write" in await refusal(path)
        path.chmod(0o600)
        directory.chmod(0o500)
        (text,) = [await refusal(directory / "fresh.db")]
        assert "Permission denied" in text
        assert "directory" in text
        directory.chmod(0o700)
        await (await open_sqlite(path, incarnation="i")).close()


async def test_a_place_that_is_not_there_or_not_a_file(tmp_path: Path) -> None:
    """A missing directory and a directory in the file's place are told apart."""
    with pytest.raises(StoreOpenError, match="missing is not a directory; create it"):
        await open_sqlite(tmp_path / "missing" / "ledger.db", incarnation="i")
    (tmp_path / "taken.db").mkdir()
    assert "not a regular file" in await refusal(tmp_path / "taken.db")


@pytest.mark.parametrize("kib", [4, 16, 40, 64])
async def test_a_full_disk(kib: int) -> None:
    """However far opening gets before the disk is full, the error says so; with room it opens."""
    with small_disk(f"{kib}k") as directory:
        text = await refusal(directory / "ledger.db")
        assert "full" in text or "No space left" in text


async def test_a_migration_that_fails_leaves_nothing_of_itself(tmp_path: Path) -> None:
    """Each migration is one transaction: its mark and its tables come together or not at all."""
    connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    good = Migration(number=1, name="0001_good", sql="CREATE TABLE good (x);", checksum="a")
    bad = Migration(
        number=2, name="0002_bad", sql="CREATE TABLE half (x); CREATE TABLE good (x);", checksum="b"
    )
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(connection, tmp_path / "x.db", [good, bad])
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert {name for (name,) in tables} == {"schema_migrations", "good"}
    migrate(connection, tmp_path / "x.db", [good])
    assert connection.execute("SELECT number FROM schema_migrations").fetchall() == [(1,)]
    connection.close()
