"""How the writer thread serves many tasks: together, in order, and even while the loop is never idle."""

from __future__ import annotations

import asyncio
import time

import pytest

from lineside_service.core.ledger import RowState
from lineside_service.ports import RowFilter
from lineside_service.stores import SqliteStore
from lineside_service.stores.sqlite_rows import NAMES, condition
from lineside_service.stores.sqlite_sweep import _DELETE_EXPIRED, _SELECT_AGED
from tests.stores.rows import claim_of, done, stored

pytestmark = pytest.mark.asyncio


async def test_what_waits_together_is_one_statement_and_one_sync(sqlite: SqliteStore) -> None:
    """64 saves at once are one transaction of one statement."""
    rows = [done(claim_of(f"k{n}")) for n in range(64)]
    for row in rows:
        await sqlite.claim(row)
    statements: list[str] = []
    sqlite._files.writer.set_trace_callback(statements.append)
    assert all(await asyncio.gather(*map(sqlite.save, rows)))
    assert [text.split()[0] for text in statements] == ["INSERT"]


async def test_writes_of_one_key_happen_in_the_order_they_were_asked_for(sqlite: SqliteStore) -> None:
    """An intent, its finish and its settlement, none awaited before the next, end as the last one says."""
    row = claim_of("k")
    await sqlite.claim(row)
    first = asyncio.ensure_future(sqlite.save(row))
    second = asyncio.ensure_future(sqlite.save(stored(row)))
    last = asyncio.ensure_future(sqlite.save(done(stored(stored(row)))))
    assert all(await asyncio.gather(first, second, last))
    assert await sqlite.find(row.id) == stored(done(stored(stored(row))))
    assert sqlite.stored_bytes("t1") == done(row).stored_bytes


async def test_a_release_behind_a_cancelled_save_still_cleans_up(sqlite: SqliteStore) -> None:
    """The save is on its way when its caller leaves; the release comes after it and takes the row away."""
    row = claim_of("k")
    await sqlite.claim(row)
    save = asyncio.ensure_future(sqlite.save(row))
    await asyncio.sleep(0)
    save.cancel()
    await sqlite.release(row)
    assert await sqlite.find(row.id) is None
    assert sqlite.stored_bytes("t1") == 0
    assert (await sqlite.claim(claim_of("k", call_id="next")))[1] is None


async def test_commits_go_through_while_the_loop_is_never_idle(sqlite: SqliteStore) -> None:
    """A loop that always has something to run does not starve the writer of the interpreter lock."""
    is_over = False

    async def busy() -> None:
        while not is_over:
            until = time.perf_counter() + 0.0001
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(busy()) for _ in range(8)]
    began = time.perf_counter()
    for n in range(50):
        row = done(claim_of(f"k{n}"))
        await sqlite.claim(row)
        assert await sqlite.save(row)
    took_s = time.perf_counter() - began
    is_over = True
    await asyncio.gather(*tasks)
    assert took_s < 3.0  # some 0.2 s; without giving way, 20 s and more


async def test_lists_and_sweeps_use_their_indexes(sqlite: SqliteStore) -> None:
    """No query of the ledger reads the whole table to find a few rows."""

    def plan(sql: str, values: tuple[object, ...]) -> str:
        return " ".join(
            str(step[3]) for step in sqlite._files.reader.execute(f"EXPLAIN QUERY PLAN {sql}", values)
        )

    for state, index in ((RowState.UNKNOWN, "ledger_unknown"), (RowState.RUNNING, "ledger_running")):
        where, values = condition(RowFilter(state=state, tenant="t1"))
        assert index in plan(
            f"SELECT {NAMES} FROM ledger WHERE {where} ORDER BY call_id LIMIT ?", (*values, 5)
        )
        where, values = condition(RowFilter(state=state))
        assert index in plan(f"SELECT count(*) FROM ledger WHERE {where}", values)
    assert "ledger_expires" in plan(_DELETE_EXPIRED, (1.0, 5))
    assert "ledger_unalerted" in plan(_SELECT_AGED, (1.0, 5))
