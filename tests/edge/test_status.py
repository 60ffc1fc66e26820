"""A Failure as google.rpc.Status: complete, small, valid UTF-8."""

from __future__ import annotations

import base64
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside.v1 import errors_pb2
from lineside_service.core.errors import (
    KIND_RULES,
    Detail,
    ErrorKind,
    Failure,
    Outcome,
    Source,
    Violation,
)
from lineside_service.edge.enums import KINDS, NEXTS, OUTCOMES, SOURCES
from lineside_service.edge.status import MESSAGE_LIMIT, STATUS_LIMIT, status_of
from lineside_service.edge.text import CUT_MARK, cut
from lineside_service.edge.trailers import pushback_ms, trailers_of
from tests.support.serving import Refused

DETAIL_OF = {
    Detail.BAD_REQUEST: "BadRequest",
    Detail.RESOURCE_INFO: "ResourceInfo",
    Detail.QUOTA_FAILURE: "QuotaFailure",
    Detail.PRECONDITION_FAILURE: "PreconditionFailure",
}


def everything(kind: ErrorKind) -> Failure:
    """A failure with every field set."""
    return Failure(
        kind=kind,
        message="what happened",
        reason="FINER_REASON",
        outcome=Outcome.UNKNOWN,
        attempts=2,
        retry_after_s=1.5,
        call_id="01890a5d-ac96-774b-bcce-b302099a8057",
        source=Source.JOINED,
        first_started_s=1_700_000_000.25,
        stopped_by="DEADLINE",
        facts={"tool": "pay"},
    )


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_kind_carries_what_its_rule_says(kind: ErrorKind) -> None:
    """One ErrorInfo, the envelope, the kind's own detail and the hint, for each kind there is."""
    rule = KIND_RULES[kind]
    told = Refused(status_of(everything(kind), trace_id="ab" * 16))
    assert told.status.code == rule.code
    assert (told.info.domain, told.info.reason) == ("lineside", "FINER_REASON")
    assert dict(told.info.metadata) == {
        "kind": kind.value,
        "attempts": "2",
        "stopped_by": "DEADLINE",
        "next": ",".join(advice.value for advice in rule.next),
        "tool": "pay",
    }
    error = told.error
    assert error.kind == KINDS[kind]
    assert errors_pb2.ErrorKind.Name(error.kind) == f"ERROR_KIND_{kind.name}"
    assert (error.message, error.attempts, error.jsonrpc_code) == ("what happened", 2, rule.jsonrpc)
    assert error.outcome == OUTCOMES[Outcome.UNKNOWN]
    assert error.retry_after.ToMilliseconds() == 1500
    assert error.source == SOURCES[Source.JOINED]
    assert error.first_started_time.ToMilliseconds() == 1_700_000_000_250
    assert error.trace_id == "ab" * 16
    assert list(error.next) == [NEXTS[advice] for advice in rule.next]
    assert error.next
    assert told.details["RetryInfo"].retry_delay.ToMilliseconds() == 1500
    own = {"DispatchError", "ErrorInfo", "RetryInfo"}
    assert set(told.details) - own == {DETAIL_OF[rule.detail]} if rule.detail in DETAIL_OF else True


@pytest.mark.parametrize("kind", ErrorKind)
def test_a_bare_failure_is_complete_too(kind: ErrorKind) -> None:
    """Nothing optional set: the reason is the kind's name, the message is never empty."""
    told = Refused(status_of(Failure(kind=kind, message="")))
    assert told.info.reason == kind.name
    assert told.status.message == told.error.message == kind.value
    assert not told.error.HasField("retry_after")
    assert "RetryInfo" not in told.details


def test_a_refused_read_states_no_outcome() -> None:
    """There is no work behind it."""
    told = Refused(status_of(Failure(kind=ErrorKind.NOT_FOUND, message="no"), about_call=False))
    assert told.error.outcome == errors_pb2.OUTCOME_UNSPECIFIED


