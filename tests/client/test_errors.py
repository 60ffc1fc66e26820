"""Errors: one class for each kind, decoded from rich statuses and from bare codes."""

from __future__ import annotations

import copy
import pickle

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

import lineside
from lineside.errors import ERROR_CLASSES
from lineside.status import KIND_OF_CODE, frames_accepted, from_rpc, from_status, pushback_s
from lineside.v1 import errors_pb2
from tests.client.rich_status import CODES, status

KINDS = [name.removeprefix("ERROR_KIND_").lower() for name in errors_pb2.ErrorKind.keys()[1:]]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_the_contract_has_a_class_of_its_own(kind: str) -> None:
    """A status of any kind decodes to exactly that kind's class, with its gRPC code."""
    error = from_status(status(kind, outcome="done", attempts=2))
    assert error.kind == kind
    assert type(error) is ERROR_CLASSES[lineside.ErrorKind(kind)]
    assert error.code.value[0] == CODES[kind]
    assert [cls for cls in ERROR_CLASSES.values() if cls.kind == kind] == [type(error)]


def test_every_word_of_the_contract_has_its_word_here() -> None:
    """The string enums are the proto enums, member for member."""
    for enum, generated in (
        (lineside.ErrorKind, errors_pb2.ErrorKind),
        (lineside.Outcome, errors_pb2.Outcome),
        (lineside.Next, errors_pb2.Next),
        (lineside.Source, errors_pb2.Source),
    ):
        names = [name.lower() for name in generated.keys()[1:]]
        assert [name for name in names if not any(name.endswith(f"_{word}") for word in enum)] == []
        assert len(names) == len(enum)


@pytest.mark.parametrize("code", grpc.StatusCode)
def test_every_code_without_details_is_an_error(code: grpc.StatusCode) -> None:
    """What gRPC or a proxy says on its own account has a kind, and for work an outcome."""
    error = from_rpc(code, "bare", (), is_work=True)
    assert error.code is code
    assert error.outcome is not None
    assert isinstance(error, lineside.ConnectionLost) == (code is grpc.StatusCode.UNAVAILABLE)
    assert from_rpc(code, "bare", (), is_work=False).outcome is None


def test_unknown_kind_reads_as_its_code_says() -> None:
    """A kind of a later release is the code's kind, and UNAVAILABLE is then never one that is sent again."""
    later = errors_pb2.DispatchError(kind=99, message="from the future")  # type: ignore[arg-type]
    box = Any()
    box.Pack(later)
    error = from_status(status_pb2.Status(code=14, details=[box]))
    assert type(error) is lineside.TransientFailure
    assert error.message == "from the future"
    assert set(KIND_OF_CODE) == set(grpc.StatusCode)


def test_violations_arrive_in_full() -> None:
    """Each fault of a BadRequest is a violation with its field, message and rule."""
    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(field="/city", description="is required", reason="REQUIRED")
    error = from_status(status("schema", details=[bad]))
    assert error.violations == (lineside.Violation("/city", "is required", "REQUIRED"),)


def test_broken_details_leave_the_code() -> None:
    """Bytes that are no Status, and a Status without our envelope, are read as a bare code."""
    strange = status_pb2.Status(code=14, message="proxy").SerializeToString()
    for details in (b"\xff\xff", strange):
        error = from_rpc(
            grpc.StatusCode.UNAVAILABLE, "text", (("grpc-status-details-bin", details),), is_work=True
        )
        assert type(error) is lineside.ConnectionLost
        assert error.outcome == "unknown"


def test_trailers_are_read_strictly() -> None:
    """A pushback that is no number means "do not"; a count that is no number was not said."""
    assert pushback_s((("grpc-retry-pushback-ms", "250"),)) == 0.25
    assert pushback_s((("grpc-retry-pushback-ms", "soon"),)) == -1
    assert pushback_s(None) is None
    assert frames_accepted((("lineside-frames-accepted", "7"),)) == 7
    assert frames_accepted((("lineside-frames-accepted", "-1"),)) is None


def test_error_survives_pickle_and_copy() -> None:
    """An error keeps everything on its way between processes, and a copy with another outcome is its own."""
    error = from_status(status("timeout", outcome="unknown", attempts=3, retry_after_s=2, call_id="c-1"))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is lineside.CallTimeout
    assert (again.outcome, again.attempts, again.retry_after_s, again.call_id) == ("unknown", 3, 2, "c-1")
    assert str(again) == str(error) == str(copy.copy(error))
    changed = error.with_outcome(lineside.Outcome.NOT_RUN)
    assert (changed.outcome, error.outcome) == ("not_run", "unknown")


def test_text_tells_what_a_person_needs() -> None:
    """Kind, message, outcome, attempts, hint and the ids to ask about stand in the text."""
    error = from_status(status("transient", outcome="unknown", attempts=3, retry_after_s=1.5, call_id="c-1"))
    assert str(error) == (
        "transient: scripted transient (outcome unknown, 3 attempts, retry after 1.5 s, call c-1, "
        "trace 0af7651916cd43dd8448eb211c80319c)"
    )
