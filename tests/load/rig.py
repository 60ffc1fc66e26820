"""The road assembled in this process for measuring: trivial tools, 1 % of callers sampled, metrics on."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from lineside_service.core.call import Answer, Call
from lineside_service.core.tool import Effect, Idempotency, ToolSpec
from lineside_service.engine.dispatcher import Dispatcher
from lineside_service.engine.ledger import Ledger
from lineside_service.engine.registry import Registry
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Telemetry, observe_engine
from lineside_service.stores.memory import MemoryStore
from lineside_service.stores.sqlite import SqliteStore, open_sqlite
from lineside_service.tools.python import PythonTool
from lineside_service.tools.threads import Threads

SCHEMA = (
    b'{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1}},'
    b'"required":["city"],"additionalProperties":false}'
)
ARGUMENTS = {"city": "Oslo", "days": 3}
SAMPLED_SHARE = 100
"""One caller in this many has a sampled trace."""


async def echo(city: str, days: int = 1) -> dict[str, object]:
    """The tool that does next to nothing."""
    return {"city": city, "days": days}


@dataclass(slots=True)
class Rig:
    """A dispatcher with its tools. Calls are made beforehand: that is the edge's work, not the road's."""

    dispatcher: Dispatcher
    store: MemoryStore | SqliteStore
    parents: itertools.cycle[Context]
    keys: itertools.count[int]

    async def bare(self) -> object:
        """The tool alone, awaited."""
        return await echo("Oslo", 3)

    def keyless(self) -> Call:
        """A call without a key."""
        return self._call("echo", None)

    def keyed_safe(self) -> Call:
        """A call of a `safe` tool with a new key: one durable wait."""
        return self._call("echo", f"key-{next(self.keys)}")

    def keyed_final(self) -> Call:
        """A call of a `final` tool with a new key: two durable waits."""
        return self._call("book", f"key-{next(self.keys)}")

    async def dispatch(self, call: Call) -> None:
        """Let a call travel the road; only an answer will do."""
        reply = await self.dispatcher.dispatch(call)
        if not isinstance(reply, Answer):
            raise TypeError(f"expected an answer, got {reply}")

    def _call(self, tool: str, key: str | None) -> Call:
        now, parent = asyncio.get_running_loop().time(), next(self.parents)
        return Call(
            tenant="bench",
            tool=tool,
            arguments=ARGUMENTS,
            arrival=now,
            deadline=now + 600,
            key=key,
            parent=parent,
            is_traced=get_current_span(parent).get_span_context().trace_flags.sampled,
        )

    async def close(self) -> None:
        """Let the store go."""
        await self.store.close()


async def open_rig(path: Path | None, chance: random.Random) -> Rig:
    """Assemble a road on SQLite at `path`, or on memory."""
    loop = asyncio.get_running_loop()
    store: MemoryStore | SqliteStore
    if path is None:
        store = MemoryStore(member_secret=chance.randbytes(32), tenant_bytes_limit=1 << 40)
    else:
        store = await open_sqlite(path, incarnation="bench", tenant_bytes_limit=1 << 40)
    sources = Sources(now=loop.time, wall=time.time, chance=chance)
    common = ToolSpec(name="echo", input_schema=SCHEMA, concurrency=128)
    threads = Threads()
    log = structlog.get_logger()
    safe = replace(common, effect=Effect.SAFE, idempotency=Idempotency.YES)
    registry = Registry(
        PythonTool(spec, echo, threads, log)
        for spec in (safe, replace(common, name="book", effect=Effect.FINAL))
    )
    ledger = Ledger(store, store, sources, incarnation="bench", log=log)
    telemetry = Telemetry(TracerProvider().get_tracer("bench"), log)
    dispatcher = Dispatcher(registry, ledger, sources, telemetry)
    meter = MeterProvider([InMemoryMetricReader()]).get_meter("bench")
    observe_engine(
        meter,
        registry,
        sources.now,
        in_flight=lambda: dispatcher.in_flight,
        unknown=lambda: ledger.settlements.unknown_count,
        unwritten=lambda: ledger.unwritten,
    )
    return Rig(dispatcher, store, itertools.cycle(_parents(chance)), itertools.count())


def _parents(chance: random.Random) -> list[Context]:
    """Callers' trace contexts, one in SAMPLED_SHARE of them sampled."""
    contexts = []
    for number in range(SAMPLED_SHARE):
        flags = TraceFlags(TraceFlags.SAMPLED if number == 0 else TraceFlags.DEFAULT)
        caller = SpanContext(
            chance.getrandbits(128), chance.getrandbits(64), is_remote=True, trace_flags=flags
        )
        contexts.append(set_span_in_context(NonRecordingSpan(caller), Context()))
    return contexts
