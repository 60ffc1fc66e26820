"""The road of a call: one for unary calls, batch items and, later, calls made by runs.

tool -> arguments -> look-up of the key -> budget -> claim -> attempts -> record -> answer
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lineside_service.core.call import Answer, Call, Reply
from lineside_service.core.errors import Failure, Source
from lineside_service.core.ledger import RowState
from lineside_service.engine import refusals
from lineside_service.engine.entry import Entry
from lineside_service.engine.ledger import Ledger
from lineside_service.engine.registry import RegisteredTool, Registry
from lineside_service.engine.rows import KeyedCall
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Telemetry
from lineside_service.engine.work import Keyed, Shared, Work
from lineside_service.ports import StoreUnavailable

_LAST_WRITES_S = 5.0
"""How long a drain waits, after its grace, for rows to be written."""


class Dispatcher:
    """Takes calls and gives replies. Expected refusals are values; only a cancelled caller raises."""

    def __init__(self, registry: Registry, ledger: Ledger, sources: Sources, telemetry: Telemetry) -> None:
        self.registry = registry
        self.ledger = ledger
        self.sources = sources
        self._telemetry = telemetry
        self._shared = Shared(sources, telemetry)
        self._alone: dict[str, Work] = {}
        self._idle = asyncio.Event()

    @property
    def draining(self) -> bool:
        """Whether new calls are refused."""
        return self._shared.draining_until is not None

    @property
    def in_flight(self) -> int:
        """Pieces of work going on."""
        return len(self._alone) + len(self.ledger.entries())

    def running_alone(self, call_id: str) -> Work | None:
        """A keyless call, while it runs."""
        return self._alone.get(call_id)

    async def dispatch(self, call: Call) -> Reply:
        """Run one call. Cancelled when its caller leaves; nothing else is ever raised."""
        registered = self.registry.find(call.tool, call.tenant)
        try:
            reply = self._answer_at_once(call, registered)
            if reply is None and registered is not None and call.key is None:
                reply = await self._keyless(call, registered)
            elif reply is None:
                reply = await self._keyed(call, registered)
        except asyncio.CancelledError:
            if registered is not None:
                registered.state.counters.ended("cancelled", "none")
            raise
        if registered is not None:
            # `_value_` is a plain attribute, `value` a property in Python that takes five times as long.
            source = reply.source._value_ if reply.source is not None else "none"
            kind = "ok" if isinstance(reply, Answer) else reply.kind._value_
            registered.state.counters.ended(kind, source)
        return reply

    def _answer_at_once(self, call: Call, registered: RegisteredTool | None) -> Reply | None:
        """What ends the road before anything is looked up, started or stored."""
        if self.draining:
            return refusals.draining(pushback_safe=_may_repeat(call, registered))
        if call.validate_only:
            return self._refuse_request(call, registered) or _validated()
        if call.key is None:
            return self._refuse_request(call, registered)
        if self.registry.is_hidden(call.tool, call.tenant):
            return refusals.unknown_tool(call.tool, None)
        return None

    def _refuse_request(self, call: Call, registered: RegisteredTool | None) -> Failure | None:
        if registered is None:
            return refusals.unknown_tool(call.tool, self.registry.name_near(call.tool, call.tenant))
        violations = registered.schema.check(call.arguments)
        if violations:
            return refusals.bad_arguments(violations)
        if call.key is None and registered.spec.key_required:
            return refusals.key_required(registered.spec.name)
        return None

    async def _keyless(self, call: Call, registered: RegisteredTool) -> Reply:
        """Run a call in its caller's own task: the caller leaving cancels it at once."""
        if call.previous_rpc_attempts and not registered.spec.may_resend:
            return refusals.resent_by_channel(registered.spec.name, call.previous_rpc_attempts)
        if call.budget is not None and call.budget <= 0:
            return refusals.budget_spent(registered)
        call_id = self.sources.new_call_id()
        work = self._alone[call_id] = self._work(registered, call, call_id, lambda: call_id, None)
        waiter = work.enter(call, Source.EXECUTED)
        try:
            return await work.run()
        except asyncio.CancelledError:
            work.reply = work.reply or refusals.cancelled(call_id)
            raise
        finally:
            work.waiters.remove(waiter)
            del self._alone[call_id]
            if self.draining and not self._alone:
                self._idle.set()

    async def _keyed(self, call: Call, registered: RegisteredTool | None) -> Reply:
        """Run, join or replay; a request that would be refused may still have an answer under its key."""
        refusal = self._refuse_request(call, registered)
        keyed = KeyedCall.of(call, call.key or "")
        while True:  # again only when the key has changed between its look-up and its claim
            reply = await self._keyed_once(keyed, registered, refusal)
            if reply is not None:
                return reply

    async def _keyed_once(
        self, keyed: KeyedCall, registered: RegisteredTool | None, refusal: Failure | None
    ) -> Reply | None:
        call, ttl = keyed.call, registered.spec.key_ttl_s if registered is not None else None
        try:
            found = await self.ledger.look_up(keyed, ttl)
        except StoreUnavailable as error:
            self._telemetry.log.error("ledger.look_up_failed", error=str(error))
            return refusals.store_failed(pushback_safe=True)
        if isinstance(found, Entry):
            return await self.ledger.join(found, call, Source.JOINED)
        if isinstance(found, (Answer, Failure)):
            return found
        if refusal is None and registered is not None and call.budget is not None and call.budget <= 0:
            refusal = refusals.budget_spent(registered)
        if refusal is not None or registered is None:
            if found is not None and found.state is RowState.UNKNOWN:  # whatever we refuse, it may have run
                return refusals.outcome_unknown(found)
            return refusal or refusals.unknown_tool(call.tool, None)
        return await self.ledger.execute(
            keyed,
            registered,
            found,
            lambda call_id, downstream, extra: self._work(registered, call, call_id, downstream, extra),
        )

    def _work(
        self,
        registered: RegisteredTool,
        call: Call,
        call_id: str,
        downstream: Callable[[], str],
        keyed: Keyed | None,
    ) -> Work:
        return Work(
            registered,
            call,
            call_id=call_id,
            downstream_key=downstream,
            shared=self._shared,
            keyed=keyed,
        )

    # -- going down -------------------------------------------------------------------------------------

    def begin_drain(self, grace_s: float) -> None:
        """Refuse new calls; calls in flight go on, with back-offs that fit into `grace_s` seconds."""
        if self._shared.draining_until is None:
            self._shared.draining_until = self.sources.now() + grace_s
            for work in self._works():
                work.drain_begun()

    async def drain(self, grace_s: float) -> bool:
        """Wait for the calls in flight, end the rest when the grace is over, and see their rows written.

        Returns whether everything ended by itself.
        """
        self.begin_drain(grace_s)
        try:
            async with asyncio.timeout_at(self._shared.draining_until):
                await self._all_ended()
            return True
        except TimeoutError:
            failure = refusals.drained()
            for work in self._works():
                work.end_now(failure)
        try:
            async with asyncio.timeout(_LAST_WRITES_S):
                await self._all_ended()
        except TimeoutError:
            self._telemetry.log.error("drain.unwritten", calls=self.in_flight)
        return False

    def _works(self) -> list[Work]:
        return [*self._alone.values(), *(entry.work for entry in self.ledger.entries())]

    async def _all_ended(self) -> None:
        while self._alone or self.ledger.busy:
            self._idle.clear()
            if self._alone:
                await self._idle.wait()
            await self.ledger.wait_idle()


def _may_repeat(call: Call, registered: RegisteredTool | None) -> bool:
    return call.key is not None or (registered is not None and registered.spec.may_resend)


def _validated() -> Answer:
    return Answer(result=b"null", call_id="", attempts=0, source=Source.VALIDATED)
