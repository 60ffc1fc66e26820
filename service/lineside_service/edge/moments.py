"""Seconds as the contract writes them: Duration and Timestamp, and a Duration back to seconds."""

from __future__ import annotations

import math
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

MAX_DURATION_S: Final = 315_576_000_000
"""Largest magnitude a protobuf Duration may have (google/protobuf/duration.proto)."""

_NANO: Final = 1_000_000_000


def duration(seconds: float) -> Duration:
    """A Duration of that many seconds; negative counts as none, beyond the type's range as its largest."""
    made = Duration()
    set_duration(made, seconds)
    return made


def set_duration(field: Duration, seconds: float) -> None:
    """The same, into a field of a message."""
    bounded = min(max(seconds, 0.0), MAX_DURATION_S)
    whole = int(bounded)
    # Set even when 0: a field that was assigned to is there.
    field.seconds = whole
    field.nanos = min(int((bounded - whole) * _NANO), _NANO - 1)


def timestamp(unix_s: float) -> Timestamp:
    """A Timestamp of that many Unix seconds."""
    made = Timestamp()
    set_timestamp(made, unix_s)
    return made


def set_timestamp(field: Timestamp, unix_s: float) -> None:
    """The same, into a field of a message."""
    whole = math.floor(unix_s)
    field.seconds = whole
    field.nanos = min(int((unix_s - whole) * _NANO), _NANO - 1)


def seconds_of(value: Duration) -> float | None:
    """The seconds of a Duration; None when its parts are out of range or differ in sign."""
    seconds, nanos = value.seconds, value.nanos
    if abs(seconds) > MAX_DURATION_S or abs(nanos) >= _NANO or (seconds > 0 > nanos) or (seconds < 0 < nanos):
        return None
    return seconds + nanos / _NANO
