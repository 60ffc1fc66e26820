"""How a piece of work ended: one value from which every waiter's reply and the ledger's row are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.call import Answer, Reply
from lineside_service.core.decision import Decision
from lineside_service.core.errors import ErrorKind, Failure, Outcome, Source
from lineside_service.core.ledger import Row
from lineside_service.core.retry import server_hint_s

MAX_RECORDED_DECISIONS = 64
"""Decisions kept per call; the last ones. Bounds what a call with a hundred attempts leaves behind."""


@dataclass(slots=True, kw_only=True)
class AttemptRecord:
    """One attempt as GetCall shows it. started: loop time; started_s: Unix seconds; durations: seconds.

    backoff_s: the wait that preceded it. end: None while it runs.
    """

    number: int
    started: float
    started_s: float
    backoff_s: float
    duration_s: float = 0.0
    end: AttemptEnd | None = None

    def to_json(self) -> dict[str, Any]:
        """The form that is stored and shown."""
        end = self.end
        return {
            "number": self.number,
            "kind": "" if end is None or end.kind is None else end.kind.value,
            "outcome": Outcome.IN_PROGRESS.value if end is None else end.outcome.value,
            "reason": "" if end is None else end.reason,
            "started_s": self.started_s,
            "duration_s": self.duration_s,
            "backoff_s": self.backoff_s,
        }


def record_json(attempts: list[AttemptRecord], decisions: list[Decision]) -> bytes:
    """The JSON text of Row.record."""
    kept = decisions[-MAX_RECORDED_DECISIONS:]
    shown: Mapping[str, Any] = {
        "attempts": [attempt.to_json() for attempt in attempts],
        "decisions": [{"choice": d.choice, "reason": d.reason, "numbers": dict(d.numbers)} for d in kept],
    }
    return msgspec.json.encode(shown)


def last_kind_stopped(last: AttemptEnd, refusal: Failure) -> Failure:
    """A refusal of ours after attempts were made: the last attempt's kind ends the call, and says so."""
    if last.kind is None or refusal.kind in (ErrorKind.LEASE_LOST, ErrorKind.CANCELLED):
        return refusal
    return Failure(
        kind=last.kind,
        message=last.message,
        reason=last.reason,
        retry_after_s=server_hint_s(last.retry_after_s)
        if refusal.retry_after_s is None
        else refusal.retry_after_s,
        stopped_by=refusal.reason_token,
    )


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


def for_waiter(reply: Reply, source: Source) -> Reply:
    """The same ending, as one waiter sees it: who joined says so; nothing executed has no source."""
    if source is Source.EXECUTED or reply.source is source:
        return reply
    return replace(reply, source=source)
