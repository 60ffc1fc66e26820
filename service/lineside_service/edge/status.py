"""A Failure as google.rpc.Status: one ErrorInfo, the DispatchError, the kind's own detail; under 4 KiB.

C-core clients read trailers of less than 8 KiB safely, and the status travels there in base64 beside its
percent-encoded message; hence the bounds below. What does not fit goes in a fixed order: violations from the
end, then facts, then the kind's detail, then the retry hint's own detail. ErrorInfo and DispatchError stay.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from google.rpc.status_pb2 import Status

from lineside.v1 import errors_pb2
from lineside_service.core.errors import (
    KIND_RULES,
    Detail,
    ErrorKind,
    Failure,
    KindRule,
    Outcome,
    Source,
    Violation,
)
from lineside_service.edge.enums import KINDS, NEXTS, OUTCOMES, SOURCES
from lineside_service.edge.moments import duration, timestamp
from lineside_service.edge.text import cut

DOMAIN: Final = "lineside"
STATUS_LIMIT: Final = 4095
"""Largest serialized Status, bytes."""
MESSAGE_LIMIT: Final = 512
"""Largest message, bytes of UTF-8: it travels three times, once percent-encoded (up to three-fold)."""

_FIELD_LIMIT: Final = 256
_DESCRIPTION_LIMIT: Final = 512
_FACT_LIMIT: Final = 256
_KEY_LIMIT: Final = 64
_ID_LIMIT: Final = 64
_PLAIN: Final = (Detail.NONE, Detail.RETRY_INFO)
"""Kinds that may go without a detail of their own."""
_ENVELOPE_URL: Final = f"type.googleapis.com/{errors_pb2.DispatchError.DESCRIPTOR.full_name}"


def status_of(failure: Failure, *, trace_id: str = "", about_call: bool = True) -> Status:
    """The status that tells a caller of this failure.

    trace_id: 32 hex digits of the trace that holds the attempts, empty for none. about_call: there is work
    behind it, so its outcome is stated; False for refused reads.
    """
    rule = KIND_RULES[failure.kind]
    message = cut(failure.message, MESSAGE_LIMIT) or failure.kind.value
    if about_call and rule.detail in _PLAIN and _is_plain(failure):
        return _plain_status(failure, message, trace_id)
    envelope = _pack(_envelope(failure, rule, message, trace_id, about_call=about_call))
    status = Status(code=rule.code, message=message)
    for details in _ever_smaller(failure, rule):
        del status.details[:]
        status.details.append(details[0])
        status.details.append(envelope)
        status.details.extend(details[1:])
        if status.ByteSize() <= STATUS_LIMIT:
            break
    return status


def _is_plain(failure: Failure) -> bool:
    """Whether it says nothing that few others do: then it is small, and a part of it is made already."""
    return not (
        failure.facts or failure.violations or failure.violations_cut or failure.retry_after_s is not None
    )


def _plain_status(failure: Failure, message: str, trace_id: str) -> Status:
    """The status of a plain failure, of which thousands may be due at one moment, as timeouts are.

    Messages written one after the other are one message with the fields of both, so that what such failures
    share is written once, which leaves a third of the cost.
    """
    status_bytes, envelope_bytes = _shared(
        failure.kind,
        message,
        failure.reason,
        outcome=failure.outcome,
        attempts=failure.attempts,
        source=failure.source,
        stopped_by=failure.stopped_by,
    )
    own = errors_pb2.DispatchError(
        call_id=cut(failure.call_id, _ID_LIMIT),
        first_started_time=None if failure.first_started_s is None else timestamp(failure.first_started_s),
        trace_id=trace_id,
    )
    status = Status.FromString(status_bytes)
    status.details.add(type_url=_ENVELOPE_URL, value=envelope_bytes + own.SerializeToString())
    return status


@functools.lru_cache(maxsize=64)
def _shared(
    kind: ErrorKind,
    message: str,
    reason: str,
    *,
    outcome: Outcome,
    attempts: int,
    source: Source | None,
    stopped_by: str,
) -> tuple[bytes, bytes]:
    """What plain failures that differ in their call alone have in common: status and envelope, serialized."""
    rule = KIND_RULES[kind]
    failure = Failure(
        kind=kind,
        message=message,
        reason=reason,
        outcome=outcome,
        attempts=attempts,
        source=source,
        stopped_by=stopped_by,
    )
    status = Status(code=rule.code, message=message, details=[_pack(_error_info(failure, rule, 0))])
    envelope = _envelope(failure, rule, message, "", about_call=True)
    return status.SerializeToString(), envelope.SerializeToString()


def _ever_smaller(failure: Failure, rule: KindRule) -> Iterator[list[Any]]:
    """The details beside the envelope, ErrorInfo first, each time with less in them."""
    hint = [] if failure.retry_after_s is None else [_pack(_retry_info(failure.retry_after_s))]
    kept = failure.violations
    while True:
        cut_count = failure.violations_cut + len(failure.violations) - len(kept)
        detail = _kind_detail(failure, rule, kept)
        yield [_pack(_error_info(failure, rule, cut_count)), *detail, *hint]
        if not kept:
            break
        kept = kept[: len(kept) * 3 // 4]
    bare = _pack(_error_info(failure, rule, cut_count, with_facts=False))
    yield [bare, *detail, *hint]
    yield [bare, *hint]
    yield [bare]


def _envelope(
    failure: Failure, rule: KindRule, message: str, trace_id: str, *, about_call: bool
) -> errors_pb2.DispatchError:
    return errors_pb2.DispatchError(
        kind=KINDS[failure.kind],
        message=message,
        attempts=failure.attempts,
        jsonrpc_code=rule.jsonrpc,
        outcome=OUTCOMES[failure.outcome] if about_call else errors_pb2.OUTCOME_UNSPECIFIED,
        retry_after=None if failure.retry_after_s is None else duration(failure.retry_after_s),
        call_id=cut(failure.call_id, _ID_LIMIT),
        source=errors_pb2.SOURCE_UNSPECIFIED if failure.source is None else SOURCES[failure.source],
        first_started_time=None if failure.first_started_s is None else timestamp(failure.first_started_s),
        trace_id=trace_id,
        next=[NEXTS[advice] for advice in rule.next],
    )


def _error_info(
    failure: Failure, rule: KindRule, dropped: int, *, with_facts: bool = True
) -> error_details_pb2.ErrorInfo:
    facts = failure.facts if with_facts else {}
    metadata = {cut(key, _KEY_LIMIT): cut(value, _FACT_LIMIT) for key, value in facts.items()}
    metadata["kind"] = failure.kind.value
    metadata["attempts"] = str(failure.attempts)
    metadata["stopped_by"] = cut(failure.stopped_by, _KEY_LIMIT)
    metadata["next"] = ",".join(advice.value for advice in rule.next)
    if dropped:
        metadata["violations_cut"] = str(dropped)
    return error_details_pb2.ErrorInfo(reason=cut(failure.reason_token, 63), domain=DOMAIN, metadata=metadata)


def _kind_detail(failure: Failure, rule: KindRule, violations: tuple[Violation, ...]) -> list[Any]:
    """The kind's own google.rpc detail, if any; RetryInfo is added apart, for every kind with a hint."""
    match rule.detail:
        case Detail.BAD_REQUEST:
            return [_pack(_bad_request(violations))]
        case Detail.RESOURCE_INFO:
            return [_pack(_resource_info(failure))]
        case Detail.QUOTA_FAILURE:
            return [_pack(_quota_failure(failure))]
        case Detail.PRECONDITION_FAILURE:
            return [_pack(_precondition_failure(failure, violations))]
        case Detail.RETRY_INFO | Detail.NONE:
            return []


