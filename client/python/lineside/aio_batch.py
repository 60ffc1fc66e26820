"""The batch stream on asyncio: three tasks around one `Outbox`.

feeder   reads the caller's calls while the window has room
carrier  keeps a stream open while there is something to send: its writer sends what is queued, frame by
frame, and
         the carrier itself reads answers, the next frame only when the caller has taken the last
caller   iterates and takes results
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from grpc import StatusCode
from grpc.aio import AioRpcError, StreamStreamCall

from lineside.answer import BatchResult
from lineside.call import Call
from lineside.outbox import Outbox
from lineside.resend import ABANDONED, ENDED_EARLY, MAX_RECONNECTS, MIN_TIME_LEFT_S, StreamEnd
from lineside.status import frames_accepted, from_rpc, pushback_s
from lineside.tracing import Inject
from lineside.v1 import dispatch_pb2

if TYPE_CHECKING:
    Stream = StreamStreamCall[dispatch_pb2.DispatchBatchRequest, dispatch_pb2.DispatchBatchResponse]

_T = TypeVar("_T")
_WRITE_FAILED: Final = "Internal error from Core"
_LATE_STATUS_S = 1.0


def is_cancelled() -> bool:
    """Whether the running task is being cancelled: grpcio raises CancelledError for a closed channel, too."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Pulse:
    """Wakes everyone who waits; a waiter looks again at what it waits for."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def beat(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def once(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self.once()


class _Ending:
    """The status that the service gave a stream.

    A write that fails because the stream ended puts a status of grpcio's own before it or over it (seen
    with 1.76.0), and the trailers are gone. So each status is noted in the moment it is set.
    """

    def __init__(self, stream: Stream) -> None:
        self._noted: tuple[StatusCode, str, list[tuple[str, str | bytes]]] | None = None
        self._is_noted = asyncio.Event()
        self._stream = stream
        stream.add_done_callback(self._note)

    async def status(self) -> tuple[StatusCode, str, list[tuple[str, str | bytes]]]:
        """Code, text and trailers, once the stream has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LATE_STATUS_S):
                await self._is_noted.wait()
        return self._noted or _status_of(self._stream)

    def _note(self, stream: Stream) -> None:
        status = _status_of(stream)
        if self._noted is None and status[1] != _WRITE_FAILED:
            self._noted = status
            self._is_noted.set()


def _status_of(stream: Stream) -> tuple[StatusCode, str, list[tuple[str, str | bytes]]]:
    trailers = _at_once(stream.trailing_metadata())
    return _at_once(stream.code()), _at_once(stream.details()) or "", list(trailers or ())


def _at_once(ready: Coroutine[object, object, _T]) -> _T:
    """The value of a coroutine that has nothing to wait for, as those of an RPC that is done."""
    try:
        ready.send(None)
    except StopIteration as done:
        value: _T = done.value
        return value
    ready.close()
    raise RuntimeError("the RPC is not done")


