"""The trailers that carry a failure: the rich status, and whether the channel may send again by itself."""

from __future__ import annotations

from typing import Final

from google.rpc.status_pb2 import Status

from lineside_service.core.errors import KIND_RULES, Failure, StatusCode

STATUS_KEY: Final = "grpc-status-details-bin"
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
FRAMES_KEY: Final = "lineside-frames-accepted"
MAX_PUSHBACK_MS: Final = 200
"""A draining instance spreads those who come again over this time (gRFC A6 honours it to the millisecond)."""

Trailers = tuple[tuple[str, str | bytes], ...]


def pushback_ms(failure: Failure, u: float) -> int | None:
    """What a retrying channel is told, None = nothing. u: uniform in [0, 1).

    Every UNAVAILABLE says something: after a first attempt, or for a Dispatch that may not be repeated, -1;
    otherwise a moment's wait. Other codes are never retried by a channel that follows the published config.
    """
    if KIND_RULES[failure.kind].code is not StatusCode.UNAVAILABLE:
        return None
    if failure.attempts or not failure.pushback_safe:
        return -1
    return int(u * (MAX_PUSHBACK_MS + 1))


def trailers_of(failure: Failure, status: Status, u: float) -> Trailers:
    """The trailing metadata of an RPC that ends with this failure."""
    pushback = pushback_ms(failure, u)
    rich: Trailers = ((STATUS_KEY, status.SerializeToString()),)
    return rich if pushback is None else (*rich, (PUSHBACK_KEY, str(pushback)))
