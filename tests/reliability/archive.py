"""A database that has been in use: thousands of rows of a tool that nobody calls any more."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import time
from pathlib import Path

from lineside_service.core.fingerprint import scope_id
from lineside_service.core.ledger import Row, RowState, Scope
from lineside_service.core.tool import Idempotency
from lineside_service.stores import open_sqlite
from lineside_service.stores.sqlite_rows import encode, upsert


async def write_archive(path: Path, *, rows: int, running: int = 0) -> None:
    """Make a database with finished rows that are kept for another hour, and rows that a dead process left.

    Those are of a tool that is not idempotent: each must become unknown at the next start.
    """
    store = await open_sqlite(path, incarnation="archive")
    await store.close()
    now = time.time()
    made = [_row(number, RowState.DONE, now) for number in range(rows)]
    made += [_row(number, RowState.RUNNING, now) for number in range(rows, rows + running)]
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(upsert(1), [encode(row, 1) for row in made])


def _row(number: int, state: RowState, now: float) -> Row:
    scope = Scope(tenant="local", tool="archive", key=f"old-{number}")
    is_done = state is RowState.DONE
    return Row(
        id=scope_id(scope.tenant, scope.tool, scope.key),
        scope=scope,
        call_id=f"00000000-0000-7000-8000-{number:012x}",
        fingerprint=hashlib.sha256(b"{}").digest(),
        state=state,
        incarnation="dead",
        idempotency=Idempotency.NO,
        claimed_s=now - 60,
        claim_expires_s=now + 540,
        attempts=1,
        first_started_s=now - 60,
        first_send_s=now - 60,
        ended_s=now - 59 if is_done else None,
        expires_s=now + 3600 if is_done else None,
        result=b'{"paid":%d}' % number if is_done else None,
        record=b'{"attempts":[],"decisions":[]}',
    )
