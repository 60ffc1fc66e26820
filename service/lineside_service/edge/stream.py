"""One batch stream: a reader that starts items, a writer that sends answers as they come, independently.

In flight is an item from its start until the write that carries its answer is complete. The account:

    in flight <= 256          or reading stops
    unsent answers < 1 MiB    or reading stops
    foreseen answers          see pace: how many of the items in flight have started

gRPC itself takes about 6 MB more before a write blocks.
"""

from __future__ import annotations

import asyncio
import contextvars
from dataclasses import dataclass, field, replace
from typing import Final

from lineside.v1.dispatch_pb2 import BatchItem, ToolCall
from lineside_service.core.call import Call
from lineside_service.core.deadline import reply_margin_s
from lineside_service.core.errors import Failure
from lineside_service.edge.answers import fill_answer
from lineside_service.edge.facade import Catalogue, Dispatching
from lineside_service.edge.faults import fault_fields
from lineside_service.edge.frames import (
    Outgoing,
    join,
    next_frame,
    outgoing_frame_error,
    outgoing_item,
    read_frame,
)
from lineside_service.edge.intake import MAX_KEY, Circumstances, both_forms, read_call
from lineside_service.edge.pace import Pace, UsualSizes
from lineside_service.edge.refusals import bad_field, caller_left, draining, fault
from lineside_service.edge.rpc import RawContext, Rpc, next_raw, write_raw
from lineside_service.edge.signal import Signal
from lineside_service.edge.spans import EdgeTelemetry, ItemTrace, own_context
from lineside_service.edge.status import status_of
from lineside_service.edge.trailers import FRAMES_KEY
from lineside_service.engine.eager import EagerTasks, Ended
from lineside_service.engine.sources import Sources

MAX_ITEMS: Final = 256
MAX_UNSENT: Final = 1024 * 1024
_TURN_S: Final = 0.002
"""How long items are started before the loop gets its turn: a full frame, or a few large items, would hold up
everybody else. Small items of a frame of 64 end within one or two turns, and so in one or two frames of
answers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What stands behind every stream. usual: how large answers are, learned by all streams together."""

    dispatcher: Dispatching
    catalogue: Catalogue
    telemetry: EdgeTelemetry
    sources: Sources
    usual: UsualSizes = field(default_factory=UsualSizes)
    tasks: EagerTasks = field(default_factory=EagerTasks)