def _bad_request(violations: tuple[Violation, ...]) -> error_details_pb2.BadRequest:
    return error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(
                field=cut(violation.field, _FIELD_LIMIT),
                description=cut(violation.message, _DESCRIPTION_LIMIT),
                reason=cut(violation.rule, 63),
            )
            for violation in violations
        ]
    )


def _resource_info(failure: Failure) -> error_details_pb2.ResourceInfo:
    resource = "call" if "call" in failure.facts else "tool"
    return error_details_pb2.ResourceInfo(
        resource_type=resource,
        resource_name=cut(failure.facts.get(resource, ""), _FACT_LIMIT),
        description=cut(failure.message, _FACT_LIMIT),
    )


def _quota_failure(failure: Failure) -> error_details_pb2.QuotaFailure:
    violation = error_details_pb2.QuotaFailure.Violation(
        subject=cut(failure.facts.get("subject", "budget_tool_calls_remaining"), _FACT_LIMIT),
        description=cut(failure.message, _FACT_LIMIT),
    )
    return error_details_pb2.QuotaFailure(violations=[violation])


def _precondition_failure(
    failure: Failure, violations: tuple[Violation, ...]
) -> error_details_pb2.PreconditionFailure:
    named = [
        error_details_pb2.PreconditionFailure.Violation(
            type=cut(violation.rule, 63),
            subject=cut(violation.field, _FIELD_LIMIT),
            description=cut(violation.message, _DESCRIPTION_LIMIT),
        )
        for violation in violations
    ]
    whole = error_details_pb2.PreconditionFailure.Violation(
        type=cut(failure.reason_token, 63),
        subject=cut(failure.call_id, _ID_LIMIT),
        description=cut(failure.message, _FACT_LIMIT),
    )
    return error_details_pb2.PreconditionFailure(violations=named or [whole])


def _retry_info(retry_after_s: float) -> error_details_pb2.RetryInfo:
    return error_details_pb2.RetryInfo(retry_delay=duration(retry_after_s))


def _pack(message: Message) -> Any:
    return Any(
        type_url=f"type.googleapis.com/{message.DESCRIPTOR.full_name}",
        value=message.SerializeToString(deterministic=True),
    )
