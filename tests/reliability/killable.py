"""The service as it is composed, in a process that kills itself (SIGKILL) at a named point of a call's road.

Usage: killable.py CONFIG, then one JSON line on stdin per life: {"point": "intent.after", "nth": 40,
"delay_s": 0}. Each life is a child forked from this process, which has everything imported and nothing
started: a life costs milliseconds of start-up. It prints the line of `lineside-service serve`, at its death
`KILLED <point> <key>`, and this process then `ENDED <signal>`.

The points are wrapped around the service from outside, in this file: the service knows nothing of them.

    claim         the store's claim of the key
    slot          the wait for a slot of the tool
    intent        the durable write before the first attempt; `during` kills while it is under way
    start         the start of an attempt
    begin_effect  the tool's point of no return, in tools with phases
    effect        the effect in another process, its answer included
    record        the durable write of the end (or the release of the key); `during` as above
    answer        the reply on its way to the caller: `after` = it was sent
    recover       at the start: the durable write that settles what a dead process left (not on a call's road)
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lineside.v1.dispatch_pb2 import DispatchRequest
from lineside_service import main
from lineside_service.assembly import service as assembly
from lineside_service.assembly.service import Store
from lineside_service.assembly.toolbox import LoadedTool
from lineside_service.config import Config
from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.ledger import Row, RowState
from lineside_service.core.tool import ToolSpec
from lineside_service.edge.dispatch import DispatchMethod
from lineside_service.edge.rpc import Rpc, RpcRunner
from lineside_service.engine.attempt import EffectLatch
from lineside_service.engine.work import Work
from lineside_service.ports import AttemptRequest, Claim, Swept, Tool
from lineside_service.tools.threads import Threads

POINTS: Final = tuple(
    f"{place}.{moment}"
    for place in ("claim", "slot", "intent", "start", "begin_effect", "effect", "record", "answer")
    for moment in ("before", "during", "after")
    if moment != "during" or place in ("intent", "record")
)
"""Where a life can end, in the order of the road."""

_KEY: contextvars.ContextVar[str] = contextvars.ContextVar("key", default="")
"""The key of the call whose tool is running, for points that see nothing else of it."""


@dataclass(slots=True)
class Trap:
    """Kills this process the nth time that a call passes the point; after delay_s, in a `during` point."""

    point: str
    nth: int
    delay_s: float = 0.0

    def passing(self, point: str, key: str) -> None:
        """A call with this key (empty: unknown here) is at the point."""
        if point != self.point:
            return
        self.nth -= 1
        if self.nth == 0:
            if self.delay_s:
                threading.Thread(target=self._kill_later, args=(key,)).start()
            else:
                self._kill(key)

    def _kill_later(self, key: str) -> None:
        time.sleep(self.delay_s)
        self._kill(key)

    def _kill(self, key: str) -> None:
        os.write(1, f"KILLED {self.point} {key}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


class TrappedStore:
    """Both ports of a store, with traps around claim, intent and record."""

    def __init__(self, store: Store, trap: Trap, incarnation: str) -> None:
        self._store = store
        self._trap = trap
        self._incarnation = incarnation
        self.member_secret = store.member_secret
        self.find = store.find
        self.by_call_id = store.by_call_id
        self.list = store.list
        self.count = store.count
        self.close = store.close
        self.load = store.load

    async def claim(self, row: Row) -> tuple[Claim, Row | None]:
        """See LedgerStore."""
        self._trap.passing("claim.before", row.scope.key)
        claimed = await self._store.claim(row)
        self._trap.passing("claim.after", row.scope.key)
        return claimed

    def save(self, row: Row) -> asyncio.Future[bool]:
        """See LedgerStore."""
        return asyncio.ensure_future(self._write(row, lambda: self._store.save(row)))

    def release(self, row: Row) -> asyncio.Future[None]:
        """See LedgerStore."""
        released = replace(row, state=RowState.NOT_RUN)
        return asyncio.ensure_future(self._write(released, lambda: self._store.release(row)))

    async def sweep(self, wall_s: float, limit: int) -> Swept:
        """See LedgerRecords."""
        return await self._store.sweep(wall_s, limit)

    async def _write(self, row: Row, write: Callable[[], Awaitable[Any]]) -> Any:
        place = "intent" if row.state is RowState.RUNNING else "record"
        if row.incarnation != self._incarnation:
            place = "recover"
        self._trap.passing(f"{place}.before", row.scope.key)
        self._trap.passing(f"{place}.during", row.scope.key)
        written = await write()
        self._trap.passing(f"{place}.after", row.scope.key)
        return written


class KeyedTool:
    """A tool that tells the traps on its way whose call it runs."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    @property
    def spec(self) -> ToolSpec:
        """The tool as registered."""
        return self._tool.spec

    async def run(self, request: AttemptRequest) -> AttemptEnd:
        """See ports.Tool."""
        _KEY.set(request.key or "")
        return await self._tool.run(request)


