"""The whole engine on virtual time: registry, ledger, road, call book and reconcile over the memory store."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import msgspec
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lineside_service.core.breaker import BreakerRules
from lineside_service.core.call import Answer, Call, Reply
from lineside_service.core.errors import Failure
from lineside_service.core.fingerprint import scope_id
from lineside_service.core.ledger import Row
from lineside_service.core.retry import RetryRules
from lineside_service.core.slots import Slots
from lineside_service.core.tool import Effect, Idempotency, ToolSpec
from lineside_service.engine.calls import Calls
from lineside_service.engine.dispatcher import Dispatcher
from lineside_service.engine.housekeeping import Housekeeping
from lineside_service.engine.ledger import Ledger
from lineside_service.engine.reconcile import Reconciler
from lineside_service.engine.registry import Registry, ToolState
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Telemetry
from lineside_service.stores.memory import MemoryStore
from tests.support.commanded_store import CommandedStore
from tests.support.effects import EffectLog
from tests.support.scripted_tool import ScriptedTool, Step
from tests.support.virtual_loop import VirtualTimeLoop

SECRET = bytes(range(32))
NO_BREAKER = BreakerRules(enabled=False)
AMPLE = RetryRules(budget_ratio=100.0)
"""Retries are not rationed: for tests about something else."""


class LogLines:
    """The engine's log, kept: (level, event, values)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def debug(self, event: str, **values: object) -> None:
        """Keep it."""
        self.lines.append(("debug", event, values))

    def info(self, event: str, **values: object) -> None:
        """Keep it."""
        self.lines.append(("info", event, values))

    def warning(self, event: str, **values: object) -> None:
        """Keep it."""
        self.lines.append(("warning", event, values))

    def error(self, event: str, **values: object) -> None:
        """Keep it."""
        self.lines.append(("error", event, values))

    def events(self) -> list[str]:
        """Just the names."""
        return [event for _, event, _ in self.lines]


class SpanCounts(SpanProcessor):
    """How many spans were started and ended."""

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        """Count."""
        self.started += 1

    def on_end(self, span: ReadableSpan) -> None:
        """Count."""
        self.ended += 1


