"""A SettleCall request as evidence, or the refusal that names the field and its bound."""

from __future__ import annotations

import uuid
from typing import Any

from lineside.v1.calls_pb2 import SettleCallRequest
from lineside_service.core.errors import Failure, Violation
from lineside_service.core.jsontext import (
    MAX_DEPTH,
    JsonRefused,
    ResultRefused,
    decode_arguments,
    depth_of,
    encode_result,
)
from lineside_service.core.ledger import Evidence, SettledBy
from lineside_service.edge.answers import RESULT_LIMIT
from lineside_service.edge.refusals import bad_field, malformed
from lineside_service.edge.values import read_value

MAX_REASON = 1024
"""Longest reason, characters."""


def bad_call_id(call_id: str) -> Failure | None:
    """Whether the text is no UUID as this service writes them (lower case, with hyphens)."""
    try:
        if str(uuid.UUID(call_id)) == call_id:
            return None
    except ValueError:
        pass
    return bad_field(
        "call_id", "not a UUID in text form, such as 01890a5d-ac96-774b-bcce-b302099a8057", "UUID"
    )


def read_evidence(request: SettleCallRequest) -> Evidence | Failure:
    """What the person says became of the call; all faults are told at once."""
    bad: list[Violation] = []
    wrong_id = bad_call_id(request.call_id)
    if wrong_id is not None:
        bad.extend(wrong_id.violations)
    if not request.etag:
        bad.append(_wrong("etag", "required: the etag of the call as it was read", "REQUIRED"))
    if not 1 <= len(request.reason) <= MAX_REASON:
        bad.append(_wrong("reason", f"{len(request.reason)} characters: 1-{MAX_REASON}", "LENGTH"))
    settlement = request.WhichOneof("settlement")
    if settlement is None:
        bad.append(_wrong("done", "set one of done and not_run", "REQUIRED"))
    result = _result(request.done, bad) if settlement == "done" else b"null"
    if bad:
        return malformed(*bad)
    return Evidence(
        by=SettledBy.PERSON,
        done=settlement == "done",
        result=result,
        tool_error=request.done.tool_error,
        reason=request.reason,
    )


def _result(done: SettleCallRequest.Done, bad: list[Violation]) -> bytes:
    """The result as the JSON text that the ledger keeps."""
    match done.WhichOneof("form"):
        case "result":
            value, violations = read_value(done.result)
            bad.extend(_wrong(f"done.result{v.field}", v.message, v.rule) for v in violations)
        case "result_json":
            value = _json(done.result_json, bad)
        case _:
            bad.append(_wrong("done.result", "set one of result and result_json", "REQUIRED"))
            return b"null"
    if bad:
        return b"null"
    try:
        return encode_result(value, RESULT_LIMIT)
    except ResultRefused as refused:
        bad.append(_wrong("done", refused.message, refused.reason))
        return b"null"


def _json(raw: bytes, bad: list[Violation]) -> Any:
    """One strict JSON value: read as the only member of an object, whose reader is the strict one."""
    field = "done.result_json"
    if len(raw) > RESULT_LIMIT:
        text = f"has {len(raw)} bytes; the limit is {RESULT_LIMIT} (4 MiB - 64 KiB)"
        bad.append(_wrong(field, text, "RESULT_TOO_LARGE"))
        return None
    if depth_of(raw) > MAX_DEPTH:
        bad.append(_wrong(field, f"nests deeper than {MAX_DEPTH} levels, the limit", "TOO_DEEP"))
        return None
    try:
        members = decode_arguments(b'{"":' + raw + b"}", field=field, max_depth=MAX_DEPTH + 1)
    except JsonRefused as refused:
        no = refused.violation
        place = field + no.field[1:] if no.field.startswith("/") else field  # without the member's empty name
        bad.append(_wrong(place, no.message, no.rule))
        return None
    if len(members) != 1:
        bad.append(_wrong(field, "must be one JSON value", "NOT_JSON"))
        return None
    return members[""]


def _wrong(field: str, message: str, rule: str) -> Violation:
    return Violation(field=field, message=message, rule=rule)
