"""What a real process acknowledged is there after kill -9, and a file belongs to one process at a time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lineside_service.core.ledger import RowState
from lineside_service.ports import RowFilter
from lineside_service.stores import SqliteStore, StoreOpenError, open_sqlite
from tests.stores.acknowledging_process import result_of
from tests.stores.conftest import Opener
from tests.stores.rows import claim_of, done, stored

pytestmark = pytest.mark.asyncio

_ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def process(path: Path, first: int = 0) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that saves rows from `first` on and acknowledges them; killed at the end if it still runs."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.stores.acknowledging_process", str(path), str(first)),
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def acknowledged_before_kill(path: Path, first: int, count: int) -> dict[int, str]:
    """Run the process until `count` acknowledgements were read, kill it, and return all that it gave."""
    async with process(path, first) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        lines = [await running.stdout.readline() for _ in range(count)]
        running.kill()
        lines += (await running.stdout.read()).splitlines(keepends=True)
        assert lines[0], (await running.stderr.read()).decode()
    said = [line.decode().split() for line in lines if line.endswith(b"\n")]
    return {int(number): word for word, number in said}


async def check(store: SqliteStore, acknowledged: dict[int, str]) -> None:
    """Each acknowledged row is there, as it was acknowledged or further, and whole."""
    for number, word in acknowledged.items():
        row = claim_of(str(number))
        intents = [stored(row)] if number % 2 else []
        finished = stored(done(intents[0] if intents else row, result_of(number)))
        allowed = [finished] if word == "done" else [*intents, finished]
        assert await store.find(row.id) in allowed, f"row {number}, acknowledged as {word}"


async def kill_again_and_again(path: Path, rounds: int, seed: int) -> None:
    """Rounds of: run, read acknowledgements, kill -9, open at once, compare, go on with the same file."""
    chance = random.Random(seed)
    first = 0
    for _ in range(rounds):
        acknowledged = await acknowledged_before_kill(path, first, chance.randint(1, 600))
        store = await open_sqlite(path, incarnation="after")
        await check(store, acknowledged)
        rows = await store.list(RowFilter(), 1_000_000)
        assert store.stored_bytes("t1") == sum(row.stored_bytes for row in rows)
        await store.close()
        first = max(acknowledged) + 1000


async def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    """30 kills at random moments, 64 saves in flight each: 0 acknowledged rows are lost (R097, R049)."""
    await kill_again_and_again(tmp_path / "ledger.db", rounds=30, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_nothing_acknowledged_is_lost_by_a_thousand_kills(tmp_path: Path) -> None:
    """The long form: 1,000 kills over 20 files (R097)."""
    for seed in range(20):
        await kill_again_and_again(tmp_path / f"ledger-{seed}.db", rounds=50, seed=seed)


async def test_a_second_process_is_refused_and_told_who_has_the_file(tmp_path: Path) -> None:
    """While a process lives the file is its own; the moment it is killed the next one opens it."""
    path = tmp_path / "ledger.db"
    async with process(path) as running:
        assert running.stdout is not None
        assert await running.stdout.readline()
        owner = rf"process {running.pid} \(incarnation process-{running.pid}\)"
        with pytest.raises(StoreOpenError, match=f"in use by {owner}; stop that service"):
            await open_sqlite(path, incarnation="second")
        async with process(path) as second:
            _, said = await second.communicate()
            assert second.returncode == 1
            assert f"in use by process {running.pid}".encode() in said
        running.kill()
        await running.wait()
        await (await open_sqlite(path, incarnation="third")).close()


async def test_ten_thousand_rows_are_served_within_three_seconds(open_store: Opener, tmp_path: Path) -> None:
    """As a killed process leaves it, with its log not folded in, a file of 10,000 rows serves at once."""
    store = await open_store()
    rows = [done(claim_of(f"k{n}"), result_of(n)) for n in range(10_000)]
    for row in rows:
        await store.claim(row)
    await asyncio.gather(*map(store.save, rows))
    for file in list(tmp_path.iterdir()):
        shutil.copy(file, tmp_path / f"copy-{file.name}")
    began = time.perf_counter()
    copy = await open_store(tmp_path / "copy-ledger.db", incarnation="next")
    assert await copy.find(rows[-1].id) == stored(rows[-1])
    assert await copy.count(RowState.DONE) == 10_000
    assert await copy.save(stored(rows[0]))
    assert time.perf_counter() - began < 3.0
    assert copy.stored_bytes("t1") == store.stored_bytes("t1")
