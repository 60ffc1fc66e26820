"""Housekeeping of the ledger in SQLite, run on the writer thread inside its transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from lineside_service.core.ledger import ALERT_UNKNOWN_S, cut
from lineside_service.stores import sqlite_rows

Change = tuple[bytes, str, int]
"""(row id, tenant, change of the tenant's stored bytes)."""

_DELETE_EXPIRED = (
    "DELETE FROM ledger WHERE id IN (SELECT id FROM ledger"
    " WHERE expires_s <= ? AND state IN ('done', 'not_run') ORDER BY expires_s LIMIT ?)"
    " RETURNING id, tenant, -bytes"
)
_SELECT_AGED = (
    f"SELECT {sqlite_rows.NAMES} FROM ledger"  # noqa: S608 - column names of ours
    " WHERE state = 'unknown' AND alerted_s IS NULL AND coalesce(ended_s, claimed_s) <= ? LIMIT ?"
)
_MARK_ALERTED = "UPDATE ledger SET alerted_s = ? WHERE id = ?"


@dataclass(frozen=True, slots=True)
class Changes:
    """What one pass did: rows deleted, and UNKNOWN rows cut and marked as reported."""

    deleted: Sequence[Change]
    cut: Sequence[Change]


def sweep(connection: sqlite3.Connection, *, wall_s: float, limit: int) -> Changes:
    """Delete at most `limit` expired rows, and cut as many UNKNOWN ones past the alert age."""
    deleted = connection.execute(_DELETE_EXPIRED, (wall_s, limit)).fetchall()
    aged = connection.execute(_SELECT_AGED, (wall_s - ALERT_UNKNOWN_S, limit)).fetchall()
    return Changes(deleted=deleted, cut=[_cut(connection, found, wall_s) for found in aged])


def _cut(connection: sqlite3.Connection, found: sqlite_rows.Values, wall_s: float) -> Change:
    row = sqlite_rows.decode(found)
    lean = cut(row)
    # The version stays: nobody who is about to settle the row has seen anything else of it.
    connection.execute(sqlite_rows.UPDATE, (*sqlite_rows.encode(lean, lean.version), row.id))
    connection.execute(_MARK_ALERTED, (wall_s, row.id))
    return row.id, row.scope.tenant, lean.stored_bytes - row.stored_bytes
