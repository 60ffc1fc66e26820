"""A process to be killed: claims and saves rows without end and acknowledges each save on its stdout.

Usage: acknowledging_process.py DATABASE FIRST_NUMBER. A line `intent N` or `done N` is written only after the
save of that row was acknowledged by the store.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path

from lineside_service.stores import open_sqlite
from tests.stores.rows import claim_of, done, stored

WAITING = 64


def result_of(number: int) -> bytes:
    """The result that row number N is stored with: of many sizes, up to several pages."""
    return b'"' + f"{number}:".encode() * (1 + number * 7 % 1500) + b'"'


async def main(path: Path, first: int) -> None:
    """Save rows from `first` on, 64 at a time, until killed."""
    store = await open_sqlite(path, incarnation=f"process-{os.getpid()}")
    numbers = itertools.count(first)

    async def work() -> None:
        for number in numbers:
            row = claim_of(str(number))
            await store.claim(row)
            if number % 2:
                assert await store.save(row)
                os.write(1, f"intent {number}\n".encode())
                row = stored(row)
            assert await store.save(done(row, result_of(number)))
            os.write(1, f"done {number}\n".encode())

    await asyncio.gather(*(work() for _ in range(WAITING)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
