"""An Answer of core as a ToolAnswer, its result in the form that the arguments had."""

from __future__ import annotations

from typing import Final

from lineside.v1.dispatch_pb2 import ToolAnswer
from lineside_service.core.call import Answer
from lineside_service.core.errors import ErrorKind, Failure, Outcome, Source
from lineside_service.edge.enums import SOURCES
from lineside_service.edge.moments import set_duration, set_timestamp
from lineside_service.edge.values import NotInForm, write_value

RESULT_LIMIT: Final = 4 * 1024 * 1024 - 64 * 1024
"""Largest serialized result in one answer, bytes: gRPC's usual 4 MiB, less room for what surrounds it."""


def fill_answer(wire: ToolAnswer, answer: Answer, *, as_struct: bool, trace_id: str) -> Failure | None:
    """Write the answer in the caller's form; bad_output when that form cannot hold the result.

    trace_id: of the trace that the call belongs to; told only if its attempts are in it.
    """
    if answer.source is not Source.VALIDATED:
        refused = _fill_value(wire, answer) if as_struct else _fill_json(wire, answer)
        if refused is not None:
            return refused
    wire.tool_error = answer.tool_error
    wire.call_id = answer.call_id
    wire.attempts = answer.attempts
    wire.source = SOURCES[answer.source]
    if answer.source is Source.EXECUTED:
        wire.trace_id = trace_id
    if answer.attempts:
        set_duration(wire.queue_time, answer.queue_s)
        set_duration(wire.run_time, answer.run_s)
    if answer.first_started_s is not None:
        set_timestamp(wire.first_started_time, answer.first_started_s)
    return None


def _fill_json(wire: ToolAnswer, answer: Answer) -> Failure | None:
    size = len(answer.result)
    if size > RESULT_LIMIT:
        text = f"the call ran, but its result has {size} bytes; one answer carries {RESULT_LIMIT}"
        return _unusable(answer, text, "RESULT_TOO_LARGE")
    wire.result_json = answer.result
    return None


def _fill_value(wire: ToolAnswer, answer: Answer) -> Failure | None:
    why = ""
    try:
        write_value(wire.result, answer.result)
        size = wire.result.ByteSize()
        if size > RESULT_LIMIT:
            why = f"it takes {size} bytes there, over the limit of {RESULT_LIMIT}"
    except NotInForm as refused:
        why = str(refused)
    if not why:
        return None
    text = f"the call ran, but its result cannot be answered as a Struct: {why}; call with arguments_json to "
    return _unusable(answer, text + "get results as JSON text, which is exact", "RESULT_NOT_IN_FORM")


def _unusable(answer: Answer, message: str, reason: str) -> Failure:
    return Failure(
        kind=ErrorKind.BAD_OUTPUT,
        message=message,
        reason=reason,
        outcome=Outcome.DONE,
        attempts=answer.attempts,
        call_id=answer.call_id,
        source=answer.source,
        first_started_s=answer.first_started_s,
    )