class AsyncBatch:
    """One batch on its way. `open_stream` starts an RPC with the seconds left for it (None = no limit)."""

    def __init__(
        self,
        calls: Iterable[Call] | AsyncIterable[Call],
        *,
        open_stream: Callable[[float | None], Stream],
        inject: Inject,
        draw: Callable[[], float],
        timeout_s: float | None,
    ) -> None:
        self._calls = calls
        self._open_stream = open_stream
        self._inject = inject
        self._draw = draw
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._outbox = Outbox()
        self._pulse = _Pulse()
        self._is_fed = False
        self._is_over = False
        self._failure: BaseException | None = None

    async def results(self) -> AsyncGenerator[BatchResult, None]:
        """The results as calls finish. Leaving early cancels what is under way."""
        tasks = [asyncio.create_task(self._feed()), asyncio.create_task(self._carry())]
        try:
            while True:
                await self._pulse.until(lambda: bool(self._outbox.results) or self._is_over)
                if not self._outbox.results:
                    break
                result = self._outbox.results.popleft()
                self._pulse.beat()
                yield result
            if self._failure is not None:
                raise self._failure
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self) -> None:
        try:
            stream_trace = self._inject()
            async for call in _each(self._calls):
                trace = self._inject()
                self._outbox.add(call, trace if trace != stream_trace else {})
                self._pulse.beat()
                await self._pulse.until(lambda: self._outbox.has_room)
        except Exception as error:  # noqa: BLE001 - the caller's own; raised after the results
            self._failure = error
        finally:
            self._is_fed = True
            self._pulse.beat()

    async def _carry(self) -> None:
        try:
            resumed = 0
            while True:
                await self._pulse.until(lambda: self._outbox.has_queued or self._is_fed)
                if not self._outbox.has_queued:
                    return
                end, has_heard = await self._one_stream()
                if end is None:
                    continue
                resumed = 0 if has_heard else resumed
                wait_s = end.wait_s(resumed, self._draw())
                if not end.may_resume or resumed >= MAX_RECONNECTS or self._is_late_in(wait_s):
                    self._give_up(end)
                    return
                self._outbox.broke(end)
                wait_s = self._outbox.expire(time.monotonic(), wait_s)
                self._pulse.beat()
                await asyncio.sleep(wait_s)
                self._outbox.expire(time.monotonic(), wait_s)
                self._pulse.beat()
                resumed += 1
        except Exception as error:  # noqa: BLE001 - the closed client's; raised where the caller iterates
            self._outbox.give_up(ABANDONED)
            self._failure = self._failure or error
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._give_up(ABANDONED)
        finally:
            self._is_over = True
            self._pulse.beat()

    async def _one_stream(self) -> tuple[StreamEnd | None, bool]:
        """Runs one stream; returns how it ended (None = all is answered) and whether anything was heard on
        it.
        """
        stream = self._open_stream(None if self._deadline is None else self._deadline - time.monotonic())
        ending = _Ending(stream)
        self._outbox.begin_stream()
        writer = asyncio.create_task(self._write(stream))
        has_heard = False
        try:
            with contextlib.suppress(AioRpcError):  # `ending` knows better
                async for response in stream:
                    has_heard = True
                    self._outbox.hear(response)
                    self._pulse.beat()
                    await self._pulse.until(lambda: not self._outbox.results)
            code, text, trailers = await ending.status()
        finally:
            # Cancelling the writer within a write would cancel the stream, hence only now.
            writer.cancel()
            stream.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        if code is StatusCode.OK:
            is_whole = not (self._outbox.has_unanswered or self._outbox.has_queued)
            return (None if is_whole else ENDED_EARLY), has_heard
        error = from_rpc(code, text, trailers, is_work=True)
        return StreamEnd(error, frames_accepted(trailers), pushback_s(trailers)), has_heard

    async def _write(self, stream: Stream) -> None:
        try:
            await stream.wait_for_connection()
            while True:
                await self._pulse.until(lambda: self._outbox.has_queued or self._is_fed)
                frame = self._outbox.next_frame(time.monotonic())
                self._pulse.beat()  # calls may have ended for want of time
                if frame is not None:
                    await stream.write(frame)
                elif self._is_fed:
                    await stream.done_writing()
                    return
        except (AioRpcError, asyncio.InvalidStateError):
            return  # the stream is over; its reader says why
        except Exception as error:
            self._failure = error
            stream.cancel()
            raise

    def _give_up(self, end: StreamEnd) -> None:
        self._outbox.give_up(end)
        if not self._is_fed and self._failure is None:
            self._failure = end.error

    def _is_late_in(self, wait_s: float) -> bool:
        return self._deadline is not None and time.monotonic() + wait_s + MIN_TIME_LEFT_S > self._deadline


async def _each(calls: Iterable[Call] | AsyncIterable[Call]) -> AsyncIterator[Call]:
    if isinstance(calls, AsyncIterable):
        async for call in calls:
            yield call
    else:
        for call in calls:
            yield call
