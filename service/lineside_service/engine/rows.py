"""Rows of the ledger as the engine makes them: at the claim, at the intent, at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from lineside_service.core import ledger as rules
from lineside_service.core.call import Answer, Call, Reply
from lineside_service.core.errors import Failure, Outcome, Source
from lineside_service.core.fingerprint import downstream_key, fingerprint, member_hashes, scope_id
from lineside_service.core.ledger import Row, RowState, Scope
from lineside_service.core.tool import Idempotency, ToolSpec
from lineside_service.engine.work import Work

CLAIM_S = 3600.0
"""How long a claim is good without its process. One process owns the embedded store for its whole life, so
only a shared store will ever compare it; longer than any call (600 s)."""


_BLANK: Final = Row(
    id=b"",
    scope=Scope(tenant="", tool="", key=""),
    call_id="",
    fingerprint=b"",
    state=RowState.RUNNING,
    incarnation="",
    idempotency=Idempotency.NO,
    claimed_s=0.0,
    claim_expires_s=0.0,
)
"""What claims are copied from: a third of the time that a new one takes."""


@dataclass(slots=True)
class KeyedCall:
    """A call with what its key stands for, computed once. row_id: 32 bytes; print: its fingerprint."""

    call: Call
    scope: Scope
    row_id: bytes
    print: bytes

    @classmethod
    def of(cls, call: Call, key: str) -> KeyedCall:
        """The identity of a call with this key."""
        scope = Scope(tenant=call.tenant, tool=call.tool, key=key)
        return cls(call, scope, scope_id(call.tenant, call.tool, key), fingerprint(call.arguments))

    def downstream_key(self) -> str:
        """What the upstream gets as our key, the same on every attempt."""
        return downstream_key(self.scope.tenant, self.scope.tool, self.scope.key, self.print)


def claimed_row(
    keyed: KeyedCall,
    spec: ToolSpec,
    before: Row | None,
    *,
    call_id: str,
    incarnation: str,
    secret: bytes,
    wall_s: float,
) -> Row:
    """The row a claim stands for. before: the row that it may replace; an UNKNOWN one is carried on."""
    resumed = before if before is not None and before.state is RowState.UNKNOWN else None
    row = _BLANK.but(
        id=keyed.row_id,
        scope=keyed.scope,
        call_id=call_id,
        fingerprint=keyed.print,
        incarnation=incarnation,
        idempotency=spec.idempotency,
        claimed_s=wall_s,
        claim_expires_s=wall_s + CLAIM_S,
        version=0 if before is None else before.version,
        members=member_hashes(keyed.call.arguments, secret),
    )
    if resumed is None:
        return row
    return row.but(
        call_id=resumed.call_id,
        first_started_s=resumed.first_started_s,
        first_send_s=resumed.first_send_s,
        ever_unknown=True,
    )


def first_started_s(row: Row, work: Work) -> float | None:
    """Wall clock, Unix seconds, of the call's first attempt, be it in an earlier execution."""
    if row.first_started_s is not None or not work.history.records:
        return row.first_started_s
    return work.history.first_started_s


def ended_row(
    row: Row, work: Work, reply: Reply | None, state: RowState, *, wall_s: float, now: float
) -> Row:
    """The row that the end of the work leaves behind, DONE or UNKNOWN."""
    latest_s = wall_s + work.waiters.latest_deadline - now
    ever_unknown = row.ever_unknown or state is RowState.UNKNOWN
    ended: dict[str, Any] = {
        "state": state,
        "attempts": work.history.attempts,
        "first_started_s": first_started_s(row, work),
        "first_send_s": row.first_send_s or work.history.first_send_s,
        "ended_s": wall_s,
        "record": work.history.to_json(),
        "ever_unknown": ever_unknown,
    }
    if state is not RowState.DONE:
        return row.but(**ended)
    ended["expires_s"] = rules.done_expiry(
        ended_s=wall_s,
        keep_done_s=work.registered.spec.keep_done_s,
        latest_deadline_s=latest_s,
        ever_unknown=ever_unknown,
    )
    if isinstance(reply, Answer):
        return row.but(**ended, result=reply.result, tool_error=reply.tool_error)
    if reply is None:
        return row.but(**ended)
    failure = {"failure_kind": reply.kind, "failure_message": reply.message, "failure_reason": reply.reason}
    return row.but(**ended, **failure)


def reply_from_row(row: Row) -> Reply:
    """Replay a DONE row: the answer as it was, or the failure of an answer that could not be used."""
    if row.failure_kind is not None:
        return Failure(
            kind=row.failure_kind,
            message=row.failure_message,
            reason=row.failure_reason,
            outcome=Outcome.DONE,
            attempts=row.attempts,
            call_id=row.call_id,
            source=Source.REPLAYED,
            first_started_s=row.first_started_s,
        )
    return Answer(
        result=row.result or b"null",
        tool_error=row.tool_error,
        call_id=row.call_id,
        attempts=row.attempts,
        source=Source.REPLAYED,
        first_started_s=row.first_started_s,
    )
