"""An Answer of core as a ToolAnswer, its result in the form that the arguments had."""

from __future__ import annotations

from typing import Final

from lineside.v1.dispatch_pb2 import ToolAnswer
from lineside_service.core.call import Answer
from lineside_service.core.errors import ErrorKind, Failure, Outcome, Source
from lineside_service.edge.enums import SOURCES
from lineside_service.edge.moments import duration, timestamp
from lineside_service.edge.values import NotInForm, write_value

RESULT_LIMIT: Final = 4 * 1024 * 1024 - 64 * 1024
"""Largest serialized result in one answer, bytes: gRPC's usual 4 MiB, less room for what surrounds it."""


def fill_answer(wire: ToolAnswer, answer: Answer, *, as_struct: bool, trace_id: str) -> Failure | None:
    """Write the answer in the caller's form; bad_output when that form cannot hold the result.

    trace_id: of the trace that the call belongs to; told only if its attempts are in it.
    """
    if answer.source is not Source.VALIDATED:
        refused = _fill_result(wire, answer) if as_struct else None
        if refused is not None:
            return refused
        if not as_struct:
            wire.result_json = answer.result
    wire.tool_error = answer.tool_error
    wire.call_id = answer.call_id
    wire.attempts = answer.attempts
    wire.source = SOURCES[answer.source]
    if answer.source is Source.EXECUTED:
        wire.trace_id = trace_id
    if answer.attempts:
        wire.queue_time.CopyFrom(duration(answer.queue_s))
        wire.run_time.CopyFrom(duration(answer.run_s))
    if answer.first_started_s is not None:
        wire.first_started_time.CopyFrom(timestamp(answer.first_started_s))
    return None


def _fill_result(wire: ToolAnswer, answer: Answer) -> Failure | None:
    try:
        write_value(wire.result, answer.result)
    except NotInForm as refused:
        return _not_in_form(answer, str(refused))
    size = wire.result.ByteSize()
    if size > RESULT_LIMIT:
        return _not_in_form(answer, f"it takes {size} bytes there, over the limit of {RESULT_LIMIT}")
    return None


def _not_in_form(answer: Answer, why: str) -> Failure:
    return Failure(
        kind=ErrorKind.BAD_OUTPUT,
        message=f"the call ran, but its result cannot be answered as a Struct: {why}; call with "
        "arguments_json to get results as JSON text, which is exact",
        reason="RESULT_NOT_IN_FORM",
        outcome=Outcome.DONE,
        attempts=answer.attempts,
        call_id=answer.call_id,
        source=answer.source,
        first_started_s=answer.first_started_s,
    )
