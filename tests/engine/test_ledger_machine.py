"""The ledger on the road as a state machine: calls, cancels, time, people and store trouble in any order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lineside_service.core.call import Answer, Reply
from lineside_service.core.errors import ErrorKind, Failure, Outcome, Source
from lineside_service.core.ledger import Evidence, RowState, SettledBy
from lineside_service.engine.calls import CallView
from tests.support.engine_rig import BY_KEY, IDEMPOTENT, Rig, value_of
from tests.support.scripted_tool import Step, answer, hang, raises, says_no, swallow_cancel, transient
from tests.support.virtual_loop import VirtualTimeLoop

PLANS: dict[str, Step] = {
    "answers": answer(after=0.5),
    "answers at once": answer(),
    "says no": says_no(after=0.5),
    "transient": transient(after=0.1),
    "fails before": raises(ValueError, after=0.3),
    "fails after": raises(ValueError, after=0.3, effect_at=0.1),
    "hangs": hang(),
    "hangs after": hang(effect_at=0.2),
    "late answer": swallow_cancel(answer(after=3)),
    "late transient": swallow_cancel(transient(after=3)),
}
SPECS: dict[str, dict[str, Any]] = {"final": {}, "put": IDEMPOTENT, "by_key": {**BY_KEY, "key_ttl_s": 6.0}}
names = st.sampled_from(list(SPECS))
keys = st.sampled_from(["k1", "k2"])
arguments = st.sampled_from([{}, {}, {}, {"a": 1}])


@dataclass(eq=False)
class Pending:
    """A call on its way. effects: how many its key had had when it came; ended: loop time of its end."""

    name: str
    task: asyncio.Task[Reply]
    deadline: float
    effects: int
    ended: float = 0.0


class LedgerMachine(RuleBasedStateMachine):
    """One process over the memory store. Each rule lets the loop come to rest at its instant."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop(0)
        self.rig = Rig(self.loop, keep_spans=False)
        for name, spec in SPECS.items():
            upstream_keys = None if name == "final" else 1e9 if name == "put" else 6.0
            self.rig.add(name, timeout_s=1.0, concurrency=2, upstream_keys=upstream_keys, **spec)
        self.calls: list[Pending] = []
        self.call_ids: set[str] = set()

    def _rest(self) -> None:
        self.loop.run_until_idle(until_s=self.loop.time())
        for call in [call for call in self.calls if call.task.done()]:
            self.calls.remove(call)
            if not call.task.cancelled():
                self._check(call, call.task.result())

    def _check(self, call: Pending, reply: Reply) -> None:
        assert call.ended <= call.deadline + 0.25
        if reply.call_id:
            self.call_ids.add(reply.call_id)
        effects = self.rig.effects.count(call.name)
        if isinstance(reply, Answer):
            assert effects >= 1
            assert reply.source in (Source.EXECUTED, Source.JOINED, Source.REPLAYED)
            assert reply.tool_error == (value_of(reply) == "no")
        elif reply.attempts and reply.outcome is Outcome.NOT_RUN and "put" not in call.name:
            assert effects == call.effects
        elif reply.kind is ErrorKind.CANCELLED:
            raise AssertionError("only its own caller cancels a call")

    @rule(name=names, plan=st.sampled_from(list(PLANS)))
    def mood(self, name: str, plan: str) -> None:
        """From now on the tool does this."""
        self.rig.tools[name].script = [PLANS[plan]]

    @rule(
        name=names,
        key=keys,
        given=arguments,
        timeout_s=st.sampled_from([0.05, 0.4, 2.0, 30.0]),
        budget=st.sampled_from([None, None, 0, 1]),
    )
    def call(self, name: str, key: str, given: dict[str, int], timeout_s: float, budget: int | None) -> None:
        """A call comes."""
        task = self.rig.start(name, key, arguments=given, timeout_s=timeout_s, budget=budget)
        full = f"acme/{name}/{key}"
        pending = Pending(full, task, self.loop.time() + timeout_s, self.rig.effects.count(full))
        task.add_done_callback(lambda _: setattr(pending, "ended", self.loop.time()))
        self.calls.append(pending)
        self._rest()

    @precondition(lambda self: self.calls)
    @rule(which=st.integers(0, 50))
    def leave(self, which: int) -> None:
        """A caller leaves."""
        self.calls[which % len(self.calls)].task.cancel()
        self._rest()

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 4.0, 70.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.loop.advance(seconds)
        self._rest()

    @rule(operation=st.sampled_from(["find", "claim", "save", "release"]), times=st.sampled_from([1, -1]))
    def store_fails(self, operation: Any, times: int) -> None:
        """Once, or until it is healed."""
        self.rig.store.fail[operation] = times

    @rule(operation=st.sampled_from(["find", "claim", "save", "release"]))
    def store_slows(self, operation: Any) -> None:
        """Each such operation takes a while."""
        self.rig.store.delay_s[operation] = 0.5

    @rule()
    def store_heals(self) -> None:
        """All is well again."""
        self.rig.store.fail.clear()
        self.rig.store.delay_s.clear()

    @precondition(lambda self: self.call_ids)
    @rule(which=st.integers(0, 50), claims_done=st.booleans())
    def settle(self, which: int, claims_done: bool) -> None:
        """A person who knows what happened says so, or keeps quiet."""
        call_id = sorted(self.call_ids)[which % len(self.call_ids)]
        self.loop.run(self._settle(call_id))
        self._rest()

    async def _settle(self, call_id: str) -> None:
        view = await self.rig.calls.get("acme", call_id)
        if not isinstance(view, CallView) or view.row.state is not RowState.UNKNOWN:
            return
        scope = view.row.scope
        happened = self.rig.effects.count(f"acme/{scope.tool}/{scope.key}") > 0
        if view.attempt_in_flight and not happened:
            return
        evidence = Evidence(by=SettledBy.PERSON, done=happened, result=b'"ok"')
        settled = await self.rig.calls.settle("acme", call_id, view.row.etag, evidence)
        if isinstance(settled, Failure):
            assert settled.kind in (ErrorKind.CONFLICT, ErrorKind.UNAVAILABLE)

    @invariant()
    def at_most_one_effect(self) -> None:
        """For tools that must not run twice, whatever happened."""
        self.rig.effects.assert_at_most_once(
            f"acme/{name}/{key}" for name in ("final", "by_key") for key in ("k1", "k2") if not self._expired
        )

    @property
    def _expired(self) -> bool:
        """Whether a row may have left by its age: then its key is a new one."""
        return self.loop.time() > 60.0

    @invariant()
    def slots_are_even(self) -> None:
        """Nothing is held by nobody."""
        for name, tool in self.rig.tools.items():
            slots = self.rig.slots(name)
            assert 0 <= slots.running <= slots.concurrency
            assert slots.abandoned == len(self.rig.state(name).abandoned)
            assert tool.running <= slots.running + slots.abandoned

    def teardown(self) -> None:
        """Heal the store, let everything end, and find nothing left."""
        with self.loop:
            self._end()

    def _end(self) -> None:
        self.store_heals()
        self.loop.run_until_idle()
        self._rest()
        assert self.calls == []
        self.rig.assert_clean()
        unknown = self.loop.run(self.rig.store.inner.count(RowState.UNKNOWN))
        assert self.rig.ledger.settlements.unknown_count == unknown
        assert self.rig.ledger.unwritten == 0


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=30)
TestLedgerMachine = pytest.mark.timeout(0)(TestLedgerMachine)
