"""The upstream behind the tools: conversations under locks, injected faults, a record of every effect."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from conversations.catalogue import Api
from conversations.corpus import Conversation
from conversations.execution import Answer, Instances
from conversations.faults import Fault, fault_at
from conversations.state import digest

__all__ = ["Arrival", "FailedBefore", "Host", "Inquiry"]

HANG_S = 30.0
"""How long a hanging call sleeps, in seconds: far past any attempt's limit, and it may be cancelled."""


class FailedBefore(Exception):
    """The call failed and had no effect; trying again is safe."""


class Arrival(Protocol):
    """One attempt as it reaches the upstream."""

    @property
    def key(self) -> str | None:
        """The caller's idempotency key, `conversation:turn:index`; without one a call meets no fault."""
        ...

    @property
    def downstream_key(self) -> str:
        """The same on every attempt of a call."""
        ...

    def begin_effect(self) -> None:
        """Mark the point of no return; raises if this attempt was given up already."""
        ...


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """What the upstream knows about a call: `state` is done (with its answer), not_run or unknown."""

    state: str
    answer: Answer | None = None


class Host:
    """All conversations, each with its instances and a lock; one process, one loop.

    `fault_seed` chooses the faults that calls meet; None means none.
    """

    def __init__(self, corpus: Mapping[str, Conversation], *, fault_seed: int | None = None) -> None:
        self.fault_seed = fault_seed
        self._corpus = corpus
        self._instances: dict[str, Instances] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._arrivals: Counter[str] = Counter()
        self._in_flight: Counter[str] = Counter()
        self._downstream_keys: dict[str, str] = {}
        self._effects: dict[str, Answer] = {}
        self._effect_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    async def call(
        self, api: Api, method: str, conversation: str, arguments: Mapping[str, Any], arrival: Arrival
    ) -> Answer:
        """Run a method in a conversation, with whatever fault its arrival meets.

        The effect and its record are one step that nothing can come between.

        Raises:
            FailedBefore: the fault that has no effect.
        """
        if conversation not in self._corpus:
            return Answer(result={"error": f"no conversation is called {conversation}"}, tool_error=True)
        fault = self._arrived(arrival)
        try:
            async with self._locks[conversation]:
                if fault is Fault.FAIL_BEFORE:
                    raise FailedBefore("the upstream was not reached")
                if fault is Fault.HANG_BEFORE:
                    await asyncio.sleep(HANG_S)
                if api.phases:
                    arrival.begin_effect()
                answer = self._of(conversation).run(api, method, arguments)
                self._record(api, method, conversation, arrival, answer)
                if fault is Fault.HANG_AFTER:
                    await asyncio.sleep(HANG_S)
                return answer
        finally:
            self._in_flight[arrival.downstream_key] -= 1

    async def state(self, conversation: str) -> Any:
        """Return a conversation's canonical state; KeyError if there is no such conversation."""
        instances = self._of(conversation)
        async with self._locks[conversation]:
            return instances.state()

    async def state_digest(self, conversation: str) -> dict[str, Any]:
        """Return the digest of that state, and how often each call that may run once took effect.

        `effects` is by idempotency key, or by downstream key for a call without one.
        """
        state = await self.state(conversation)
        return {"digest": digest(state), "effects": dict(self._effect_counts[conversation])}

    def inquire(self, downstream_key: str) -> Inquiry:
        """Tell what became of a call that reached this process.

        A call that is still in flight, or that this process never saw, is unknown.
        """
        answer = self._effects.get(downstream_key)
        if answer is not None:
            return Inquiry(state="done", answer=answer)
        in_flight = self._in_flight.get(downstream_key)
        return Inquiry(state="not_run" if in_flight == 0 else "unknown")

    def inquire_by_key(self, key: str) -> Inquiry:
        """Tell the same by the caller's idempotency key, as a person would look it up."""
        downstream_key = self._downstream_keys.get(key)
        return Inquiry(state="unknown") if downstream_key is None else self.inquire(downstream_key)

    def _of(self, conversation: str) -> Instances:
        if conversation not in self._instances:
            self._instances[conversation] = Instances(self._corpus[conversation])
        return self._instances[conversation]

    def _arrived(self, arrival: Arrival) -> Fault:
        self._in_flight[arrival.downstream_key] += 1
        if arrival.key is None:
            return Fault.NONE
        self._downstream_keys[arrival.key] = arrival.downstream_key
        count = self._arrivals[arrival.key]
        self._arrivals[arrival.key] += 1
        return Fault.NONE if self.fault_seed is None else fault_at(self.fault_seed, arrival.key, count)

    def _record(self, api: Api, method: str, conversation: str, arrival: Arrival, answer: Answer) -> None:
        if method in api.read_only:
            return
        self._effect_counts[conversation][arrival.key or arrival.downstream_key] += 1
        self._effects[arrival.downstream_key] = answer