def set_up(trap: Trap) -> None:
    """Put the traps around this process's classes; nothing has been made of them yet."""
    _around_the_store(trap)
    _around_attempts(trap)
    _around_effects(trap)
    _around_answers(trap)


def _around_the_store(trap: Trap) -> None:
    open_store, make_tools = assembly.open_store, assembly.make_tools

    async def open_trapped(config: Config, incarnation: str) -> Any:
        return TrappedStore(await open_store(config, incarnation), trap, incarnation)

    def make_keyed(loaded: Sequence[LoadedTool], threads: Threads) -> Any:
        return [KeyedTool(tool) for tool in make_tools(loaded, threads)]

    assembly.open_store = open_trapped
    assembly.make_tools = make_keyed


def _around_attempts(trap: Trap) -> None:
    look, inside, start = Work._before_waiting, Work._in_slot, Work._start

    def before_waiting(work: Work) -> Any:
        refusal = look(work)
        trap.passing("slot.before", _key_of(work))
        return refusal

    async def in_slot(work: Work, *, has_waited: bool) -> Any:
        trap.passing("slot.after", _key_of(work))
        return await inside(work, has_waited=has_waited)

    def started(work: Work) -> Any:
        trap.passing("start.before", _key_of(work))
        attempt = start(work)
        trap.passing("start.after", _key_of(work))
        return attempt

    Work._before_waiting = before_waiting  # type: ignore[assignment, method-assign]
    Work._in_slot = in_slot  # type: ignore[assignment, method-assign]
    Work._start = started  # type: ignore[assignment, method-assign]


def _key_of(work: Work) -> str:
    return work.keyed.key if work.keyed is not None else ""


def _around_effects(trap: Trap) -> None:
    begin = EffectLatch.begin_effect
    tools: Any = importlib.import_module("effect_tools")
    deliver = tools.deliver

    def begin_effect(latch: EffectLatch) -> None:
        trap.passing("begin_effect.before", _KEY.get())
        begin(latch)
        trap.passing("begin_effect.after", _KEY.get())

    async def delivered(name: str, key: str, token: str) -> None:
        trap.passing("effect.before", key)
        await deliver(name, key, token)
        trap.passing("effect.after", key)

    EffectLatch.begin_effect = begin_effect  # type: ignore[assignment, method-assign]
    tools.deliver = delivered


def _around_answers(trap: Trap) -> None:
    handle, run = DispatchMethod.__call__, RpcRunner._run

    async def handled(method: DispatchMethod, rpc: Rpc, request: DispatchRequest) -> Any:
        reply = await handle(method, rpc, request)
        trap.passing("answer.before", request.call.idempotency_key)
        return reply

    async def ran(runner: RpcRunner, method: Any, context: Any, body: Any) -> bytes:
        if method.name.endswith("/Dispatch"):
            context.add_done_callback(lambda _: trap.passing("answer.after", ""))
        return await run(runner, method, context, body)

    DispatchMethod.__call__ = handled  # type: ignore[assignment, method-assign]
    RpcRunner._run = ran  # type: ignore[assignment, method-assign]


def lives(config: Path) -> None:
    """Fork one life after the other, as stdin asks for them."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.close(0)
            set_up(Trap(**json.loads(line)))
            os._exit(main.run(config, {}))
        _, status = os.waitpid(child, 0)
        os.write(1, f"ENDED {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    file = Path(sys.argv[1]).absolute()
    sys.path.insert(0, str(file.parent))
    lives(file)
