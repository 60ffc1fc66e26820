"""A ledger row as columns: the one place where both forms meet, and the statements built from it."""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import Any

import msgspec

from lineside_service.core.errors import ErrorKind
from lineside_service.core.ledger import Row, RowState, Scope, SettledBy
from lineside_service.core.tool import Idempotency
from lineside_service.ports import RowFilter

Values = tuple[Any, ...]
"""The columns of one row, in the order of COLUMNS."""

COLUMNS = (
    "id",
    "tenant",
    "tool",
    "key",
    "call_id",
    "fingerprint",
    "state",
    "incarnation",
    "idempotency",
    "claimed_s",
    "claim_expires_s",
    "version",
    "members",
    "attempts",
    "first_started_s",
    "first_send_s",
    "ended_s",
    "expires_s",
    "result",
    "tool_error",
    "failure_kind",
    "failure_message",
    "failure_reason",
    "record",
    "ever_unknown",
    "settled_by",
    "settled_reason",
    "settled_s",
    "bytes",
)
NAMES = ", ".join(COLUMNS)
SELECT_BY_ID = f"SELECT {NAMES} FROM ledger WHERE id = ?"  # noqa: S608 - column names of ours
SELECT_BY_CALL_ID = f"SELECT {NAMES} FROM ledger WHERE call_id = ?"  # noqa: S608 - same
UPDATE = (
    f"UPDATE ledger SET {', '.join(f'{name} = ?' for name in COLUMNS)}, alerted_s = NULL"  # noqa: S608 - same
    " WHERE id = ?"
)
OTHER_VERSION = "NOT NULL constraint failed: ledger.version"
"""What SQLite says when `upsert` met a row that is not the previous version."""

_encode_members = msgspec.json.Encoder().encode
_decode_members = msgspec.json.Decoder(dict[str, bytes]).decode
_NO_MEMBERS: MappingProxyType[str, bytes] = MappingProxyType({})


@functools.cache
def upsert(rows: int) -> str:
    """Store `rows` rows in one statement, all or none.

    A stored row gives way only to its next version; any other would set its version to NULL, and that
    violates NOT NULL and undoes the whole statement. No row stored: inserted, whatever the version.
    """
    one = f"({', '.join('?' * len(COLUMNS))})"
    rest = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in {"id", "version"})
    return (
        f"INSERT INTO ledger ({NAMES}) VALUES {', '.join([one] * rows)}"  # noqa: S608 - column names of ours
        f" ON CONFLICT (id) DO UPDATE SET {rest}, alerted_s = NULL,"
        " version = CASE WHEN excluded.version = ledger.version + 1 THEN excluded.version END"
    )


def condition(which: RowFilter) -> tuple[str, tuple[str, ...]]:
    """The filter as an SQL condition and the values for its question marks.

    The state stands in the text, since only then is the index of that state used.
    """
    terms, values = ["call_id > ?"], [which.after]
    if which.state is not None:
        terms.append(f"state = '{which.state.value}'")
    for name, wanted in (("tenant", which.tenant), ("tool", which.tool)):
        if wanted is not None:
            terms.append(f"{name} = ?")
            values.append(wanted)
    return " AND ".join(terms), tuple(values)


def encode(row: Row, version: int) -> Values:
    """The columns of a row that is to be stored as `version`."""
    scope = row.scope
    return (
        row.id,
        scope.tenant,
        scope.tool,
        scope.key,
        row.call_id,
        row.fingerprint,
        row.state.value,
        row.incarnation,
        row.idempotency.value,
        row.claimed_s,
        row.claim_expires_s,
        version,
        _encode_members(dict(row.members)) if row.members else None,
        row.attempts,
        row.first_started_s,
        row.first_send_s,
        row.ended_s,
        row.expires_s,
        row.result,
        row.tool_error,
        None if row.failure_kind is None else row.failure_kind.value,
        row.failure_message,
        row.failure_reason,
        row.record,
        row.ever_unknown,
        None if row.settled_by is None else row.settled_by.value,
        row.settled_reason,
        row.settled_s,
        row.stored_bytes,
    )


def decode(values: Values) -> Row:
    """The row behind the columns. Raises ValueError if something else wrote them."""
    (
        row_id,
        tenant,
        tool,
        key,
        call_id,
        fingerprint,
        state,
        incarnation,
        idempotency,
        claimed_s,
        claim_expires_s,
        version,
        members,
        attempts,
        first_started_s,
        first_send_s,
        ended_s,
        expires_s,
        result,
        tool_error,
        failure_kind,
        failure_message,
        failure_reason,
        record,
        ever_unknown,
        settled_by,
        settled_reason,
        settled_s,
        _bytes,
    ) = values
    return Row(
        id=row_id,
        scope=Scope(tenant=tenant, tool=tool, key=key),
        call_id=call_id,
        fingerprint=fingerprint,
        state=RowState(state),
        incarnation=incarnation,
        idempotency=Idempotency(idempotency),
        claimed_s=claimed_s,
        claim_expires_s=claim_expires_s,
        version=version,
        members=_members(members),
        attempts=attempts,
        first_started_s=first_started_s,
        first_send_s=first_send_s,
        ended_s=ended_s,
        expires_s=expires_s,
        result=result,
        tool_error=bool(tool_error),
        failure_kind=None if failure_kind is None else ErrorKind(failure_kind),
        failure_message=failure_message,
        failure_reason=failure_reason,
        record=record,
        ever_unknown=bool(ever_unknown),
        settled_by=None if settled_by is None else SettledBy(settled_by),
        settled_reason=settled_reason,
        settled_s=settled_s,
    )


def _members(encoded: bytes | None) -> MappingProxyType[str, bytes]:
    if encoded is None:
        return _NO_MEMBERS
    try:
        return MappingProxyType(_decode_members(encoded))
    except msgspec.DecodeError as error:
        raise ValueError(f"members: {error}") from error
