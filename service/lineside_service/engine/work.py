"""One piece of work: the attempt loop of the road, for a keyless call or for all callers of a key.

budget -> breaker open? -> slot -> permit, intent durable, look once more -> attempt -> slot and permit back
-> retry? -> back off, holding nothing -> again
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from lineside_service.core.attempt import AttemptEnd, Verdict, breaker_verdict
from lineside_service.core.breaker import Permit
from lineside_service.core.call import Call, Reply
from lineside_service.core.deadline import MIN_ATTEMPT_S
from lineside_service.core.errors import Failure, Outcome, Source
from lineside_service.core.retry import RetryDecision, decide_retry
from lineside_service.engine import refusals
from lineside_service.engine.attempt import NO_PHASES, Attempt, EffectLatch
from lineside_service.engine.eager import EagerTasks
from lineside_service.engine.gate import Entry, Word
from lineside_service.engine.history import History
from lineside_service.engine.pause import Pause
from lineside_service.engine.registry import RegisteredTool
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Telemetry
from lineside_service.engine.waiters import Waiter, Waiters
from lineside_service.ports import AttemptRequest


class Keyed(Protocol):
    """What the ledger adds to the work of a key; absent for a keyless call."""

    @property
    def key(self) -> str:
        """The caller's."""
        ...

    @property
    def outcome_before(self) -> Outcome:
        """What other executions of the same call left."""
        ...

    @property
    def resend_until(self) -> float | None:
        """Loop time at which a `by_key` upstream forgets our key."""
        ...

    async def intent(self) -> Failure | None:
        """Make the row durable, once, before the first attempt of a tool that is not `safe`; a Failure
        refuses the attempt.
        """
        ...

    def late(self) -> None:
        """An attempt that outlived the work has really ended, and its word is in the records."""
        ...


@dataclass(slots=True)
class Shared:
    """What all pieces of work share. draining_until: loop time at which the grace of a drain ends, if any."""

    sources: Sources
    telemetry: Telemetry
    tasks: EagerTasks = field(default_factory=EagerTasks)
    draining_until: float | None = None


