"""The batch stream on threads: the same `Outbox`, with a lock around it.

feeder   a thread that reads the caller's calls while the window has room
carrier  a thread that keeps a stream open while there is something to send, and reads the answers; gRPC's own
         thread takes frames from `_frames`
caller   iterates and takes results
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

import grpc

from lineside.answer import BatchResult
from lineside.call import Call
from lineside.outbox import Outbox
from lineside.resend import ABANDONED, ENDED_EARLY, MAX_RECONNECTS, MIN_TIME_LEFT_S, StreamEnd
from lineside.status import frames_accepted, from_rpc, pushback_s
from lineside.tracing import Inject
from lineside.v1 import dispatch_pb2

Frames = Iterator[dispatch_pb2.DispatchBatchRequest]
if TYPE_CHECKING:
    from grpc import _CallIterator

    Stream = _CallIterator[dispatch_pb2.DispatchBatchResponse]


class Batch:
    """One batch on its way. `open_stream` starts an RPC with its frames and the seconds left for it."""

    def __init__(
        self,
        calls: Iterable[Call],
        *,
        open_stream: Callable[[Frames, float | None], Stream],
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
        self._changed = threading.Condition()
        self._is_fed = False
        self._is_over = False
        self._is_left = False  # the caller stopped iterating
        self._failure: Exception | None = None
        self._stream: Stream | None = None

    def results(self) -> Generator[BatchResult, None, None]:
        """The results as calls finish. Leaving early cancels what is under way."""
        feeder = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._feed,),
            name="lineside-batch-feeder",
            daemon=True,
        )
        carrier = threading.Thread(target=self._carry, name="lineside-batch-carrier", daemon=True)
        feeder.start()
        carrier.start()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._outbox.results or self._is_over)
                    if not self._outbox.results:
                        break
                    result = self._outbox.results.popleft()
                    self._changed.notify_all()
                yield result
            if self._failure is not None:
                raise self._failure
        finally:
            with self._changed:
                self._is_left = True
                if self._stream is not None:
                    self._stream.cancel()
                self._changed.notify_all()
            carrier.join()
            # The feeder may sit in the caller's own iterable for ever: it ends when that yields.

    def _feed(self) -> None:
        failure: Exception | None = None
        try:
            stream_trace = self._inject()
            for call in self._calls:
                trace = self._inject()
                with self._changed:
                    self._outbox.add(call, trace if trace != stream_trace else {})
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._outbox.has_room or self._is_done())
                    if self._is_done():
                        return
        except Exception as error:  # noqa: BLE001 - the caller's own; raised after the results
            failure = error
        finally:
            with self._changed:
                self._failure = self._failure or failure
                self._is_fed = True
                self._changed.notify_all()

    def _is_done(self) -> bool:
        return self._is_left or self._is_over

    def _carry(self) -> None:
        try:
            resumed = 0
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._outbox.has_queued or self._is_fed or self._is_left)
                    if self._is_left or not self._outbox.has_queued:
                        return
                end, has_heard = self._one_stream()
                if end is None:
                    continue
                resumed = 0 if has_heard else resumed
                wait_s = end.wait_s(resumed, self._draw())
                with self._changed:
                    if not end.may_resume or resumed >= MAX_RECONNECTS or self._is_late_in(wait_s):
                        self._give_up(end)
                        return
                    self._outbox.broke(end)
                    wait_s = self._outbox.expire(time.monotonic(), wait_s)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._is_left, wait_s)
                    self._outbox.expire(time.monotonic(), wait_s)
                    self._changed.notify_all()
                resumed += 1
        except Exception as error:  # noqa: BLE001 - the closed client's; raised where the caller iterates
            with self._changed:
                self._outbox.give_up(ABANDONED)
                self._failure = self._failure or error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _one_stream(self) -> tuple[StreamEnd | None, bool]:
        """Runs one stream; returns how it ended (None = all is answered) and whether anything was heard."""
        is_ended = threading.Event()
        with self._changed:
            if self._is_left:
                return None, False
            self._outbox.begin_stream()
            left_s = None if self._deadline is None else self._deadline - time.monotonic()
            stream = self._stream = self._open_stream(self._frames(is_ended), left_s)
        has_heard = False
        try:
            for response in stream:
                has_heard = True
                with self._changed:
                    self._outbox.hear(response)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: not self._outbox.results or self._is_left)
        except grpc.RpcError:
            pass  # the stream itself tells how it ended
        finally:
            with self._changed:
                is_ended.set()
                self._stream = None
                self._changed.notify_all()
        if stream.code() is grpc.StatusCode.OK:
            is_whole = not (self._outbox.has_unanswered or self._outbox.has_queued)
            return (None if is_whole else ENDED_EARLY), has_heard
        trailers = list(stream.trailing_metadata() or ())
        error = from_rpc(stream.code(), stream.details() or "", trailers, is_work=True)
        return StreamEnd(error, frames_accepted(trailers), pushback_s(trailers)), has_heard

    def _frames(self, is_ended: threading.Event) -> Frames:
        """The frames of one stream, for gRPC's own thread."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._outbox.has_queued or self._is_fed or self._is_left or is_ended.is_set()
                )
                if self._is_left or is_ended.is_set():
                    return
                frame = self._outbox.next_frame(time.monotonic())
                self._changed.notify_all()  # calls may have ended for want of time
                if frame is None and self._is_fed:
                    return
            if frame is not None:
                yield frame

    def _give_up(self, end: StreamEnd) -> None:
        self._outbox.give_up(end)
        if not self._is_fed and self._failure is None:
            self._failure = end.error

    def _is_late_in(self, wait_s: float) -> bool:
        return self._deadline is not None and time.monotonic() + wait_s + MIN_TIME_LEFT_S > self._deadline
