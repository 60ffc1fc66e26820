"""The demo's only view of the Lineside client: every name of the client that it uses is used here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import lineside
from conversations.execution import Answer

__all__ = ["Attempt", "CallRecord", "Gateway", "Refused", "Reply", "Step", "connected"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answered call. `source` is executed, joined, replayed or another word of the client's."""

    answer: Answer
    attempts: int
    source: str
    call_id: str


class Refused(Exception):
    """A call that was not answered: `kind` and `outcome` in the client's words.

    `call_id` is empty if the service told none; `retry_after_s` is 0 without a hint.
    """

    def __init__(
        self, *, kind: str, outcome: str, attempts: int, call_id: str, retry_after_s: float, message: str
    ) -> None:
        super().__init__(f"{kind} ({outcome}): {message}")
        self.kind = kind
        self.outcome = outcome
        self.attempts = attempts
        self.call_id = call_id
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt, times in seconds: `began_s` after the call's start; `kind` is empty for an answer."""

    number: int
    kind: str
    outcome: str
    began_s: float
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One decision of the service: what it chose, why, and the numbers it compared."""

    choice: str
    reason: str
    numbers: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class CallRecord:
    """A call as the service remembers it; `settled_by` is empty unless its outcome was unknown once."""

    call_id: str
    tool: str
    state: str
    etag: str
    settled_by: str
    attempts: Sequence[Attempt]
    steps: Sequence[Step]


class Gateway:
    """Calls through the service, by one client."""

    def __init__(self, client: lineside.AsyncClient) -> None:
        self._client = client

    async def send(
        self, tool: str, arguments: dict[str, Any], *, timeout_s: float, key: str | None = None
    ) -> Reply:
        """Send one call; raises Refused."""
        try:
            answer = await self._client.dispatch(tool, arguments, idempotency_key=key, timeout_s=timeout_s)
        except lineside.DispatchError as error:
            raise Refused(
                kind=error.kind,
                outcome=error.outcome or "",
                attempts=error.attempts,
                call_id=error.call_id,
                retry_after_s=error.retry_after_s or 0.0,
                message=str(error),
            ) from error
        return Reply(
            answer=Answer(result=answer.result, tool_error=answer.tool_error),
            attempts=answer.attempts,
            source=answer.source or "",
            call_id=answer.call_id,
        )

    async def record(self, call_id: str) -> CallRecord | None:
        """Read what the service remembers of a call; None if that is nothing."""
        try:
            return _record(await self._client.get_call(call_id=call_id))
        except lineside.DispatchError as error:
            if error.kind == "not_found":
                return None
            raise

    async def unknown_calls(self) -> list[CallRecord]:
        """List the calls whose outcome nobody has settled yet."""
        return [_record(call) async for call in self._client.list_calls(state="unknown")]

    async def settle(self, record: CallRecord, done: Answer | None, *, reason: str) -> bool:
        """Settle an unknown call as done with an answer, or as not run (None).

        False: the record has changed since it was read, or its attempt still runs.
        """
        try:
            if done is None:
                await self._client.settle_call(record.call_id, record.etag, not_run=True, reason=reason)
            else:
                await self._client.settle_call(
                    record.call_id, record.etag, done=done.result, tool_error=done.tool_error, reason=reason
                )
        except lineside.DispatchError as error:
            if error.kind == "conflict":
                return False
            raise
        return True


@asynccontextmanager
async def connected(target: str) -> AsyncIterator[Gateway]:
    """Connect to the service at `host:port`."""
    async with lineside.AsyncClient(target) as client:
        yield Gateway(client)


def _record(call: lineside.CallRecord) -> CallRecord:
    start = call.start_time.timestamp() if call.start_time else 0.0
    return CallRecord(
        call_id=call.call_id,
        tool=call.tool,
        state=call.state or "",
        etag=call.etag,
        settled_by=call.settled_by or "",
        attempts=[
            Attempt(
                number=attempt.number,
                kind=attempt.kind or "",
                outcome=attempt.outcome or "",
                began_s=attempt.start_time.timestamp() - start if attempt.start_time else 0.0,
                duration_s=attempt.duration_s or 0.0,
            )
            for attempt in call.attempt_records
        ],
        steps=[
            Step(choice=step.choice, reason=step.reason, numbers=dict(step.numbers))
            for step in call.decisions
        ],
    )
