"""The engine's own refusals, each with why and when to come back."""

from __future__ import annotations

from lineside_service.core.decision import Decision
from lineside_service.core.errors import ErrorKind, Failure, Outcome, Source, Violation
from lineside_service.core.ledger import Row
from lineside_service.core.schema import Violations
from lineside_service.engine.registry import RegisteredTool

_FIRST_GUESS_RUN_S = 0.05
"""Mean run time assumed for a tool before it has run, to guess when a full list has drained."""
_HINT_MIN_S, _HINT_MAX_S = 0.1, 30.0
STORE_RETRY_S = 1.0
"""When a repeat can help after the store failed: its writer tries again about once a second."""


def unknown_tool(name: str, near: str | None) -> Failure:
    """The tool is not there, switched off, or hidden from this tenant; one text for all three."""
    hint = f"; did you mean `{near}`?" if near else "; ListTools shows what there is"
    return Failure(
        kind=ErrorKind.NOT_FOUND,
        message=f"no tool `{name}`{hint}",
        reason="TOOL_NOT_FOUND",
        facts={"tool": name},
    )


def bad_arguments(violations: Violations) -> Failure:
    """Arguments that break the tool's input schema."""
    first = violations[0]
    more = len(violations) - 1 + violations.cut
    tail = f" (and {more} more)" if more else ""
    where = f"`{first.field}`: " if first.field else ""
    return Failure(
        kind=ErrorKind.SCHEMA,
        message=f"the arguments do not fit the tool: {where}{first.message}{tail}",
        reason="ARGUMENTS_INVALID",
        violations=violations,
        violations_cut=violations.cut,
    )


def key_required(name: str) -> Failure:
    """The operator wants a key on every call of this tool."""
    text = f"`{name}` takes calls with an idempotency key only"
    violation = Violation(field="call.idempotency_key", message=text, rule="REQUIRED")
    return Failure(kind=ErrorKind.SCHEMA, message=text, reason="KEY_REQUIRED", violations=(violation,))


def resent_by_channel(name: str, previous: int) -> Failure:
    """A channel's own retry of a keyless call whose first sending may have had its effect."""
    return Failure(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"an earlier sending of this call of `{name}` may have run; "
        "send calls with an idempotency key to repeat them safely",
        reason="RESENT_WITHOUT_KEY",
        outcome=Outcome.UNKNOWN,
        facts={"tool": name, "previous-attempts": str(previous)},
    )


def budget_spent(registered: RegisteredTool) -> Failure:
    """The caller's own budget of tool calls is used up."""
    return Failure(
        kind=ErrorKind.BUDGET_EXCEEDED,
        message="budget_tool_calls_remaining is used up; no attempt was started for it",
        facts={"tool": registered.spec.name},
    )


def circuit_open(registered: RegisteredTool, why: Decision) -> Failure:
    """The tool's breaker refuses attempts: open, or half-open with its probes out."""
    return Failure(
        kind=ErrorKind.CIRCUIT_OPEN,
        message=f"`{registered.spec.name}` has been failing; its circuit breaker is open",
        reason=why.reason,
        retry_after_s=why.numbers.get("retry_after_s"),
        facts={"tool": registered.spec.name},
    )


def overloaded(registered: RegisteredTool, *, stuck: bool) -> Failure:
    """The waiting list is full, or abandoned attempts hold every slot."""
    state, name = registered.state, registered.spec.name
    slots = state.gate.slots
    if stuck:
        return Failure(
            kind=ErrorKind.OVERLOADED,
            message=f"every slot of `{name}` is held by an attempt that outlived its time limit",
            reason="STUCK",
            retry_after_s=registered.spec.timeout_s,
            facts={"tool": name, "abandoned": str(slots.abandoned)},
        )
    mean = state.counters.mean_run_s or _FIRST_GUESS_RUN_S
    drained = mean * (slots.waiting + slots.overflow + 1) / max(1, slots.usable)
    return Failure(
        kind=ErrorKind.OVERLOADED,
        message=f"too many calls wait for `{name}` already",
        retry_after_s=min(max(drained, _HINT_MIN_S), _HINT_MAX_S),
        facts={"tool": name, "waiting": str(slots.waiting)},
    )


def deadline_in_look_up() -> Failure:
    """The deadline came before the ledger said what the key finds."""
    return Failure(
        kind=ErrorKind.TIMEOUT,
        message="the deadline came while the idempotency key was looked up; nothing was started",
        reason="DEADLINE_IN_LOOK_UP",
    )


def deadline_in_queue(registered: RegisteredTool) -> Failure:
    """The deadline came before a slot did."""
    return Failure(
        kind=ErrorKind.TIMEOUT,
        message=f"the deadline came while the call waited for a slot of `{registered.spec.name}`",
        reason="DEADLINE_IN_QUEUE",
        facts={"tool": registered.spec.name},
    )


def key_forgotten(registered: RegisteredTool) -> Failure:
    """A `by_key` upstream no longer knows our key, so sending again could have a second effect."""
    return Failure(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message=f"`{registered.spec.name}` may have run and no longer recognises the key; "
        "it is not sent again",
        reason="KEY_TTL",
        facts={"tool": registered.spec.name},
    )


