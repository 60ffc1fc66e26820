"""How one attempt ended, and what that ending says about the tool's health."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from lineside_service.core.errors import ErrorKind, Outcome, Violation


class Verdict(enum.Enum):
    """What the breaker learns from an attempt: only SUCCESS and FAILURE are evidence."""

    SUCCESS = "success"
    FAILURE = "failure"
    IGNORED = "ignored"


@dataclass(slots=True, kw_only=True)
class AttemptEnd:
    """One attempt, ended. Never changed once made; not frozen, since that would cost 2 us per call.

    kind: None when the tool answered (tool_error included). outcome: what is known of the effect. message,
    reason: for the caller, as in Failure. result: JSON text of the answer. retry_after_s: what the tool or
    its server said, in seconds, not yet checked. caller_shortened: a timeout at a limit that the caller had
    made shorter than the tool's own. violations: arguments that the function cannot take. local: raised
    inside this process, so it says nothing about a remote.
    """

    kind: ErrorKind | None
    outcome: Outcome
    message: str = ""
    reason: str = ""
    result: bytes | None = None
    tool_error: bool = False
    retry_after_s: float | None = None
    caller_shortened: bool = False
    violations: tuple[Violation, ...] = ()
    local: bool = False


def breaker_verdict(end: AttemptEnd) -> Verdict:
    """Judge an attempt for the breaker.

    FAILURE: transient, or a timeout at the tool's configured limit. SUCCESS: any answer, be it tool_error,
    bad_output or a remote's `internal`. IGNORED: everything that our side or the caller brought about.
    """
    match end.kind:
        case None | ErrorKind.BAD_OUTPUT:
            return Verdict.SUCCESS
        case ErrorKind.TRANSIENT:
            return Verdict.FAILURE
        case ErrorKind.TIMEOUT:
            return Verdict.IGNORED if end.caller_shortened else Verdict.FAILURE
        case ErrorKind.INTERNAL:
            return Verdict.IGNORED if end.local else Verdict.SUCCESS
        case _:
            return Verdict.IGNORED
