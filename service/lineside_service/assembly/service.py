"""The composition root: one place knows every concrete class and puts them together."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

from lineside_service.assembly import translate
from lineside_service.assembly.gauges import LoopLateness, observe_service, observe_spans
from lineside_service.assembly.logs import SERVICE_NAME, get_log
from lineside_service.assembly.otel_setup import Observability, OtelError, set_up_otel
from lineside_service.assembly.recording import RecordingTelemetry
from lineside_service.assembly.toolbox import LoadedTool
from lineside_service.assembly.translate import StartError
from lineside_service.assembly.watched_log import WATCHED, WatchedLog
from lineside_service.config import Config, OtelEnvironment
from lineside_service.core.schema import CompiledSchema
from lineside_service.edge.auth import Authenticator
from lineside_service.edge.durations import CallDurations
from lineside_service.edge.gauges import observe_edge
from lineside_service.edge.server import EdgeServer, Parts
from lineside_service.edge.spans import EdgeTelemetry
from lineside_service.engine.calls import Calls
from lineside_service.engine.dispatcher import Dispatcher
from lineside_service.engine.housekeeping import Housekeeping
from lineside_service.engine.ledger import Ledger
from lineside_service.engine.reconcile import Reconciler
from lineside_service.engine.registry import Registry
from lineside_service.engine.sources import Sources
from lineside_service.engine.telemetry import Telemetry, observe_engine
from lineside_service.ports import LedgerRecords, LedgerStore, StoreLoad
from lineside_service.stores import MemoryStore, StoreOpenError, open_sqlite
from lineside_service.tools.python import PythonTool
from lineside_service.tools.threads import Threads


class Store(LedgerStore, LedgerRecords, Protocol):
    """What every store is: both ports on one object, and what it tells of itself."""

    def load(self) -> StoreLoad:
        """What it holds and has written; asked on any thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The parts of one running service that its life, and a reload, act on."""

    config: Config
    sources: Sources
    threads: Threads
    otel: Observability
    store: Store
    registry: Registry
    ledger: Ledger
    dispatcher: Dispatcher
    reconciler: Reconciler
    housekeeping: Housekeeping
    lateness: LoopLateness
    log: WatchedLog
    auth: Authenticator
    edge: EdgeServer


def make_sources() -> Sources:
    """The loop's clock, the wall clock, and one generator seeded by the system."""
    loop = asyncio.get_running_loop()
    # asyncio's own loop reads this very clock, by way of a method that costs as much again.
    now = time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
    seed = random.SystemRandom().getrandbits(256)
    return Sources(now=now, wall=time.time, chance=random.Random(seed))  # noqa: S311 - jitter and ids


def make_tools(loaded: Sequence[LoadedTool], threads: Threads) -> list[PythonTool]:
    """The tools as the engine runs them."""
    log = get_log("lineside.tool")
    return [PythonTool(tool.spec, tool.function, threads, log, output=tool.output) for tool in loaded]


def input_schemas(loaded: Sequence[LoadedTool]) -> Mapping[str, CompiledSchema]:
    """By tool, for the registry."""
    return {tool.spec.name: tool.input for tool in loaded}


async def open_store(config: Config, incarnation: str) -> Store:
    """The configured store; StartError when it cannot be used."""
    settings = config.store
    if settings.kind == "memory":
        return MemoryStore(member_secret=secrets.token_bytes(32), tenant_bytes_limit=settings.tenant_bytes)
    try:
        return await open_sqlite(
            settings.path, incarnation=incarnation, tenant_bytes_limit=settings.tenant_bytes
        )
    except StoreOpenError as error:
        raise StartError(str(error)) from None


@asynccontextmanager
async def assembled(
    config: Config, loaded: Sequence[LoadedTool], env: OtelEnvironment
) -> AsyncIterator[Service]:
    """Everything put together, nothing listening yet; the store is closed at the end.

    Raises StartError.
    """
    sources, threads = make_sources(), Threads()
    incarnation = sources.new_call_id()
    durations = CallDurations()
    otel = _otel(config, env, durations, incarnation)
    async with AsyncExitStack() as undo:
        store = await open_store(config, incarnation)
        undo.push_async_callback(store.close)
        events = dict.fromkeys(WATCHED, 0)
        log = WatchedLog(get_log("lineside.engine"), events)
        registry = Registry(make_tools(loaded, threads), input_schemas(loaded))
        ledger = Ledger(store, store, sources, incarnation=incarnation, log=log)
        telemetry = RecordingTelemetry if config.telemetry.record_arguments else Telemetry
        tracer = otel.tracers.get_tracer("lineside", _version())
        dispatcher = Dispatcher(registry, ledger, sources, telemetry(tracer, log))
        meter = otel.meters.get_meter("lineside", _version())
        _observe(meter, registry, dispatcher, ledger, sources.now)
        lateness = LoopLateness()
        observe_service(meter, store.load, events, lateness)
        observe_spans(meter, otel.span_load)
        auth = Authenticator(
            tokens=translate.tokens(config),
            certificates=translate.certificates(config),
            anonymous=translate.lets_anonymous_in(config, listening_on=config.server.listen),
            wall=sources.wall,
        )
        edge_telemetry = EdgeTelemetry(
            tracer=tracer,
            durations=durations,
            propagator=otel.propagator,
            log=WatchedLog(get_log("lineside.edge"), events),
            is_parent_based=otel.is_parent_based,
            roots=otel.roots,
        )
        parts = Parts(
            dispatcher=dispatcher,
            catalogue=registry,
            calls=Calls(ledger, dispatcher),
            auth=auth,
            telemetry=edge_telemetry,
            sources=sources,
            page_secret=secrets.token_bytes(32),
        )
        edge = EdgeServer(parts, translate.server_settings(config))
        observe_edge(meter, edge)
        yield Service(
            config=config,
            sources=sources,
            threads=threads,
            otel=otel,
            store=store,
            registry=registry,
            ledger=ledger,
            dispatcher=dispatcher,
            reconciler=Reconciler(ledger, dispatcher, sources, log),
            housekeeping=Housekeeping(store, sources, log),
            lateness=lateness,
            log=WatchedLog(get_log("lineside.service"), events),
            auth=auth,
            edge=edge,
        )


def _otel(config: Config, env: OtelEnvironment, durations: CallDurations, instance: str) -> Observability:
    try:
        return set_up_otel(
            env,
            durations,
            service=SERVICE_NAME,
            version=_version(),
            instance=instance,
            prometheus=config.admin.enabled,
        )
    except OtelError as error:
        raise StartError(str(error)) from None


def _observe(
    meter: Any, registry: Registry, dispatcher: Dispatcher, ledger: Ledger, now: Callable[[], float]
) -> None:
    observe_engine(
        meter,
        registry,
        now,
        in_flight=lambda: dispatcher.in_flight,
        unknown=lambda: ledger.settlements.unknown_count,
        unwritten=lambda: ledger.unwritten,
    )


def _version() -> str:
    return version("lineside-service")
