"""When a client may send a call again by itself. Pure: the clock and the draw are arguments.

Retrying is the service's work; a client repeats only what the wire lost, and only under a key:

- a call without a key is never sent again: nobody could tell whether it ran;
- a keyed call is, with the same key and within its deadline, after UNAVAILABLE without a DispatchError (the
  connection was lost), after CANCELLED without one that nobody on this side asked for (gRPC turned the RPC
  away unseen, or a stopping service let it drop), or with kind `unavailable` and a pushback of 0 or more
  (that long is waited);
- an outcome that an earlier sending left open stays UNKNOWN unless a later answer speaks of an execution.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpc import StatusCode

from lineside.call import MAX_CALL_BYTES, Call, require_size
from lineside.errors import Cancelled, ConnectionLost, DispatchError, InternalError, Unavailable
from lineside.v1 import dispatch_pb2
from lineside.vocabulary import ErrorKind, Next, Outcome
from lineside.wire import duration

DEFAULT_TIMEOUT_S = 60.0
"""Time for a call that states none; the service's own default too."""
MIN_TIME_LEFT_S = 0.005
"""With less time left nothing is sent: the service would start no attempt either."""
REPLY_MARGIN_S = 0.020
REPLY_MARGIN_SHARE = 0.10
"""By the smaller of the two a call's time ends before its RPC's, so that the typed answer is there first.

The service keeps the same margin of the RPC's time, but sees that time only as `grpc-timeout` tells it, and
gRPC's C core, which is below this client, rounds that up: measured with grpcio 1.76 and 1.85, 10 s arrive as
10.1 s. `call_timeout` says it exactly. The service takes the earlier of both, so the margins do not add up.
"""
MAX_RECONNECTS = 12
"""Streams of a batch in a row that end without an answer before it gives up: with the pauses about 12 to 20
s.
"""
_REFUSED_AT_THE_DOOR = (ErrorKind.UNAUTHENTICATED, ErrorKind.PERMISSION_DENIED, ErrorKind.UNIMPLEMENTED)


def backoff_s(resends: int, u: float) -> float:
    """The pause before the next sending, 50 ms doubled each time up to 2 s, times 0.5 to 1. u: uniform in
    [0, 1).
    """
    return min(2.0, 0.05 * 2.0 ** min(resends, 16)) * (0.5 + u / 2)


def resend_wait_s(error: DispatchError, pushback_s: float | None, resends: int, u: float) -> float | None:
    """Seconds to wait before a keyed call is sent again; None = it is not."""
    if isinstance(error, ConnectionLost) or _is_dropped(error):
        if pushback_s is not None:
            return None if pushback_s < 0 else pushback_s
        return backoff_s(resends, u)
    if type(error) is Unavailable and pushback_s is not None and pushback_s >= 0:
        # A service that says "at once" over and over would be asked in a tight loop.
        return max(pushback_s, backoff_s(resends, u)) if resends else pushback_s
    return None


def _is_dropped(error: DispatchError) -> bool:
    """Whether it is a CANCELLED of which the service did not say why; the caller's own cancel is no error."""
    return type(error) is Cancelled and not error.metadata and not error.call_id


def since_lost(error: DispatchError) -> DispatchError:
    """The error as it reads when an earlier sending of the call was lost on its way, its outcome open."""
    if error.call_id or error.outcome is not Outcome.NOT_RUN:
        return error
    return error.with_outcome(Outcome.UNKNOWN)


@dataclass(slots=True)
class Sending:
    """One unary call on its way, over all its sendings.

    deadline: on the clock whose `now` is handed in, seconds. resends: sendings after the first. is_open: an
    earlier sending was lost and may have run.
    """

    wire: dispatch_pb2.ToolCall
    deadline: float
    resends: int = 0
    is_open: bool = False

    def request(self, now: float) -> tuple[dispatch_pb2.DispatchRequest, float]:
        """The next request and the RPC's timeout, seconds."""
        left_s = self.deadline - now
        margin_s = min(REPLY_MARGIN_S, REPLY_MARGIN_SHARE * left_s)
        self.wire.call_timeout.CopyFrom(duration(left_s - margin_s))
        return dispatch_pb2.DispatchRequest(call=self.wire), left_s

    def after(self, error: DispatchError, pushback_s: float | None, now: float, u: float) -> float:
        """Seconds until the call may be sent again; raises the error when it may not, or there is no time."""
        error = since_lost(error) if self.is_open else error
        if not self.wire.HasField("idempotency_key"):
            raise error
        wait_s = resend_wait_s(error, pushback_s, self.resends, u)
        if wait_s is None or now + wait_s + MIN_TIME_LEFT_S > self.deadline:
            raise error
        self.resends += 1
        self.is_open = self.is_open or error.outcome is Outcome.UNKNOWN
        return wait_s


def sending(call: Call, timeout_s: float, now: float) -> Sending:
    """The call, ready to be sent. timeout_s: for a call that states none. Raises SchemaError for a
    malformed one.
    """
    wire = call.to_wire()
    require_size("call", wire.ByteSize(), MAX_CALL_BYTES)
    return Sending(wire, now + (call.timeout_s if call.timeout_s is not None else timeout_s))


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a batch stream ended.

    error: as a unary call would have got it. frames_accepted: how many frames the service took, None when
    it did not say. pushback_s: its word on sending again.
    """

    error: DispatchError
    frames_accepted: int | None = None
    pushback_s: float | None = None

    def took(self, frame: int) -> bool:
        """Whether the service may have begun on the calls of this frame, counted from 1."""
        if self.frames_accepted is not None:
            return frame <= self.frames_accepted
        # Never reached, or refused at the door before anything was read.
        return self.error.outcome is not Outcome.NOT_RUN and self.error.kind not in _REFUSED_AT_THE_DOOR

    @property
    def may_resume(self) -> bool:
        """Whether another stream may do better: the service drained, or the connection broke."""
        if self.frames_accepted is not None and self.error.kind is ErrorKind.UNAVAILABLE:
            return True
        if isinstance(self.error, ConnectionLost):
            return self.pushback_s is None or self.pushback_s >= 0
        if type(self.error) is Unavailable:
            return self.pushback_s is not None and self.pushback_s >= 0
        # Reset by a proxy in between, or ended OK before every answer was there: nobody of the service said
        # why.
        return not self.error.metadata and self.error.kind in (ErrorKind.INTERNAL, ErrorKind.CANCELLED)

    def wait_s(self, resends: int, u: float) -> float:
        """Seconds until another stream is opened."""
        return max(self.pushback_s or 0.0, backoff_s(resends, u))


CLOSED = "the client was closed while calls were under way"
ABANDONED = StreamEnd(
    Cancelled(CLOSED, code=StatusCode.CANCELLED, outcome=Outcome.UNKNOWN, next=(Next.STOP,))
)
"""A stream that nobody on this side can go on with: the client was closed."""

ENDED_EARLY = StreamEnd(
    InternalError(
        "the stream ended before every call was answered", code=StatusCode.OK, outcome=Outcome.UNKNOWN
    )
)
"""A stream that ended OK with answers missing: no service does that, something in between may."""