def back_off_cut(reason: str, left_s: float) -> Failure:
    """A back-off no longer fits: the work's deadline came nearer, or the service is going down."""
    kind = ErrorKind.UNAVAILABLE if reason == "DRAINING" else ErrorKind.TIMEOUT
    return Failure(
        kind=kind, message="the next attempt no longer fits", reason=reason, retry_after_s=max(0.0, left_s)
    )


def nobody_waits() -> Failure:
    """The last caller left; only the record ever sees this."""
    return Failure(kind=ErrorKind.CANCELLED, message="no caller waits for this call any more")


def known_by_now() -> Failure:
    """An earlier attempt's late word made another one needless; its answer ends the call."""
    return Failure(kind=ErrorKind.CANCELLED, message="an earlier attempt has ended after all", reason="KNOWN")


def cancelled(call_id: str) -> Failure:
    """The caller of a keyless call left; only the record ever sees this."""
    return Failure(kind=ErrorKind.CANCELLED, message="the caller left", call_id=call_id)


def draining(*, pushback_safe: bool) -> Failure:
    """The service is going down and takes nothing new."""
    return Failure(
        kind=ErrorKind.UNAVAILABLE,
        message="the service is shutting down; another replica can take the call",
        reason="DRAINING",
        retry_after_s=0.0,
        pushback_safe=pushback_safe,
    )


def broken() -> Failure:
    """A fault of this service stopped the work; the cause is in its log."""
    return Failure(
        kind=ErrorKind.INTERNAL, message="the service failed while it worked on the call", reason="INTERNAL"
    )


def drained() -> Failure:
    """The grace of a drain is over while the call was still going on."""
    return Failure(
        kind=ErrorKind.UNAVAILABLE, message="the service shut down before the call ended", reason="GRACE_OVER"
    )


def store_failed(*, pushback_safe: bool) -> Failure:
    """The ledger could not be read or written; no attempt was started."""
    return Failure(
        kind=ErrorKind.UNAVAILABLE,
        message="the ledger's store does not answer; nothing was started",
        reason="STORE_UNAVAILABLE",
        retry_after_s=STORE_RETRY_S,
        pushback_safe=pushback_safe,
    )


def tenant_full() -> Failure:
    """The tenant's stored answers are over their bound."""
    return Failure(
        kind=ErrorKind.OVERLOADED,
        message="the answers kept for this tenant's keys have reached their bound; they leave as they expire",
        reason="TENANT_STORE_FULL",
        retry_after_s=_HINT_MAX_S,
    )


def key_reused(call_id: str, differing: tuple[str, ...], first_started_s: float | None) -> Failure:
    """The same key with other arguments."""
    shown = ", ".join(differing[:8])
    return Failure(
        kind=ErrorKind.KEY_REUSED,
        message="this idempotency key belongs to a call with other arguments "
        f"(differing: {shown or 'unknown'})",
        outcome=Outcome.NOT_RUN,
        call_id=call_id,
        first_started_s=first_started_s,
        facts={"differing": shown},
    )


def outcome_unknown(row: Row) -> Failure:
    """The key's first call ended without anybody knowing whether it took effect."""
    return Failure(
        kind=ErrorKind.OUTCOME_UNKNOWN,
        message="whether the first call with this key took effect is not known; "
        "it is settled by late completion, reconcile or SettleCall",
        outcome=Outcome.UNKNOWN,
        attempts=row.attempts,
        call_id=row.call_id,
        source=Source.REPLAYED,
        first_started_s=row.first_started_s,
    )


def busy_elsewhere(row: Row | None, wall_s: float) -> Failure:
    """Another process works on this key."""
    left = 1.0 if row is None else max(0.1, row.claim_expires_s - wall_s)
    return Failure(
        kind=ErrorKind.UNAVAILABLE,
        message="another replica is working on this key",
        reason="RUNNING_ELSEWHERE",
        outcome=Outcome.IN_PROGRESS,
        call_id="" if row is None else row.call_id,
        retry_after_s=min(left, 5.0),
        pushback_safe=True,
    )


def still_running(call_id: str, attempts: int, first_started_s: float | None) -> Failure:
    """This waiter's deadline came before the work's end."""
    return Failure(
        kind=ErrorKind.TIMEOUT,
        message="the call is still running; repeat the key to join it",
        reason="STILL_RUNNING",
        outcome=Outcome.IN_PROGRESS,
        attempts=attempts,
        call_id=call_id,
        first_started_s=first_started_s,
    )


def not_stored_in_time(call_id: str, attempts: int, first_started_s: float | None) -> Failure:
    """The work is done, but its record is not durable, so nobody may be told the answer yet."""
    return Failure(
        kind=ErrorKind.UNAVAILABLE,
        message="the call ran, but its answer could not be stored yet; repeat the key to get it",
        reason="RESULT_NOT_STORED",
        outcome=Outcome.DONE,
        attempts=attempts,
        call_id=call_id,
        first_started_s=first_started_s,
        retry_after_s=STORE_RETRY_S,
    )


def decision_of(failure: Failure) -> Decision:
    """The record of a refusal."""
    numbers = {} if failure.retry_after_s is None else {"retry_after_s": failure.retry_after_s}
    return Decision("refuse", failure.reason_token, numbers)
