"""Ledger rows to store, spelled by what a test is about."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from lineside_service.core.errors import ErrorKind
from lineside_service.core.ledger import Row, RowState, Scope, SettledBy
from lineside_service.core.tool import Idempotency

NOW_S = 1_790_000_000.0
DAY_S = 86_400.0
HERE, DEAD = "incarnation-here", "incarnation-dead"


def claim_of(key: str, *, tenant: str = "t1", tool: str = "pay", call_id: str = "", **fields: Any) -> Row:
    """The row with which an execution claims a key: RUNNING, version 0, owned by this process."""
    row = Row(
        id=hashlib.sha256(f"{tenant}/{tool}/{key}".encode()).digest(),
        scope=Scope(tenant=tenant, tool=tool, key=key),
        call_id=call_id or f"call-{tenant}-{tool}-{key}",
        fingerprint=hashlib.sha256(b"arguments").digest(),
        state=RowState.RUNNING,
        incarnation=HERE,
        idempotency=Idempotency.NO,
        claimed_s=NOW_S,
        claim_expires_s=NOW_S + 30,
    )
    return replace(row, **fields)


def done(row: Row, result: bytes = b'{"ok":true}', **fields: Any) -> Row:
    """The row as its work leaves it: DONE, kept for 60 s."""
    ended = {"ended_s": NOW_S + 1, "expires_s": NOW_S + 61, "attempts": 1, **fields}
    return replace(row, state=RowState.DONE, result=result, **ended)


def unknown(row: Row, **fields: Any) -> Row:
    """The row of work that nobody knows the outcome of."""
    return replace(row, state=RowState.UNKNOWN, **{"ended_s": NOW_S + 1, "ever_unknown": True, **fields})


def stored(row: Row) -> Row:
    """The row as it reads after it was saved."""
    return replace(row, version=row.version + 1)


def with_everything(key: str) -> Row:
    """A row in which no field has its default."""
    return claim_of(
        key,
        state=RowState.DONE,
        idempotency=Idempotency.BY_KEY,
        members={"city": b"12345678", "ünit €": bytes(range(8))},
        attempts=3,
        first_started_s=NOW_S + 0.125,
        first_send_s=NOW_S + 0.25,
        ended_s=NOW_S + 0.5,
        expires_s=NOW_S + 7 * DAY_S,
        result='{"said":"é"}'.encode(),
        tool_error=True,
        failure_kind=ErrorKind.BAD_OUTPUT,
        failure_message="too large ✂",
        failure_reason="OUTPUT_TOO_LARGE",
        record=b'{"attempts":[1,2,3]}',
        ever_unknown=True,
        settled_by=SettledBy.PERSON,
        settled_reason="seen in the bank's list",
        settled_s=NOW_S + 9,
    )