class Rig:
    """An engine with scripted tools. One rig is one process: `incarnation` names it."""

    def __init__(
        self,
        loop: VirtualTimeLoop,
        *,
        store: CommandedStore | None = None,
        effects: EffectLog | None = None,
        incarnation: str = "one",
        keep_spans: bool = True,
    ) -> None:
        self.loop = loop
        self.is_dead = False
        self.store = store or CommandedStore(MemoryStore(member_secret=SECRET))
        self.effects = EffectLog(loop.time, record=loop.record) if effects is None else effects
        self.log = LogLines()
        self.chance = random.Random(loop.seed)
        self.sources = Sources(now=loop.time, wall=loop.wall, chance=self.chance)
        self.span_counts = SpanCounts()
        self.spans = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(self.span_counts)
        if keep_spans:
            provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.telemetry = Telemetry(provider.get_tracer("test"), self.log)
        self.tools: dict[str, ScriptedTool] = {}
        self.registry = Registry([])
        self.ledger = Ledger(self.store, self.store, self.sources, incarnation=incarnation, log=self.log)
        self.dispatcher = Dispatcher(self.registry, self.ledger, self.sources, self.telemetry)
        self.calls = Calls(self.ledger, self.dispatcher)
        self.reconciler = Reconciler(self.ledger, self.dispatcher, self.sources, self.log)
        self.housekeeping = Housekeeping(self.store, self.sources, self.log)

    # -- tools ----------------------------------------------------------------------------------------------

    def add(self, name: str, *script: Step, upstream_keys: float | None = None, **spec: Any) -> ScriptedTool:
        """Register a tool. By default `final`, not idempotent, no breaker and an ample retry budget."""
        full: dict[str, Any] = {"breaker": NO_BREAKER, "retry": AMPLE, **spec}
        tool = ScriptedTool(
            ToolSpec(name=name, **full), *script, effects=self.effects, upstream_keys=upstream_keys
        )
        self.tools[name] = tool
        self.registry.replace(self.tools.values())
        return tool

    def remove(self, name: str) -> None:
        """Reload without this tool."""
        del self.tools[name]
        self.registry.replace(self.tools.values())

    def change(self, name: str, **spec: Any) -> None:
        """Reload with another spec for this tool."""
        self.tools[name].spec = replace(self.tools[name].spec, **spec)
        self.registry.replace(self.tools.values())

    def state(self, name: str) -> ToolState:
        """What the tool has been through."""
        found = self.registry._states[name]
        return found[0]

    def slots(self, name: str) -> Slots:
        """Its slots."""
        return self.state(name).gate.slots

    # -- calls ----------------------------------------------------------------------------------------------

    def call(self, tool: str, key: str | None = None, *, timeout_s: float = 60.0, **more: Any) -> Call:
        """A call that arrives now and has `timeout_s` seconds."""
        now = self.loop.time()
        full: dict[str, Any] = {"tenant": "acme", "arguments": {}, **more}
        return Call(tool=tool, key=key, arrival=now, deadline=now + timeout_s, **full)

    async def dispatch(self, tool: str, key: str | None = None, **more: Any) -> Reply:
        """Run one call."""
        return await self.dispatcher.dispatch(self.call(tool, key, **more))

    def start(self, tool: str, key: str | None = None, **more: Any) -> asyncio.Task[Reply]:
        """Run one call in a task of its own."""
        return self.loop.create_task(self.dispatch(tool, key, **more))

    async def answered(self, tool: str, key: str | None = None, **more: Any) -> Answer:
        """Run one call that must be answered."""
        return expect_answer(await self.dispatch(tool, key, **more))

    async def failed(self, tool: str, key: str | None = None, **more: Any) -> Failure:
        """Run one call that must fail."""
        return expect_failure(await self.dispatch(tool, key, **more))

    async def at(self, virtual_s: float) -> None:
        """Wait until this moment of virtual time."""
        await asyncio.sleep(virtual_s - self.loop.time())

    async def row(self, tool: str, key: str, tenant: str = "acme") -> Row | None:
        """The stored row of a key."""
        return await self.store.inner.find(scope_id(tenant, tool, key))

    async def standing(self, tool: str, key: str, tenant: str = "acme") -> Row:
        """The stored row of a key, which must stand."""
        row = await self.row(tool, key, tenant)
        assert row is not None
        return row

    # -- what must hold -------------------------------------------------------------------------------------

    def assert_at_rest(self) -> None:
        """With nothing in flight: every account is even, every span ended, nothing left in any map."""
        for name, tool in self.tools.items():
            slots = self.slots(name)
            assert (slots.running, slots.waiting, slots.overflow) == (0, 0, 0), name
            assert slots.abandoned == tool.running, f"{name}: {slots.abandoned} abandoned, {tool.running} run"
            assert self.state(name).breaker.live_probes(self.loop.time()) == 0, name
        assert self.dispatcher.in_flight == 0
        assert self.ledger.entries() == []
        assert self.span_counts.started == self.span_counts.ended

    def assert_clean(self) -> None:
        """At rest, and no abandoned attempt is left either. A dead process owes nothing."""
        if self.is_dead:
            return
        self.assert_at_rest()
        assert all(self.slots(name).abandoned == 0 for name in self.tools)
        assert self.ledger.executions == 0


def expect_answer(reply: Reply) -> Answer:
    """The reply, which must be an answer."""
    assert isinstance(reply, Answer), reply
    return reply


def expect_failure(reply: Reply) -> Failure:
    """The reply, which must be a failure."""
    assert isinstance(reply, Failure), reply
    return reply


def value_of(reply: Reply) -> Any:
    """The decoded result of an answer."""
    return msgspec.json.decode(expect_answer(reply).result)


SAFE: dict[str, Any] = {"effect": Effect.SAFE, "idempotency": Idempotency.YES}
IDEMPOTENT: dict[str, Any] = {"idempotency": Idempotency.YES}
BY_KEY: dict[str, Any] = {"idempotency": Idempotency.BY_KEY, "key_ttl_s": 100.0}