class BatchStream:
    """One stream from its first frame to its status. number: its identity, for fairness between streams."""

    __slots__ = (
        "_behind",
        "_closed",
        "_context",
        "_draining",
        "_frames",
        "_ids",
        "_latest",
        "_mid_frame",
        "_number",
        "_pace",
        "_read_all",
        "_ready",
        "_refusal",
        "_room",
        "_rpc",
        "_tasks",
        "_wake",
        "in_flight",
    )

    def __init__(self, behind: Behind, rpc: Rpc, context: RawContext, number: int) -> None:
        self._behind = behind
        self._rpc = rpc
        self._context = context
        self._number = number
        self._latest = None if rpc.left_s is None else rpc.arrival + rpc.left_s - reply_margin_s(rpc.left_s)
        self._frames = 0
        self.in_flight = 0
        self._pace = Pace(behind.usual)
        self._ids: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: list[Outgoing] = []
        self._wake = Signal()
        self._room = Signal()
        self._mid_frame = False
        self._read_all = False
        self._draining = False
        self._refusal: Failure | None = None
        self._closed = False

    def drain(self) -> None:
        """Take no further frame; end once what was taken is answered."""
        self._draining = True
        self._wake.set()

    async def run(self) -> Failure | None:
        """Serve the stream to its own status.

        OK after a half-close, UNAVAILABLE after a drain; the refusal when the caller's credential has ended
        meanwhile, and with it the frames that are taken.
        """
        reader = asyncio.get_running_loop().create_task(self._read())
        reader.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._is_over(reader):
                if self._ready:
                    await self._write()
                else:
                    await self._wake.wait()
        finally:
            self._closed = True
            reader.cancel()
            for task in self._tasks:
                task.cancel()
        if self._read_all:
            return None
        self._rpc.trailers = ((FRAMES_KEY, str(self._frames)),)
        return self._refusal or replace(draining(), pushback_safe=not self._frames)

    def _is_over(self, reader: asyncio.Task[None]) -> bool:
        if reader.done() and not reader.cancelled() and (error := reader.exception()) is not None:
            raise error
        stopped = reader.done() or (self._draining and not self._mid_frame)
        return stopped and not self.in_flight and not self._ready

    # -- reading ----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while (raw := await self._next_frame()) is not None:
            self._frames += 1
            self._mid_frame = True
            await self._take(raw)
            self._mid_frame = False

    async def _next_frame(self) -> bytes | None:
        """The next frame to take; None after a half-close, or when no more is taken."""
        await self._until_room()
        if self._draining:
            return None
        raw = await next_raw(self._context)
        self._read_all = raw is None
        self._refusal = None if raw is None else self._rpc.recheck()
        return None if self._is_draining() or self._refusal else raw

    def _is_draining(self) -> bool:
        return self._draining

    async def _take(self, raw: bytes) -> None:
        frame = read_frame(raw)
        if isinstance(frame, Failure):
            self._send(outgoing_frame_error(frame, self._frames, self._rpc.trace.trace_id))
            return
        now = self._behind.sources.now
        arrival = began = now()
        for index, wire in enumerate(frame.calls):
            if not self._has_room():
                await self._until_room()
                began = now()
            self.in_flight += 1
            self._start(wire, arrival, both_forms() if index in frame.both_forms else None)
            if now() - began > _TURN_S:
                await asyncio.sleep(0)
                began = now()

    async def _until_room(self) -> None:
        while not self._has_room():
            await self._room.wait()

    def _has_room(self) -> bool:
        return self.in_flight < MAX_ITEMS and self._pace.unsent < MAX_UNSENT

    # -- items ------------------------------------------------------------------------------------------

    def _start(self, wire: ToolCall, arrival: float, refusal: Failure | None) -> None:
        tenant = self._rpc.identity.tenant
        registered = self._behind.catalogue.find(wire.tool, tenant)
        name = "" if registered is None else registered.spec.name
        own = None
        if wire.HasField("trace_context"):
            own = own_context(wire.trace_context.traceparent, wire.trace_context.tracestate)
        item = self._behind.telemetry.begin_item(name, wire.item_id[:MAX_KEY], own, self._rpc.trace)
        call = (
            self._check_id(wire.item_id)
            or refusal
            or read_call(
                wire,
                Circumstances(
                    tenant=tenant,
                    arrival=arrival,
                    latest=self._latest,
                    patient=True,
                    stream=self._number,
                    parent=item.context,
                    is_traced=not item.is_left_out,
                ),
            )
        )
        if isinstance(call, Failure):
            self._refuse(wire.item_id, item, call)
            return
        as_struct = wire.HasField("arguments")
        slots = MAX_ITEMS if registered is None else registered.spec.concurrency
        running = self._behind.tasks.start(
            self._run_item(wire.item_id, call, item, as_struct=as_struct, slots=slots),
            "batch:item",
            contextvars.copy_context(),
        )
        if not isinstance(running, Ended):
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    def _check_id(self, item_id: str) -> Failure | None:
        if not 1 <= len(item_id) <= MAX_KEY:
            text = f"{len(item_id)} characters: 1-{MAX_KEY} on a stream"
            return bad_field("call.item_id", text, "LENGTH")
        # The hash stands for the id: 64 keyed bits, so that a long stream does not keep every text.
        digest = hash(item_id)
        if digest in self._ids:
            return bad_field("call.item_id", "was used on this stream before: it must be unique", "DUPLICATE")
        self._ids.add(digest)
        return None

    async def _run_item(
        self, item_id: str, call: Call, item: ItemTrace, *, as_struct: bool, slots: int
    ) -> None:
        failure: Failure | None = None
        answered = BatchItem(item_id=item_id)
        try:
            started = self._pace.at_once(call.tool, slots) or await self._pace.start(
                call.tool, slots, call.deadline
            )
        except asyncio.CancelledError:
            item.end(caller_left())
            raise
        try:
            reply = await self._behind.dispatcher.dispatch(call)
            item.ran(reply)
            if isinstance(reply, Failure):
                failure = reply
            else:
                failure = fill_answer(answered.answer, reply, as_struct=as_struct, trace_id=item.trace_id)
        except asyncio.CancelledError as error:
            if self._closed:
                item.end(caller_left())
                raise
            failure = self._fault(error)
        except Exception as error:  # noqa: BLE001 - the border: one bad item never ends the stream
            failure = self._fault(error)
        if failure is not None:
            self._refuse(item_id, item, failure)
        else:
            item.end(None)
            outgoing = outgoing_item(answered)
            self._behind.usual.learn(call.tool, outgoing.size)
            self._send(outgoing)
        self._pace.end(started)

    def _refuse(self, item_id: str, item: ItemTrace, failure: Failure) -> None:
        item.end(failure)
        error = status_of(failure, trace_id=item.trace_id)
        self._send(outgoing_item(BatchItem(item_id=item_id[:MAX_KEY], error=error)))

    def _fault(self, error: BaseException) -> Failure:
        self._behind.telemetry.log.error("item.fault", **fault_fields(error))
        return fault()

    # -- writing ----------------------------------------------------------------------------------------

    def _send(self, one: Outgoing) -> None:
        self._ready.append(one)
        self._pace.unsent += one.size
        self._wake.set()

    async def _write(self) -> None:
        count = next_frame(self._ready)
        written = self._ready[:count]
        del self._ready[:count]
        items, frame = sum(one.is_item for one in written), join(written)
        del written  # the answers live on in the frame alone
        await write_raw(self._context, frame)
        self.in_flight -= items
        self._pace.unsent -= len(frame)
        self._pace.resume()
        self._room.set()
