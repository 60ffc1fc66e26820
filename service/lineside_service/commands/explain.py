"""What each tool's rules will do, in plain words, for `lineside-service check`."""

from __future__ import annotations

from collections.abc import Iterator

from lineside_service.config import in_words
from lineside_service.core.retry import (
    LOCAL_CAP_S,
    LOCAL_FACTOR,
    LOCAL_INITIAL_S,
    REMOTE_CAP_S,
    REMOTE_FACTOR,
    REMOTE_INITIAL_S,
)
from lineside_service.core.tool import Effect, Idempotency, ToolSpec


def headline(spec: ToolSpec) -> str:
    """One line: what it is, and what happens when nobody knows whether it ran."""
    what = spec.effect.value
    if spec.effect is not Effect.SAFE:
        what += (
            ", "
            + {
                Idempotency.NO: "not idempotent",
                Idempotency.YES: "idempotent",
                Idempotency.BY_KEY: f"idempotent by key for {in_words(spec.key_ttl_s or 0)}",
            }[spec.idempotency]
        )
    return f"{spec.name}: {what}: {_unknown(spec)}{'' if spec.enabled else ' (disabled: nobody can call it)'}"


def rules(spec: ToolSpec) -> Iterator[str]:
    """The rest, one rule a line."""
    yield f"one attempt gets {in_words(spec.timeout_s)}; {_times(spec.concurrency)} at once; {_waiting(spec)}"
    yield _retries(spec)
    yield _breaker(spec)
    if spec.key_required:
        yield "a call without an idempotency key is refused"
    else:
        yield "without an idempotency key nothing is stored, and the caller leaving cancels the work"
    yield f"the answer to a key is repeated for {in_words(spec.keep_done_s)} after its end"
    if spec.phases:
        yield "declares phases: until ctx.begin_effect() a timeout counts as not run and may be retried"
    if spec.tenants is not None:
        yield f"only for {', '.join(sorted(spec.tenants)) or 'nobody'}; for others it does not exist"


def _unknown(spec: ToolSpec) -> str:
    match spec.idempotency:
        case Idempotency.YES:
            return "a timeout is retried, and its key is free again when the attempts are used up"
        case Idempotency.BY_KEY:
            return (
                f"a timeout is retried under the same downstream key until {in_words(spec.key_ttl_s or 0)} "
                f"after the first send; then its key answers outcome_unknown until settled {_settled(spec)}"
            )
    when = "a timeout after begin_effect()" if spec.phases else "a timeout"
    return f"{when} is never retried, its key then answers outcome_unknown until settled {_settled(spec)}"


def _settled(spec: ToolSpec) -> str:
    by_person = "by a person (SettleCall)"
    return f"by {spec.reconcile}, or {by_person}" if spec.reconcile else by_person


def _retries(spec: ToolSpec) -> str:
    rules = spec.retry
    if rules.max_attempts == 1:
        return "never retried (max_attempts = 1)"
    local = rules.preset == "local"
    first = rules.initial_s if rules.initial_s is not None else LOCAL_INITIAL_S if local else REMOTE_INITIAL_S
    cap = rules.cap_s if rules.cap_s is not None else LOCAL_CAP_S if local else REMOTE_CAP_S
    factor = LOCAL_FACTOR if local else REMOTE_FACTOR
    what = "what failed" if spec.may_resend else "what provably did not run"
    return (
        f"{what} is tried up to {rules.max_attempts} times, {in_words(first)} apart at first, x{factor:g} "
        f"each time, at most {in_words(cap)}; retries stay within {rules.budget_ratio:.0%} of the calls in "
        f"{in_words(rules.budget_window_s)} (or {rules.budget_floor})"
    )


def _breaker(spec: ToolSpec) -> str:
    rules = spec.breaker
    if not rules.enabled:
        return "no breaker"
    return (
        f"when {rules.failure_ratio:.0%} of {rules.min_attempts} or more attempts fail within "
        f"{in_words(rules.window_s)}, calls are refused for {in_words(rules.open_s)}, then "
        f"{_times(rules.probes)} at a time may probe"
    )


def _times(count: int) -> str:
    return "1 attempt" if count == 1 else f"{count} attempts"


def _waiting(spec: ToolSpec) -> str:
    stuck = 2 * spec.concurrency
    return f"more wait their turn; {stuck} that never come back block the tool"
