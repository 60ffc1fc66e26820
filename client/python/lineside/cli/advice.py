"""What a person does next after an error, by outcome and kind, and the exit code that a script reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lineside.errors import ConnectionLost, DispatchError
from lineside.vocabulary import ErrorKind, Outcome

OK: Final = 0
TOOL_ERROR: Final = 1
USAGE: Final = 2
FAILED: Final = 3
UNKNOWN: Final = 4
UNREACHED: Final = 5
INTERRUPTED: Final = 130

EXIT_CODES: Final = """\b
Exit codes:
  0  all is well
  1  the tool ran and said no
  2  the command line is wrong
  3  refused or failed; what ran is known
  4  outcome unknown: it may have taken effect (lineside calls --unknown)
  5  the service was not reached, nothing ran
130  interrupted
"""

ADVICE: Mapping[ErrorKind, str] = MappingProxyType(
    {
        ErrorKind.SCHEMA: "correct what is named above; `lineside tools NAME` shows the tool's schema",
        ErrorKind.NOT_FOUND: "`lineside tools` lists the tools, `lineside calls` the recorded calls",
        ErrorKind.TIMEOUT: "try again, with more time if it is a call: --timeout, up to 600 s",
        ErrorKind.TRANSIENT: "try again later; the service's own retries did not help",
        ErrorKind.CIRCUIT_OPEN: "wait: the tool failed too often and is left alone for a while",
        ErrorKind.UNAVAILABLE: "try again in a moment: the service drains, or its store is in trouble",
        ErrorKind.OVERLOADED: "try again later, or call less at once",
        ErrorKind.QUOTA_EXCEEDED: "wait until the quota's window resets, or ask its operator",
        ErrorKind.BUDGET_EXCEEDED: "raise --budget if the call may spend more",
        ErrorKind.BAD_OUTPUT: "it ran: do not repeat it blindly; its operator must mend the tool's output",
        ErrorKind.INTERNAL: "the service's log has the cause, under the trace named above",
        ErrorKind.KEY_REUSED: "use another --key, or the arguments of the call named above",
        ErrorKind.OUTCOME_UNKNOWN: "find out what happened, then `lineside settle` the call named above",
        ErrorKind.STEP_DIVERGED: "the run took another turn than recorded: start a new run",
        ErrorKind.CONFLICT: "read it again with `lineside get`: it changed, or an attempt still runs",
        ErrorKind.UNIMPLEMENTED: "the service's version does not have this; is the target Lineside at all?",
        ErrorKind.LEASE_LOST: "stop working on the run: another worker has it",
        ErrorKind.CANCELLED: "call again if it is still wanted",
        ErrorKind.UNAUTHENTICATED: "give a token: --token or LINESIDE_TOKEN (`lineside-service token new`)",
        ErrorKind.PERMISSION_DENIED: "use a token with the scope (call, read, settle), all of one tenant",
    }
)
"""For work that did not run, and for questions."""

WITH_KEY: Mapping[Outcome, str] = MappingProxyType(
    {
        Outcome.DONE: "repeat it with the same --key to get its answer",
        Outcome.UNKNOWN: "repeat it with the same --key: that is safe, and tells once it is known",
        Outcome.IN_PROGRESS: "repeat it with the same --key: it waits for the work, or gets its answer",
    }
)
"""For work that ran or may have: there the kind says why the answer is missing, not what to do."""
_LOOK: Final = ", else look with `lineside get {0}`, and `lineside settle {0}` when you have found out"
_WITHOUT_KEY: Final = "find out what happened before you repeat it; with a --key it would be safe"
_TLS_WORDS: Final = ("handshake", "ssl", "tls", "certificate", "peer name")
_CLOSED_WORDS: Final = ("socket closed", "end of tcp stream", "connection reset", "endpoint closing")
_WHATEVER_THE_OUTCOME: Final = (ErrorKind.BAD_OUTPUT, ErrorKind.OUTCOME_UNKNOWN)

OUTCOMES: Mapping[Outcome, str] = MappingProxyType(
    {
        Outcome.NOT_RUN: "nothing took effect",
        Outcome.DONE: "the work ran to its end",
        Outcome.UNKNOWN: "it may or may not have taken effect",
        Outcome.IN_PROGRESS: "it still runs",
    }
)


def exit_code(error: DispatchError) -> int:
    """The exit code for a call that got no answer."""
    if error.kind is ErrorKind.OUTCOME_UNKNOWN or error.outcome in (Outcome.UNKNOWN, Outcome.IN_PROGRESS):
        return UNKNOWN
    return UNREACHED if isinstance(error, ConnectionLost) else FAILED


def explain(error: DispatchError, *, keyed: bool = False) -> list[str]:
    """The error in lines: what happened, what is wrong where, how far it got, what to do.

    keyed: the call had an idempotency key.
    """
    lines = [str(error)]
    lines += [
        f"  {fault.field or '(all of it)'}: {fault.message}"
        for fault in error.violations
        if fault.message not in error.message
    ]
    if error.kind is ErrorKind.KEY_REUSED and error.call_id:
        lines.append(f"  outcome: this call did nothing; the key belongs to {error.call_id}")
    elif error.outcome is not None:
        lines.append(f"  outcome: {OUTCOMES[error.outcome]}")
    lines.append(f"  next: {_next(error, keyed=keyed)}")
    return lines


def _unreached(message: str) -> str:
    """What may be wrong with the connection, by gRPC's own words."""
    words = message.lower()
    if any(word in words for word in _TLS_WORDS):
        return "does the service speak TLS there (else leave out --tls and --ca), with a certificate of --ca?"
    if any(word in words for word in _CLOSED_WORDS):
        return "something closed the connection: if the service speaks TLS there, give --tls, or --ca FILE"
    return "is the service up, and the target right? (--target, or LINESIDE_TARGET)"


def _next(error: DispatchError, *, keyed: bool) -> str:
    outcome = error.outcome
    if outcome is not None and outcome in WITH_KEY and error.kind not in _WHATEVER_THE_OUTCOME:
        cause = f"{ADVICE[error.kind]}; " if error.kind is ErrorKind.INTERNAL and error.trace_id else ""
        if not keyed and outcome is not Outcome.IN_PROGRESS:
            return cause + _WITHOUT_KEY
        look = _LOOK.format(error.call_id) if outcome is Outcome.UNKNOWN and error.call_id else ""
        return cause + WITH_KEY[outcome] + look
    if isinstance(error, ConnectionLost):
        return _unreached(error.message)
    if error.reason == "KEY_REQUIRED":
        return "give a key of your own with --key; the same one when you repeat this call"
    return ADVICE[error.kind]
