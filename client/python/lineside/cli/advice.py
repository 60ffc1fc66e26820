"""What a person does next, for each kind of error, and the exit code that a script reads."""

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

EXIT_CODES: Final = """\
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
        ErrorKind.TIMEOUT: "give it more time with --timeout, up to 600 s",
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
        ErrorKind.PERMISSION_DENIED: "the token lacks the scope: call, read or settle",
    }
)

OUTCOMES: Mapping[Outcome, str] = MappingProxyType(
    {
        Outcome.NOT_RUN: "nothing took effect",
        Outcome.DONE: "the work ran to its end",
        Outcome.UNKNOWN: "it may or may not have taken effect",
        Outcome.IN_PROGRESS: "it still runs: call again with the same --key to wait for it",
    }
)


def exit_code(error: DispatchError) -> int:
    """The exit code for a call that got no answer."""
    if error.kind is ErrorKind.OUTCOME_UNKNOWN or error.outcome in (Outcome.UNKNOWN, Outcome.IN_PROGRESS):
        return UNKNOWN
    return UNREACHED if isinstance(error, ConnectionLost) else FAILED


def explain(error: DispatchError) -> list[str]:
    """The error in lines: what happened, what is wrong where, how far it got, what to do."""
    lines = [str(error)]
    lines += [f"  {fault.field or '(all of it)'}: {fault.message}" for fault in error.violations]
    if error.outcome is not None:
        lines.append(f"  outcome: {OUTCOMES[error.outcome]}")
    unreached = "is the service up, and the target right? (--target, or LINESIDE_TARGET)"
    lines.append(f"  next: {unreached if isinstance(error, ConnectionLost) else ADVICE[error.kind]}")
    return lines
