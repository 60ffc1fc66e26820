"""A seeded world around the engine: tools, callers, people, a faulty store, sudden deaths, and invariants.

The world knows the truth (every effect, under the key it belongs to) and checks what the engine says against
it, at every answer and once a second. Numbers in the names of checks are those of the list of invariants:
1 effects per key, 2 no OK before its record, 3 one ending in time, 4 slots, 9 breaker, 10 tenants,
11 everything started has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.breaker import BreakerRules, BreakerState
from lineside_service.core.call import Answer, Call, Reply
from lineside_service.core.errors import ErrorKind, Failure, Outcome, Source
from lineside_service.core.fingerprint import downstream_key, scope_id
from lineside_service.core.ledger import Evidence, RowState, SettledBy
from lineside_service.core.retry import RetryRules
from lineside_service.core.tool import Idempotency
from lineside_service.engine.calls import CallView
from lineside_service.ports import AttemptRequest
from lineside_service.stores.memory import MemoryStore
from tests.support.commanded_store import CommandedStore, Operation, reopened
from tests.support.effects import EffectLog
from tests.support.engine_rig import BY_KEY, IDEMPOTENT, SAFE, SECRET, Rig
from tests.support.scripted_tool import SaidNo, Step, Transient, Turn, clean_up, effect_key
from tests.support.virtual_loop import VirtualTimeLoop

TENANTS = ("ada", "bob", "cyd")
KEY_LIFE_S = 40.0
"""A key is used for so long; DONE rows are kept for 60 s, so whatever comes under it finds its row."""
KEY_TTL_S = 8.0
IN_TIME_S = 0.25
HOUR_S = 3600.0

TOOLS: dict[str, dict[str, Any]] = {
    "final": {"timeout_s": 2.0, "concurrency": 3, "reconcile": "truth"},
    "phased": {"timeout_s": 1.0, "concurrency": 2, "phases": True, "reconcile": "truth"},
    "manual": {"timeout_s": 1.5, "concurrency": 2},
    "idempotent": {"timeout_s": 1.0, "concurrency": 2, **IDEMPOTENT},
    "by_key": {
        "timeout_s": 1.0,
        "concurrency": 4,
        "phases": True,
        "reconcile": "truth",
        **BY_KEY,
        "key_ttl_s": KEY_TTL_S,
    },
    "safe": {"timeout_s": 0.5, "concurrency": 8, **SAFE},
}
MENU: list[tuple[str, float]] = [
    ("says no", 3),
    ("bad output", 1),
    ("transient", 8),
    ("hinted", 2),
    ("fails before", 1),
    ("fails after", 1),
    ("hangs before", 2),
    ("hangs after", 2),
    ("deaf before", 2),
    ("deaf after", 2),
    ("deaf transient", 1),
    ("cancels itself", 1),
    ("cleans up", 1),
    ("reset", 2),
]
_KINDS, _WEIGHTS = ["answer", *(kind for kind, _ in MENU)], [weight for _, weight in MENU]


@dataclass(frozen=True)
class Faults:
    """How rough the world is. Rates are per virtual second, shares between 0 and 1.

    burst: most calls that come at once; healthy: weight of an answer, where all other ends together weigh 31.
    """

    calls_per_s: float = 1.0
    burst: int = 12
    cancelled: float = 0.15
    keyless: float = 0.25
    healthy: float = 70.0
    store_trouble_every_s: float = 60.0
    deaths_every_s: float = 900.0


CALM = Faults()
CROWDED = Faults(calls_per_s=4.0, burst=120, cancelled=0.4, keyless=0.4)
SICK_TOOLS = Faults(healthy=10.0, calls_per_s=2.0)
SICK_STORE = Faults(store_trouble_every_s=6.0, deaths_every_s=30.0, calls_per_s=2.0)
WEATHERS = (CALM, CROWDED, SICK_TOOLS, SICK_STORE)


@dataclass(frozen=True)
class Asked:
    """What a caller asks for."""

    tenant: str
    tool: str
    key: str | None
    arguments: dict[str, Any]


class World:
    """One seed of it. `run` lives for so many virtual seconds, lets everything settle, checks the end."""

    def __init__(self, loop: VirtualTimeLoop, faults: Faults | None = None) -> None:
        self.loop = loop
        self.faults = faults or WEATHERS[loop.seed % len(WEATHERS)]
        self._weights = [self.faults.healthy, *_WEIGHTS]
        self.chance = random.Random(loop.seed)
        self.effects = EffectLog(loop.time, record=loop.record)
        self.truth: dict[str, AttemptEnd] = {}
        self._first_effect: dict[str, float] = {}
        self._probing: dict[tuple[str, int], list[AttemptRequest]] = {}
        self.told_ok: set[str] = set()
        self.seen: Counter[str] = Counter()
        self.deaths = 0
        self._keys: list[tuple[float, Asked]] = []
        self._numbers = 0
        self._callers: dict[asyncio.Task[None], Asked] = {}
        self._broken: list[BaseException] = []
        self.rig = self._boot(CommandedStore(MemoryStore(member_secret=SECRET)))

    # -- the engine and its tools ---------------------------------------------------------------------------

    def _boot(self, store: CommandedStore) -> Rig:
        rig = Rig(
            self.loop, store=store, effects=self.effects, incarnation=f"p{self.deaths}", keep_spans=False
        )
        rig.chance.seed(self.chance.random())
        for name, spec in TOOLS.items():
            retry = RetryRules(max_attempts=3, initial_s=0.05)
            breaker = BreakerRules(min_attempts=8, open_s=2.0)
            tool = rig.add(name, retry=retry, breaker=breaker, **spec)
            tool.choose = lambda request, life=self.deaths: self._attempt(life)
        rig.add("truth", concurrency=4, timeout_s=2.0, **SAFE).choose = lambda request: self._tell
        return rig

    def _attempt(self, life: int) -> Step:
        """What the next attempt does. life: which process it belongs to; a dead one has no effects."""
        chance = self.chance
        kind = chance.choices(_KINDS, self._weights)[0]
        first_s, then_s = chance.expovariate(5.0), chance.expovariate(5.0)
        deaf_s = chance.uniform(0.5, 8.0)

        async def step(turn: Turn) -> Any:
            self.seen[f"attempt {kind}"] += 1
            turn.stubborn = kind.startswith("deaf")
            before_s = deaf_s if kind == "deaf before" else first_s
            await turn.until(math.inf if kind in ("hangs before", "cleans up") else before_s)
            _end_before(kind, chance)
            if kind == "reset" and chance.random() < 0.5:
                return AttemptEnd(kind=ErrorKind.TRANSIENT, outcome=Outcome.UNKNOWN, message="reset")
            if turn.tool.spec.phases:
                turn.begin_effect()
            if life == self.deaths:
                self._take_effect(turn, kind)
            if kind != "answer":
                await turn.until(before_s + (math.inf if kind == "hangs after" else then_s))
            if kind == "deaf after":
                await turn.until(deaf_s)
            if kind in ("fails after", "reset"):
                raise ValueError("after")
            if kind == "says no":
                raise SaidNo(_value(turn))
            return self.truth[turn.request.downstream_key] if kind == "bad output" else _value(turn)

        async def watched(turn: Turn) -> Any:
            with self._probe(turn):
                return await (clean_up(3.0, step) if kind == "cleans up" else step)(turn)

        return watched

    def _take_effect(self, turn: Turn, kind: str) -> None:
        """Change the world, unless a `by_key` upstream still knew the key when the request came to it."""
        key = turn.request.downstream_key
        knows = turn.tool.spec.idempotency is Idempotency.BY_KEY and key in self.truth
        first = self._first_effect.setdefault(key, self.loop.time())
        known = knows and turn.started < first + KEY_TTL_S
        self.truth[key] = AttemptEnd(
            kind=ErrorKind.BAD_OUTPUT if kind == "bad output" else None,
            outcome=Outcome.DONE,
            result=msgspec.json.encode(_value(turn)),
            tool_error=kind == "says no",
        )
        if not known:
            turn.effect()
        if turn.tool.spec.idempotency is not Idempotency.YES:
            self._expect(self.effects.count(effect_key(turn.request)) == 1, f"1: {turn.request}")

    async def _tell(self, turn: Turn) -> Any:
        """The reconcile tool: mostly the truth, sometimes nothing, sometimes trouble."""
        await turn.until(self.chance.uniform(0, 0.3))
        mood = self.chance.random()
        if mood < 0.1:
            raise Transient
        if mood < 0.2:
            raise ValueError("reconcile")
        if mood < 0.4:
            return {"state": "unknown"}
        return _told(self.truth.get(str(turn.request.arguments["downstream_key"])))

    # -- life -----------------------------------------------------------------------------------------------

    async def run(self, for_s: float) -> None:
        """Live, then end every fault and check that all is settled."""
        await self._start_up()
        until = self.loop.time() + for_s
        companions = [
            self.loop.create_task(part)
            for part in (self._watch(), self._trouble(), self._people(), self._die())
        ]
        while self.loop.time() < until and not self._broken:
            await asyncio.sleep(self.chance.expovariate(self.faults.calls_per_s))
            tool = self.chance.choice(list(TOOLS))
            for _ in range(1 + (self.chance.random() < 0.1) * self.chance.randrange(1, self.faults.burst)):
                self._call(self._choose(tool))
        for task in companions:
            task.cancel()
        ended = await asyncio.gather(*companions, return_exceptions=True)
        self._broken += [error for error in ended if isinstance(error, Exception)]
        if self._broken:
            raise self._broken[0]
        self.rig.store.fail.clear()
        self.rig.store.delay_s.clear()
        await asyncio.sleep(200.0)
        await self._settle_by_hand(share=1.0)
        await asyncio.sleep(1000.0)
        for task in list(self._housekeeping):
            task.cancel()
        if self._broken:
            raise self._broken[0]
        await self._check_end()

    async def _start_up(self) -> None:
        rig = self.rig
        await rig.ledger.settlements.recover()
        await rig.reconciler.start()
        self._housekeeping = [self.loop.create_task(rig.housekeeping.run())]

    async def _trouble(self) -> None:
        """The store fails or is slow for a while, again and again."""
        operations: list[Operation] = ["find", "claim", "save", "release", "by_call_id", "list", "sweep"]
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / self.faults.store_trouble_every_s))
            for operation in self.chance.sample(operations, self.chance.randrange(1, len(operations))):
                if self.chance.random() < 0.5:
                    self.rig.store.fail[operation] = self.chance.choice([1, 3, -1])
                else:
                    self.rig.store.delay_s[operation] = self.chance.choice([0.001, 0.03, 0.3, 3.0])
            await asyncio.sleep(self.chance.uniform(0, 6))
            self.rig.store.fail.clear()
            self.rig.store.delay_s.clear()

    async def _die(self) -> None:
        """The process is killed: only what was written lives on, in another one."""
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / self.faults.deaths_every_s))
            self.deaths += 1
            self.seen["death"] += 1
            old, written = self.rig, CommandedStore(reopened(self.rig.store.inner))
            old.is_dead = True
            old.store.fail.clear()  # or its last tasks would ask it for ever
            old.store.delay_s.clear()
            self.rig = self._boot(written)
            cut_off = list(self._callers.values())
            for task in [*self._callers, *self._housekeeping, *old.ledger._tasks]:
                task.cancel()
            await old.reconciler.stop()
            for tool in old.tools.values():
                tool.let_go()
            await self._start_up()
            for asked in cut_off:  # callers who lost their connection ask again
                if asked.key is not None and self.chance.random() < 0.7:
                    self._call(asked)

    async def _people(self) -> None:
        while True:
            await asyncio.sleep(self.chance.expovariate(1 / 30))
            await self._settle_by_hand(share=0.3)

    async def _settle_by_hand(self, share: float) -> None:
        """Somebody looks at unknown calls and says what really happened."""
        calls = self.rig.calls
        for tenant in TENANTS:
            found = await calls.list(tenant, state=RowState.UNKNOWN, tool=None, after="", limit=50)
            for view in found if isinstance(found, list) else []:
                assert view.row.scope.tenant == tenant, "10"
                if self.chance.random() < share:
                    await self._settle(tenant, view.row.call_id)

    async def _settle(self, tenant: str, call_id: str) -> None:
        rig = self.rig
        view = await rig.calls.get(tenant, call_id)
        if not isinstance(view, CallView) or view.row.state is not RowState.UNKNOWN:
            return
        end = self.truth.get(_downstream_key(view))
        if end is None and view.attempt_in_flight:
            return
        if end is None:
            evidence = Evidence(by=SettledBy.PERSON, done=False)
        else:
            evidence = Evidence(
                by=SettledBy.PERSON,
                done=True,
                result=end.result or b"null",
                tool_error=end.tool_error,
                failure_kind=end.kind,
            )
        settled = await rig.calls.settle(tenant, call_id, view.row.etag, evidence)
        self.seen["settled by hand" if isinstance(settled, CallView) else "settling refused"] += 1

    # -- callers --------------------------------------------------------------------------------------------

    def _call(self, asked: Asked) -> None:
        task = self.loop.create_task(self._caller(asked))
        self._callers[task] = asked
        task.add_done_callback(self._called)

    def _called(self, task: asyncio.Task[None]) -> None:
        del self._callers[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken.append(error)

    async def _caller(self, asked_for: Asked) -> None:
        rig, chance = self.rig, self.chance
        now = self.loop.time()
        timeout_s = chance.choice([0.001, 0.05, 0.5, 2.0, 10.0, 60.0])
        call = Call(
            tenant=asked_for.tenant,
            tool=asked_for.tool,
            arguments=asked_for.arguments,
            key=asked_for.key,
            arrival=now,
            deadline=now + timeout_s,
            attempt_timeout_s=chance.choice([None, None, None, 0.3, 5.0]),
            budget=chance.choice([None] * 9 + [0, 1, 2]),
            patient=chance.random() < 0.3,
            stream=chance.randrange(3),
        )
        asked = self.loop.create_task(rig.dispatcher.dispatch(call))
        try:
            if chance.random() < self.faults.cancelled:
                await asyncio.wait([asked], timeout=chance.expovariate(2.0))
                asked.cancel()
            await asyncio.wait([asked])
        finally:
            asked.cancel()
        if asked.cancelled():
            self.seen["caller left"] += 1
            return
        assert self.loop.time() <= call.deadline + IN_TIME_S, f"3: {call} at {self.loop.time()}"
        self._check_reply(rig, call, asked.result())

    def _choose(self, tool: str) -> Asked:
        """A new key, a known one with the same or other arguments, or none."""
        chance, now = self.chance, self.loop.time()
        self._keys = [known for known in self._keys if known[0] > now]
        if self._keys and chance.random() < 0.5:
            asked = chance.choice(self._keys)[1]
            return replace(asked, arguments={"n": -1}) if chance.random() < 0.05 else asked
        self._numbers += 1
        asked = Asked(chance.choice(TENANTS), tool, None, {"n": self._numbers})
        if chance.random() < self.faults.keyless:
            return asked
        if chance.random() < 0.5:  # a key that many use, all with the same arguments
            return replace(asked, key=f"shared{int(now // KEY_LIFE_S)}", arguments={"n": 0})
        asked = replace(asked, key=f"k{self._numbers}")
        self._keys.append((now + KEY_LIFE_S, asked))
        return asked

    # -- what must hold -------------------------------------------------------------------------------------

    def _check_reply(self, rig: Rig, call: Call, reply: Reply) -> None:
        if rig.is_dead:  # whatever a killed process still says reaches nobody
            return
        source = reply.source.value if reply.source else "none"
        if isinstance(reply, Failure):
            self.seen[f"{reply.kind.value}/{reply.outcome.value}"] += 1
            assert reply.kind is not ErrorKind.CANCELLED, "nobody but a caller cancels"
            self._check_not_run(call, reply)
            return
        self.seen[f"ok {source}"] += 1
        value = msgspec.json.decode(reply.result)
        assert value["tenant"] == call.tenant, "10"
        assert (value["tool"], value["key"]) == (call.tool, call.key)
        assert value["n"] == call.arguments["n"]
        if call.key is None:
            assert self.effects.count(reply.call_id) >= 1, "1"
            return
        name = f"{call.tenant}/{call.tool}/{call.key}"
        self.told_ok.add(name)
        assert self.effects.count(name) >= 1, f"1: OK without an effect: {name}"
        row = rig.store.inner._rows.get(scope_id(call.tenant, call.tool, call.key))
        assert row is not None, f"2: {call}"
        assert (row.state, row.call_id) == (RowState.DONE, reply.call_id), f"2: {row}"
        assert row.result == reply.result, "2"
        assert reply.source in (Source.EXECUTED, Source.JOINED, Source.REPLAYED)

    def _check_not_run(self, call: Call, failure: Failure) -> None:
        """Attempts of this call were made and none ran: then nothing has happened under its key."""
        if failure.outcome is not Outcome.NOT_RUN or not failure.attempts or call.key is None:
            return
        if self.rig.tools[call.tool].spec.idempotency is not Idempotency.YES:
            name = f"{call.tenant}/{call.tool}/{call.key}"
            assert self.effects.count(name) == 0, f"1: told NOT_RUN: {call}"

    async def _watch(self) -> None:
        """Look once a second; a broken invariant ends the world."""
        while True:
            await asyncio.sleep(1.0)
            self.check_now()

    def check_now(self) -> None:
        """What holds at every moment."""
        rig = self.rig
        for name, tool in rig.tools.items():
            slots, state = rig.slots(name), rig.state(name)
            assert 0 <= slots.running <= slots.concurrency, f"4: {name}"
            assert slots.usable == max(0, min(slots.concurrency, 2 * slots.concurrency - slots.abandoned))
            assert slots.abandoned == len(state.abandoned), f"4: {name}"
            assert tool.running <= slots.running + slots.abandoned, f"4: {name} runs without a slot"
            assert not (slots.waiting and slots.running < slots.usable), f"4: {name} waits at a free slot"
            assert state.breaker.live_probes(self.loop.time()) <= state.breaker.rules.probes, f"9: {name}"

    @contextlib.contextmanager
    def _probe(self, turn: Turn) -> Iterator[None]:
        """A tool runs: half-open lets in no more than its probes, those given up aside."""
        breaker = self.rig.state(turn.tool.spec.name).breaker
        if breaker.state(self.loop.time()) is not BreakerState.HALF_OPEN:
            yield
            return
        others = self._probing.setdefault((turn.tool.spec.name, breaker._generation), [])
        live = [other for other in others if not other.effects._abandoned]  # type: ignore[attr-defined]
        self._expect(len(live) < breaker.rules.probes, f"9: {turn.request}")
        others.append(turn.request)
        try:
            yield
        finally:
            others.remove(turn.request)

    def _expect(self, holds: bool, promise: str) -> None:
        """Inside a tool, where raising would be the tool's own failure."""
        if not holds:
            self._broken.append(AssertionError(promise))

    async def _check_end(self) -> None:
        """Everything has ended, everything unknown is settled, nothing is left."""
        self.check_now()
        rig = self.rig
        rig.assert_clean()
        unknown = await rig.store.inner.count(RowState.UNKNOWN)
        assert (unknown, rig.ledger.settlements.unknown_count) == (0, 0), "all unknowns are settled"
        assert await rig.store.inner.count(RowState.RUNNING) == 0
        assert rig.ledger.unwritten == 0
        assert rig.store.inner._holds == {}
        assert rig.reconciler._pursuits == {}
        assert not self._callers
        for name in self.told_ok:
            assert self.effects.count(name) >= 1


def _end_before(kind: str, chance: random.Random) -> None:
    """How an attempt ends that has no effect."""
    if kind in ("transient", "deaf transient", "hinted"):
        raise Transient(chance.uniform(0, 3) if kind == "hinted" else None)
    if kind == "fails before":
        raise ValueError("before")
    if kind == "cancels itself":
        raise asyncio.CancelledError("by itself")


def _value(turn: Turn) -> dict[str, Any]:
    request = turn.request
    return {
        "tenant": request.tenant,
        "tool": request.tool,
        "key": request.key,
        "n": request.arguments["n"],
    }


def _told(end: AttemptEnd | None) -> dict[str, Any]:
    if end is None:
        return {"state": "not_run"}
    value = msgspec.json.decode(end.result or b"null")
    return {"state": "done", "tool_error" if end.tool_error else "result": value}


def _downstream_key(view: CallView) -> str:
    scope = view.row.scope
    return downstream_key(scope.tenant, scope.tool, scope.key, view.row.fingerprint)


async def live(loop: VirtualTimeLoop, for_s: float, faults: Faults | None = None) -> World:
    """One world, from its beginning to its end."""
    world = World(loop, faults)
    await world.run(for_s)
    return world


__all__ = ["Answer", "Faults", "World", "live"]