def test_violations_are_cut_from_the_end_and_counted() -> None:
    """Five thousand faults: as many as fit from the first on, the others as a number (R005)."""
    violations = tuple(
        Violation(field=f"/items/{n}/name", message="must be a string, not a number", rule="TYPE")
        for n in range(5000)
    )
    failure = Failure(kind=ErrorKind.SCHEMA, message="bad", violations=violations, violations_cut=7)
    told = Refused(status_of(failure))
    shown = told.violations
    assert len(shown) > 10
    assert [violation.field for violation in shown] == [f"/items/{n}/name" for n in range(len(shown))]
    assert int(told.info.metadata["violations_cut"]) == 5007 - len(shown)
    assert told.status.ByteSize() <= STATUS_LIMIT


def test_facts_go_before_the_details_that_stay() -> None:
    """Metadata of our own making gives way; the four words of every error and the envelope stay."""
    facts = {f"fact-{n}": "x" * 300 for n in range(40)}
    told = Refused(status_of(replace(everything(ErrorKind.KEY_REUSED), facts=facts)))
    assert set(told.info.metadata) == {"kind", "attempts", "stopped_by", "next"}
    assert {"DispatchError", "ErrorInfo", "PreconditionFailure", "RetryInfo"} == set(told.details)


@given(
    kind=st.sampled_from(ErrorKind),
    message=st.one_of(st.text(max_size=50), st.text(max_size=5).map(lambda text: text * 50_000)),
    pointers=st.lists(st.text(max_size=40).map(lambda text: text * 100), max_size=60),
    facts=st.dictionaries(st.text(max_size=80), st.text(max_size=30).map(lambda text: text * 99), max_size=9),
)
def test_every_status_fits_and_is_valid(
    kind: ErrorKind, message: str, pointers: list[str], facts: dict[str, str]
) -> None:
    """Under 4 KiB serialized; as trailers under the 8 KiB that C-core clients take (R005, R006)."""
    violations = tuple(Violation(field=each, message=each, rule=each) for each in pointers)
    failure = replace(everything(kind), message=message, violations=violations, facts=facts)
    status = status_of(failure, trace_id="ab" * 16)
    raw = status.SerializeToString()
    assert len(raw) < 4096
    Refused(type(status).FromString(raw))
    assert len(status.message.encode()) <= MESSAGE_LIMIT
    on_the_wire = len(quote(status.message, safe=" ")) + len(base64.b64encode(raw)) + 3 * 32 + 100
    assert on_the_wire < 8192


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("é" * 300, "é" * 253 + CUT_MARK),
        ("a" + "é" * 300, "a" + "é" * 252 + CUT_MARK),
        ("x\ud800y", "x\ufffdy"),
        ("\ud83d\ude00", "😀"),
        ("\x00\n", "\x00\n"),
    ],
)
def test_text_is_cut_on_a_character_boundary_and_marked(text: str, expected: str) -> None:
    """No half character, no lone surrogate; what was cut says so (R006)."""
    assert cut(text, 512) == expected
    assert len(cut(text, 512).encode()) <= 512


def test_only_unavailable_speaks_of_sending_again() -> None:
    """-1 after an attempt or for what may not be repeated, else a moment's wait; other codes say nothing."""
    for kind in ErrorKind:
        failure = Failure(kind=kind, message="x", pushback_safe=True)
        pushback = pushback_ms(failure, 0.5)
        if KIND_RULES[kind].code.name != "UNAVAILABLE":
            assert pushback is None
            continue
        assert pushback == 100
        assert 0 <= (pushback_ms(failure, 0.0) or 0) <= (pushback_ms(failure, 0.999999) or 0) <= 200
        assert pushback_ms(replace(failure, attempts=1), 0.5) == -1
        assert pushback_ms(replace(failure, pushback_safe=False), 0.5) == -1
        trailers = dict(trailers_of(replace(failure, attempts=1), status_of(failure), 0.5))
        assert trailers["grpc-retry-pushback-ms"] == "-1"
