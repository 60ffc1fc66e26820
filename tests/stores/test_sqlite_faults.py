"""Faults while the store runs: a typed refusal, nothing silent, and on as soon as it is over."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest

from lineside_service.core.ledger import RowState
from lineside_service.ports import RowFilter, StoreUnavailable
from lineside_service.stores import SqliteStore, open_sqlite
from tests.stores.conftest import Opener
from tests.stores.disks import failing_writes, small_disk
from tests.stores.rows import NOW_S, claim_of, done, stored

pytestmark = pytest.mark.asyncio


async def claimed(store: SqliteStore, key: str, size: int = 10) -> bool:
    """Claim a key and save its row with a result of that size."""
    row = done(claim_of(key), b"x" * size)
    await store.claim(row)
    return await store.save(row)


async def refused(store: SqliteStore, keys: list[str], size: int = 10) -> set[str]:
    """The texts with which saves of all these keys at once are refused; each must be."""
    ends = await asyncio.gather(*(claimed(store, key, size) for key in keys), return_exceptions=True)
    assert {type(end) for end in ends} == {StoreUnavailable}
    return {str(end) for end in ends}


async def then_all_is_well(store: SqliteStore, keys: list[str]) -> None:
    """After the fault the same claims can save: they were kept, and nothing of the failed saves is there."""
    for key in keys:
        row = done(claim_of(key))
        assert await store.find(row.id) is None
        assert await store.save(row)
        assert await store.find(row.id) == stored(row)
    rows = await store.list(RowFilter(), 100)
    assert store.stored_bytes("t1") == sum(row.stored_bytes for row in rows)


async def test_a_database_that_turns_read_only(sqlite: SqliteStore) -> None:
    """Saves and sweeps are refused, reads go on, and writing goes on when it can."""
    assert await claimed(sqlite, "before")
    sqlite._files.writer.execute("PRAGMA query_only = ON")
    (text,) = await refused(sqlite, ["a", "b"])
    assert "SQLITE_READONLY" in text
    with pytest.raises(StoreUnavailable):
        await sqlite.sweep(NOW_S + 1000, 10)
    assert await sqlite.find(claim_of("before").id) is not None
    assert await sqlite.count(RowState.DONE) == 1
    sqlite._files.writer.execute("PRAGMA query_only = OFF")
    await then_all_is_well(sqlite, ["a", "b"])


async def test_a_database_that_may_not_grow(sqlite: SqliteStore) -> None:
    """A full database refuses a batch whole, one statement or several; with room it takes the same rows."""
    sqlite._files.writer.execute("PRAGMA max_page_count = 20")
    keys = [f"k{n}" for n in range(100)]
    for group in (keys, keys[:50]):
        (text,) = await refused(sqlite, group, size=5000)
        assert "SQLITE_FULL" in text
    sqlite._files.writer.execute("PRAGMA max_page_count = 1000000")
    await then_all_is_well(sqlite, keys)


async def test_a_disk_that_fills_up() -> None:
    """On a real file system without room, a save is refused; once there is room it is written."""
    with small_disk("1m") as directory:
        store = await open_sqlite(directory / "ledger.db", incarnation="i")
        (directory / "ballast").write_bytes(b"x" * 600_000)
        (text,) = await refused(store, ["a"], size=500_000)
        assert "full" in text
        assert await claimed(store, "small")
        (directory / "ballast").unlink()
        await then_all_is_well(store, ["a"])
        await store.close()


async def test_writes_that_fail_with_an_io_error(sqlite: SqliteStore, tmp_path: Path) -> None:
    """Each batch during the fault is refused, the next one after it is written."""
    assert await claimed(sqlite, "before")
    with failing_writes(above_bytes=(tmp_path / "ledger.db-wal").stat().st_size):
        (first,) = await refused(sqlite, ["a"])
        (second,) = await refused(sqlite, ["b"])
    assert "SQLITE_IOERR_WRITE" in first
    assert "SQLITE_IOERR_WRITE" in second
    await then_all_is_well(sqlite, ["a", "b"])


@pytest.mark.parametrize("suffix", ["", "-wal", ".lock"])
async def test_a_file_taken_away_under_the_running_store(
    sqlite: SqliteStore, tmp_path: Path, suffix: str
) -> None:
    """Rather than write into a file that no one will find again, the store refuses until it is back."""
    path = tmp_path / f"ledger.db{suffix}"
    path.rename(tmp_path / "elsewhere")
    (text,) = await refused(sqlite, ["a"])
    assert "the database is gone" in text
    path.write_bytes((tmp_path / "elsewhere").read_bytes())
    (text,) = await refused(sqlite, ["b"])
    assert "replaced" in text
    path.unlink()
    (tmp_path / "elsewhere").rename(path)
    await then_all_is_well(sqlite, ["a", "b"])


async def test_another_program_that_holds_the_write_lock(sqlite: SqliteStore, tmp_path: Path) -> None:
    """A backup or a shell in a transaction: the commit waits shortly, then is refused; reads go on (R054)."""
    sqlite._files.writer.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    (text,) = await refused(sqlite, ["a"])
    assert "database is locked" in text
    assert await sqlite.find(claim_of("a").id) is None
    other.execute("ROLLBACK")
    other.close()
    await then_all_is_well(sqlite, ["a"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_writer_that_died_refuses_everything_later(sqlite: SqliteStore) -> None:
    """What it had in hand, what was waiting and what comes later hear of it; closing still works."""
    assert await claimed(sqlite, "before")
    doomed = sqlite._writer.run(lambda _: sys.exit("out of luck"), lambda _: None)
    with pytest.raises(StoreUnavailable, match="out of luck"):
        await doomed
    (text,) = await refused(sqlite, ["a", "b"])
    assert "writer has ended" in text
    assert await sqlite.find(claim_of("before").id) is not None
    await sqlite.close()


async def test_a_damaged_row_is_a_typed_refusal(sqlite: SqliteStore) -> None:
    """A row that something else wrote nonsense into is refused, alone or in a list, never half read."""
    assert await claimed(sqlite, "bad")
    assert await claimed(sqlite, "good")
    for column, value in (("state", "'dancing'"), ("members", "x'ff00'"), ("failure_kind", "'mood'")):
        await sqlite._writer.run(
            lambda c, column=column, value=value: c.execute(  # type: ignore[misc]
                f"UPDATE ledger SET {column} = {value} WHERE key = 'bad'"
            ),
            lambda _: None,
        )
        with pytest.raises(StoreUnavailable):
            await sqlite.find(claim_of("bad").id)
        with pytest.raises(StoreUnavailable):
            await sqlite.list(RowFilter(), 10)
        assert await sqlite.find(claim_of("good").id) is not None


async def test_a_row_that_cannot_be_stored_fails_alone(sqlite: SqliteStore) -> None:
    """Text that is not valid Unicode is refused by the database without harm to its batch."""
    row = done(claim_of("k"), failure_message="\ud800")
    await sqlite.claim(row)
    ends = await asyncio.gather(
        claimed(sqlite, "a"), sqlite.save(row), claimed(sqlite, "b"), return_exceptions=True
    )
    assert [end is True for end in ends] == [True, False, True]
    assert isinstance(ends[1], StoreUnavailable)


async def test_closing_writes_what_is_waiting(open_store: Opener) -> None:
    """Saves submitted before close are durable, though nobody waits for them any more."""
    store = await open_store()
    rows = [done(claim_of(f"k{n}")) for n in range(300)]
    for row in rows:
        await store.claim(row)
    saves = [asyncio.ensure_future(store.save(row)) for row in rows]
    await asyncio.sleep(0)
    await store.close()
    assert all([await save for save in saves])
    assert await (await open_store()).count(RowState.DONE) == 300
