"""What the attempts behind a call amount to: the one account from which replies and rows are made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.call import Answer, Reply
from lineside_service.core.decision import Decision
from lineside_service.core.errors import ErrorKind, Failure, Outcome, Source
from lineside_service.core.ledger import work_outcome
from lineside_service.core.retry import RetryDecision, server_hint_s
from lineside_service.engine.refusals import decision_of

MAX_RECORDED_DECISIONS = 64
"""Decisions kept per call; the last ones. Bounds what a call with a hundred attempts leaves behind."""


@dataclass(slots=True, kw_only=True)
class AttemptRecord:
    """One attempt as GetCall shows it. started: loop time; started_s: Unix seconds; durations: seconds.

    backoff_s: the wait that preceded it; retry_reason: token of the decision that it follows, empty for the
    first. end: None while it runs.
    """

    number: int
    started: float
    started_s: float
    backoff_s: float
    retry_reason: str = ""
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


class History:
    """The attempts and decisions of one call so far.

    arrival: loop time at which its first caller came. outcome_before: what other executions of the same call
    left. first_send_s: Unix seconds of the first attempt's start.
    """

    __slots__ = ("arrival", "call_id", "decisions", "first_send_s", "outcome_before", "records")

    def __init__(self, call_id: str, arrival: float, outcome_before: Outcome) -> None:
        self.call_id = call_id
        self.arrival = arrival
        self.outcome_before = outcome_before
        self.records: list[AttemptRecord] = []
        self.decisions: list[Decision] = []
        self.first_send_s: float | None = None

    @property
    def attempts(self) -> int:
        """Attempts started so far."""
        return len(self.records)

    @property
    def first_started_s(self) -> float | None:
        """Wall clock, Unix seconds, of the first attempt's start."""
        return self.records[0].started_s if self.records else None

    @property
    def outcome(self) -> Outcome:
        """What is known of the effect by now; an attempt without an end may have had one."""
        return work_outcome([record.end for record in self.records], before=self.outcome_before)

    @property
    def done_end(self) -> AttemptEnd | None:
        """The end of the first attempt that is known to have taken effect."""
        for record in self.records:
            end = record.end
            if end is not None and end.outcome is Outcome.DONE:
                return end
        return None

    def started(self, now: float, wall_s: float, backoff_s: float) -> AttemptRecord:
        """An attempt starts. now: loop time; backoff_s: the wait before it."""
        record = AttemptRecord(number=self.attempts + 1, started=now, started_s=wall_s, backoff_s=backoff_s)
        if self.records and self.decisions:
            record.retry_reason = self.decisions[-1].reason
        self.records.append(record)
        if self.first_send_s is None:
            self.first_send_s = wall_s
        return record

    def answer(self) -> Reply | None:
        """The reply when an attempt is known to be done: its answer, or that it can't be used."""
        end = self.done_end
        if end is None:
            return None
        if end.kind is not None:
            return self.filled(Failure(kind=end.kind, message=end.message, reason=end.reason))
        first, run_s = self.records[0], 0.0
        for record in self.records:
            run_s += record.duration_s
        return Answer(
            result=end.result or b"null",
            tool_error=end.tool_error,
            call_id=self.call_id,
            attempts=self.attempts,
            source=Source.EXECUTED,
            queue_s=max(0.0, first.started - self.arrival),
            run_s=run_s,
            first_started_s=first.started_s,
        )

    def refused(self, refusal: Failure) -> Reply:
        """What a refusal of ours makes of the call: an answer that is known by now counts for more."""
        known = self.decisions[-1].reason if self.decisions else ""
        if known != refusal.reason_token:  # where core refused, its own record stands already
            self.decisions.append(decision_of(refusal))
        answered = self.answer()
        if answered is not None:
            return answered
        last = self.records[-1].end if self.records else None
        return self.filled(refusal if last is None else _last_kind_stopped(last, refusal))

    def failed(self, end: AttemptEnd, why: RetryDecision) -> Failure:
        """The last attempt's kind ends the call; why: no other follows."""
        return Failure(
            kind=end.kind or ErrorKind.INTERNAL,
            message=end.message,
            reason=end.reason,
            violations=end.violations,
            retry_after_s=why.retry_after_s,
            stopped_by=why.stopped_by,
            outcome=self.outcome,
            attempts=self.attempts,
            call_id=self.call_id,
            source=Source.EXECUTED,
            first_started_s=self.first_started_s,
        )

    def filled(self, failure: Failure) -> Failure:
        """A failure with what is known of this call: outcome, attempts, ids and times."""
        return replace(
            failure,
            outcome=self.outcome,
            attempts=self.attempts,
            call_id=self.call_id,
            source=Source.EXECUTED if self.records else None,
            first_started_s=self.first_started_s,
        )

    def to_json(self) -> bytes:
        """The JSON text of Row.record: every attempt, the last decisions."""
        kept = self.decisions[-MAX_RECORDED_DECISIONS:]
        shown = {
            "attempts": [record.to_json() for record in self.records],
            "decisions": [{"choice": d.choice, "reason": d.reason, "numbers": dict(d.numbers)} for d in kept],
        }
        return msgspec.json.encode(shown)


def _last_kind_stopped(last: AttemptEnd, refusal: Failure) -> Failure:
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
