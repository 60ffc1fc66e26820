"""Calls as people and callers look them up, and the settlement of an unknown by a person."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lineside_service.core.errors import ErrorKind, Failure
from lineside_service.core.ledger import Evidence, Row, RowState, Scope, Settlement
from lineside_service.core.tool import Idempotency
from lineside_service.engine import refusals
from lineside_service.engine.dispatcher import Dispatcher
from lineside_service.engine.ledger import Ledger
from lineside_service.engine.rows import first_started_s
from lineside_service.engine.work import Work
from lineside_service.ports import RowFilter, StoreUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """A call as it stands. attempt_in_flight: the tool is still at it, given up or not.

    A keyless running call has an empty row id and key.
    """

    row: Row
    attempt_in_flight: bool


class Calls:
    """GetCall, ListCalls and SettleCall for one tenant at a time; others' calls do not exist."""

    def __init__(self, ledger: Ledger, dispatcher: Dispatcher) -> None:
        self._ledger = ledger
        self._dispatcher = dispatcher

    async def get(self, tenant: str, call_id: str) -> CallView | Failure:
        """The call with this id, running or kept."""
        work = self._dispatcher.running_alone(call_id)
        if work is not None and work.tenant == tenant:
            return CallView(row=_row_of(work), attempt_in_flight=work.attempt_running)
        entry = self._ledger.entry_of(call_id)
        if entry is not None:
            row = _live(entry.row, entry.work)
            return self._view(row) if row.scope.tenant == tenant else _no_call(call_id)
        try:
            stored = await self._ledger.records.by_call_id(call_id)
        except StoreUnavailable:
            return refusals.store_failed(pushback_safe=True)
        return _no_call(call_id) if stored is None or stored.scope.tenant != tenant else self._view(stored)

    async def get_by_key(self, tenant: str, tool: str, key: str) -> CallView | Failure:
        """The call of this key, running or kept."""
        scope = Scope(tenant=tenant, tool=tool, key=key)
        entry = self._ledger.entry_at(scope)
        if entry is not None:
            return self._view(_live(entry.row, entry.work))
        try:
            stored = await self._ledger.find(scope)
        except StoreUnavailable:
            return refusals.store_failed(pushback_safe=True)
        return _no_call(f"{tool} / {key}") if stored is None else self._view(stored)

    async def list(
        self, tenant: str, *, state: RowState | None, tool: str | None, after: str, limit: int
    ) -> list[CallView] | Failure:
        """At most `limit` kept calls after the call id `after`, oldest first."""
        which = RowFilter(tenant=tenant, state=state, tool=tool, after=after)
        try:
            rows = await self._ledger.records.list(which, limit)
        except StoreUnavailable:
            return refusals.store_failed(pushback_safe=True)
        return [self._view(row) for row in rows]

    async def settle(self, tenant: str, call_id: str, etag: str, evidence: Evidence) -> CallView | Failure:
        """Apply a person's word. The same word twice is fine; another one is a conflict."""
        found = await self.get(tenant, call_id)
        if isinstance(found, Failure):
            return found
        if found.row.id == b"":
            return _conflict("a call without a key is never kept, so there is nothing to settle", "NOT_KEYED")
        try:
            verdict, row = await self._ledger.settle(found.row, evidence, etag=etag)
        except StoreUnavailable:
            return refusals.store_failed(pushback_safe=True)
        if verdict in (Settlement.APPLY, Settlement.SAME):
            return self._view(row)
        text, reason = _REFUSED[verdict]
        return replace(_conflict(text, reason), call_id=call_id, attempts=row.attempts)

    def _view(self, row: Row) -> CallView:
        return CallView(row=row, attempt_in_flight=self._ledger.attempt_in_flight(row.call_id))


_REFUSED = {
    Settlement.DIFFERENT: ("the call was settled differently before; the first settlement stands", "SETTLED"),
    Settlement.STALE_ETAG: ("the call has changed since this etag was read; get it again", "STALE_ETAG"),
    Settlement.STILL_RUNNING: (
        "its attempt still runs, so nobody can say yet that it did not",
        "STILL_RUNNING",
    ),
    Settlement.NOT_UNKNOWN: ("the call's outcome was never unknown", "NOT_UNKNOWN"),
}


def _conflict(text: str, reason: str) -> Failure:
    return Failure(kind=ErrorKind.CONFLICT, message=text, reason=reason)


def _no_call(name: str) -> Failure:
    return Failure(
        kind=ErrorKind.NOT_FOUND,
        message="no such call is running or kept",
        reason="CALL_NOT_FOUND",
        facts={"call": name},
    )


def _live(row: Row, work: Work) -> Row:
    """A keyed row as the work stands now."""
    return replace(
        row,
        attempts=work.history.attempts,
        first_started_s=first_started_s(row, work),
        record=work.history.to_json(),
    )


def _row_of(work: Work) -> Row:
    """A keyless call in the shape of a row that nobody keeps."""
    spec = work.registered.spec
    row = Row(
        id=b"",
        scope=Scope(tenant=work.tenant, tool=spec.name, key=""),
        call_id=work.call_id,
        fingerprint=b"",
        state=RowState.RUNNING,
        incarnation="",
        idempotency=Idempotency.NO,
        claimed_s=work.claimed_s,
        claim_expires_s=work.claimed_s,
    )
    return _live(row, work)