class Work:
    """The attempts behind one call id. `run` makes them; everything else may be asked while it does."""

    def __init__(
        self,
        registered: RegisteredTool,
        call: Call,
        *,
        call_id: str,
        downstream_key: Callable[[], str],
        shared: Shared,
        keyed: Keyed | None = None,
    ) -> None:
        self.registered = registered
        self.call_id = call_id
        self.tenant = call.tenant
        self.arguments = call.arguments
        self.claimed_s = shared.sources.wall()
        self.waiters = Waiters(call.arrival)
        before = keyed.outcome_before if keyed is not None else Outcome.NOT_RUN
        self.history = History(call_id, call.arrival, before)
        self.keyed = keyed
        self.in_flight: Attempt | None = None
        self.abandoned = 0
        self.reply: Reply | None = None
        self._first = call
        self._downstream_key = downstream_key
        self._shared = shared
        self._sources = shared.sources
        self._telemetry = shared.telemetry
        self._pause: Pause[Word] | None = None
        self._is_backing_off = False
        self._stop: Failure | None = None
        self._backoff_s = 0.0
        self._resend_end = keyed.resend_until if keyed is not None else None

    @property
    def now(self) -> float:
        """Loop time, seconds."""
        return self._sources.now()

    @property
    def attempt_running(self) -> bool:
        """Whether the tool is still at it, be it for this call or given up."""
        return self.in_flight is not None or self.abandoned > 0

    def has_siblings(self) -> None:
        """The call is executed once more: what these attempts say is not all there is to know."""
        self.history.outcome_before = Outcome.UNKNOWN

    def forget(self) -> None:
        """Everything is written and every attempt has ended: let the ledger's entry go, and it lets us go."""
        self.keyed = None

    def enter(self, call: Call, source: Source) -> Waiter:
        """Another caller waits for this work."""
        waiter = Waiter(call, source, is_late=self.reply is not None)
        self.waiters.add(waiter)
        return waiter

    def answer_all(self) -> None:
        """Everybody who waited gets the reply; who came after it must look the key up again."""
        for waiter in list(self.waiters.present):
            waiter.answer(None if waiter.is_late else self.reply)

    def leave(self, waiter: Waiter) -> None:
        """A caller goes. After the last one nothing new starts; an attempt in flight runs to its limit."""
        self.waiters.remove(waiter)
        if self._is_backing_off or not self.waiters.present:
            self._stop_waiting()
        elif self._pause is not None:
            self._pause.look()
        if self.in_flight is not None:
            self.in_flight.look()

    def drain_begun(self) -> None:
        """New calls are refused from now on; a back-off looks whether it still fits."""
        if self._is_backing_off:
            self._stop_waiting()

    def end_now(self, failure: Failure) -> None:
        """The grace of a drain is over: end with `failure`, the attempt in flight given up by its phase."""
        self._stop = failure
        self._stop_waiting()
        if self.in_flight is not None:
            self.in_flight.give_up(failure.kind, failure.message, reason=failure.reason)

    async def run(self) -> Reply:
        """Make the attempts; the reply for everybody who waits. Cancelling gives the attempt up."""
        self.registered.state.retry_budget.record_call(self._sources.now())
        while self.reply is None:
            self.reply = await self._one_round()
        return self.reply

    # -- one round: everything before, during and after one attempt ------------------------------------

    async def _one_round(self) -> Reply | None:
        refusal, has_waited = self._before_waiting(), False
        if refusal is None and not self.registered.state.gate.slots.try_take(self.tenant):
            refusal, has_waited = await self._slot(), True
        if refusal is not None:
            return self.history.refused(refusal)
        end = await self._in_slot(has_waited=has_waited)
        if isinstance(end, Failure):
            return self.history.refused(end)
        answered = self.history.answer()
        if answered is not None:
            return answered
        retry = self._after(end)
        if not isinstance(retry, RetryDecision) or not retry.retry:
            return self._ended(end, retry)
        cut = await self._back_off(retry.wait_s)
        return self.history.answer() or (None if cut is None else self.history.refused(cut))

    def _before_waiting(self) -> Failure | None:
        refusal = self._stopping()
        if refusal is None and self.waiters.has_budgets:
            refusal = self._next_owner()
        if refusal is not None or self.registered.state.breaker.is_closed:
            return refusal
        return self._circuit_open()

    def _circuit_open(self) -> Failure | None:
        why = self.registered.state.breaker.check(self._sources.now())
        if why is None:
            return None
        self.history.decisions.append(why)
        return refusals.circuit_open(self.registered, why)

    def _stopping(self) -> Failure | None:
        """Why nothing new may start: the drain is over, or nobody waits (a later joiner lifts that)."""
        if self._stop is None and not self.waiters.present:
            return refusals.nobody_waits()
        return self._stop

    def _stop_waiting(self) -> None:
        if self._pause is not None:
            self._pause.wake(Entry.STOPPED)

    async def _slot(self) -> Failure | None:
        pause: Pause[Word] = Pause()
        self._pause = pause
        entry = await self.registered.state.gate.enter(
            pause,
            tenant=self.tenant,
            stream=self._first.stream,
            patient=self._first.patient,
            until=self._last_moment,
        )
        if entry is Entry.GRANTED:
            return None
        if entry is Entry.STOPPED:
            return self._stopping() or await self._slot()
        if entry is None:
            return self._too_late() or refusals.deadline_in_queue(self.registered)
        self.history.decisions.append(entry)
        return refusals.overloaded(self.registered, stuck=entry.reason == "STUCK")

    async def _in_slot(self, *, has_waited: bool) -> AttemptEnd | Failure:
        """With a slot in hand: permit, intent, one more look, the attempt. All given back on every path.

        has_waited: for the slot. Where nothing was awaited, the clock alone can have changed.
        """
        state, now = self.registered.state, self._sources.now()
        # The tool's own limit: a caller's shorter one may still move, and a probe's place must outlast it.
        permit = state.breaker.acquire(now, self.registered.spec.timeout_s)
        if permit is None:
            state.gate.release()
            return self._circuit_open() or refusals.broken()
        attempt: Attempt | None = None
        end: AttemptEnd | None = None
        try:
            refusal = None
            if self.keyed is not None and self.registered.spec.needs_intent:
                refusal, has_waited = await self.keyed.intent(), True
            if refusal is None:
                refusal = self._look_once_more() if has_waited else self._too_late()
            if refusal is not None:
                return refusal
            attempt = self._start()
            end = attempt.known or await attempt.end()
            return end
        finally:
            self._give_back(permit, attempt, end)

    def _look_once_more(self) -> Failure | None:
        if self.history.answer() is not None:
            return refusals.known_by_now()
        return self._stopping() or self._too_late() or self._next_owner()

    def _last_moment(self) -> float:
        """Loop time after which it is no use to start an attempt."""
        forgotten = self._resend_until(self._sources.now())
        return self.waiters.deadline if forgotten is None else min(self.waiters.deadline, forgotten)

    def _too_late(self) -> Failure | None:
        now = self._sources.now()
        if self._resend_end is not None or self.registered.spec.key_ttl_s is not None:
            forgotten = self._resend_until(now)
            if forgotten is not None and now >= forgotten:
                return refusals.key_forgotten(self.registered)
        if self.waiters.deadline - now < MIN_ATTEMPT_S:
            return refusals.deadline_in_queue(self.registered)
        return None

    def _start(self) -> Attempt:
        now, wall = self._sources.now(), self._sources.wall()
        owner = self.waiters.owner
        if owner is not None and owner.budget_left is not None:
            owner.budget_left -= 1
        record = self.history.started(now, wall, self._backoff_s)
        longest_s = self.waiters.attempt_timeout_s(self.registered.spec.timeout_s)
        limit = min(now + longest_s, self.waiters.deadline)
        latch = EffectLatch() if self.registered.spec.phases else NO_PHASES
        request = AttemptRequest(
            call_id=self.call_id,
            tool=self.registered.spec.name,
            tenant=self.tenant,
            number=record.number,
            arguments=self.arguments,
            key=self.keyed.key if self.keyed is not None else None,
            tell_downstream_key=self._downstream_key,
            deadline=limit,
            deadline_wall_s=wall + limit - now,
            effects=latch,
        )
        call = self._first if owner is None else owner.call
        span = self._telemetry.attempt_started(self, call.parent, record) if call.is_traced else None
        attempt = self.in_flight = Attempt(
            self.registered.tool,
            request,
            latch,
            owner=self,
            tasks=self._shared.tasks,
            record=record,
            context=self._telemetry.context_of(span, call.parent),
            span=span,
        )
        attempt.longest_s = longest_s
        return attempt

    def limit_of(self, attempt: Attempt) -> float:
        """A joiner may bring a later limit; who leaves takes only a deadline away (see AttemptOwner)."""
        accepted_s = self.waiters.attempt_timeout_s(self.registered.spec.timeout_s)
        attempt.longest_s = max(attempt.longest_s, accepted_s)
        return min(attempt.record.started + attempt.longest_s, self.waiters.deadline)

    def is_shortened(self, attempt: Attempt) -> bool:
        """See AttemptOwner."""
        return self.limit_of(attempt) < attempt.record.started + self.registered.spec.timeout_s

    def _give_back(self, permit: Permit, attempt: Attempt | None, end: AttemptEnd | None) -> None:
        state, now = self.registered.state, self._sources.now()
        known = end or (attempt.known if attempt is not None else None)
        verdict = Verdict.IGNORED if known is None else breaker_verdict(known)
        moved = state.breaker.settle(permit, verdict, now)
        if moved is not None:
            self.history.decisions.append(moved)
        self.in_flight = None
        if attempt is None or not attempt.given_up:
            state.gate.release()
        if attempt is not None:
            record = self.history.records[-1]
            record.duration_s = now - record.started
            record.end = record.end or known
            self._telemetry.attempt_ended(self, attempt.span, record)

    # -- an attempt that outlives its limit -------------------------------------------------------------

    def given_up(self, attempt: Attempt, end: AttemptEnd) -> None:
        """Its slot moves to the abandoned account (see AttemptOwner)."""
        attempt.record.end = end
        self.abandoned += 1
        self.registered.state.abandoned.add(attempt)
        self.registered.state.gate.give_up()

    def ended_late(self, attempt: Attempt, end: AttemptEnd | None) -> None:
        """Its word counts where nothing was known (see AttemptOwner)."""
        record = attempt.record
        self.abandoned -= 1
        self.registered.state.abandoned.discard(attempt)
        self.registered.state.counters.late += 1
        self.registered.state.gate.reclaim()
        was_unknown = record.end is None or record.end.outcome is Outcome.UNKNOWN
        if end is not None and was_unknown and end.outcome is not Outcome.UNKNOWN:
            record.end = end
        if self.reply is not None and self.keyed is not None:
            self.keyed.late()
        elif self._is_backing_off:
            self._stop_waiting()

    # -- what follows an attempt ------------------------------------------------------------------------

    def _ended(self, end: AttemptEnd, why: RetryDecision | Failure) -> Reply:
        return self.history.refused(why) if isinstance(why, Failure) else self.history.failed(end, why)

    def _after(self, end: AttemptEnd) -> RetryDecision | Failure:
        """The retry decision; a spent owner is answered and the next waiter asked."""
        while True:
            owner = self.waiters.owner
            decision = self._decide(end, owner.budget_left if owner is not None else None)
            self.history.decisions.append(decision.decision)
            others = len(self.waiters.present) > 1
            if decision.stopped_by != "BUDGET_EXCEEDED" or owner is None or not others:
                return (self._stopping() if decision.retry else None) or decision
            self._dismiss(owner, self.history.failed(end, decision))

    def _decide(self, end: AttemptEnd, budget_left: int | None) -> RetryDecision:
        state, spec, now = self.registered.state, self.registered.spec, self._sources.now()
        decision = decide_retry(
            rules=spec.retry,
            may_resend=spec.may_resend,
            end=end,
            attempts=self.history.attempts,
            budget_left=budget_left,
            now=now,
            deadline=self.waiters.deadline,
            retry_budget_allows=state.retry_budget.allows(now),
            u=self._sources.chance.random(),
            resend_until=self._resend_until(now),
            draining_until=self._shared.draining_until,
        )
        if decision.retry:
            state.retry_budget.record_retry(now)
            self._telemetry.retry_decided(self, decision.decision)
        return decision

    def _resend_until(self, now: float) -> float | None:
        """For a `by_key` tool, once an attempt may have reached the upstream: when it forgets our key."""
        if self._resend_end is not None:
            return self._resend_end
        ttl = self.registered.spec.key_ttl_s
        if ttl is None or self.history.first_send_s is None or self.history.outcome is not Outcome.UNKNOWN:
            return None
        return now + self.history.first_send_s + ttl - self._sources.wall()

    async def _back_off(self, wait_s: float) -> Failure | None:
        """Wait, holding nothing; the refusal when the next attempt will not come."""
        self._backoff_s = wait_s
        resume = self._sources.now() + wait_s
        self._is_backing_off = True
        try:
            while self._sources.now() < resume and self.history.done_end is None:
                stop = self._stopping() or self._no_longer_fits(resume)
                if stop is not None:
                    return stop
                pause: Pause[Word] = Pause()
                self._pause = pause
                await pause.wait(lambda: resume)
            return None
        finally:
            self._is_backing_off = False

    def _no_longer_fits(self, resume: float) -> Failure | None:
        left_s = resume - self._sources.now()
        if resume + MIN_ATTEMPT_S > self.waiters.deadline:
            return refusals.back_off_cut("DEADLINE", left_s)
        drained = self._shared.draining_until
        if drained is not None and resume + MIN_ATTEMPT_S > drained:
            return refusals.back_off_cut("DRAINING", left_s)
        return None

    def _next_owner(self) -> Failure | None:
        """Answer owners whose budget is spent while others wait; the refusal when nobody can pay."""
        while (owner := self.waiters.owner) is not None and owner.is_spent:
            refusal = refusals.budget_spent(self.registered)
            if len(self.waiters.present) == 1:
                return refusal
            self._dismiss(owner, self.history.refused(refusal))
        return None

    def _dismiss(self, owner: Waiter, reply: Reply) -> None:
        """Answer an owner who can pay for no more, while the work goes on for the others."""
        owner.answer(replace(reply, outcome=Outcome.IN_PROGRESS) if isinstance(reply, Failure) else reply)
        self.waiters.remove(owner)
