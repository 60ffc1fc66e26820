"""The answer to a call that ran."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lineside.call import Call
from lineside.errors import DispatchError
from lineside.v1 import dispatch_pb2, errors_pb2
from lineside.vocabulary import Source
from lineside.wire import moment_of, result_of, seconds_of, word


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a call ended that was valid and, unless only validated, ran.

    result: any JSON value as plain Python. tool_error: the tool ran and said no, and the result tells why.
    call_id: the execution that gave the answer; joined and replayed answers show the first call's.
    attempts: attempts that execution made. source: EXECUTED, JOINED, REPLAYED, CACHED, COALESCED or
    VALIDATED; None for one that this release does not know. queue_time_s, run_time_s: waiting and backing
    off, and running, all attempts together; None with 0 attempts. trace_id: 32 hex digits, or empty.
    first_started_time: start of the execution's first attempt, UTC.
    """

    result: Any
    tool_error: bool
    call_id: str
    attempts: int
    source: Source | None
    queue_time_s: float | None
    run_time_s: float | None
    trace_id: str
    first_started_time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """How one call of a batch ended: exactly one of answer and error is set.

    position: the call's place in the batch, from 0. item_id: the call's own, or its position as text if it
    has none. call: as it was given.
    """

    position: int
    item_id: str
    call: Call
    answer: Answer | None = None
    error: DispatchError | None = None

    def unwrap(self) -> Answer:
        """The answer; raises the error if there is none."""
        if self.answer is not None:
            return self.answer
        assert self.error is not None  # noqa: S101 - the class's own promise
        raise self.error


def answer_of(wire: dispatch_pb2.ToolAnswer) -> Answer:
    """The answer that a message tells."""
    _, result = result_of(wire, form="result_form", json_field="result_json", value_field="result")
    return Answer(
        result=result,
        tool_error=wire.tool_error,
        call_id=wire.call_id,
        attempts=wire.attempts,
        source=word(Source, errors_pb2.Source.Name, wire.source, "SOURCE_"),
        queue_time_s=seconds_of(wire, "queue_time"),
        run_time_s=seconds_of(wire, "run_time"),
        trace_id=wire.trace_id,
        first_started_time=moment_of(wire, "first_started_time"),
    )
