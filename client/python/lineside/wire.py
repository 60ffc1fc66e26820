"""Between protobuf's shapes and plain ones: enums, durations, timestamps, JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_E = TypeVar("_E", bound=StrEnum)

MAX_TIMEOUT_S = 366 * 86400.0
"""Longer times are cut to this (about a year): the service counts everything over 600 s as 600 s anyway."""


def word(enum: type[_E], name_of: Callable[[Any], str], number: int, prefix: str) -> _E | None:
    """The enum's member for a number off the wire; None for 0 and for a number that this release does not
    know.

    name_of is the generated enum's `Name`; it raises ValueError for a number it does not have.
    """
    try:
        return enum(name_of(number).removeprefix(prefix).lower())
    except ValueError:
        return None


def seconds_of(message: Message, field: str) -> float | None:
    """A Duration field in seconds; None when it is absent."""
    if not message.HasField(field):
        return None
    duration: Duration = getattr(message, field)
    return duration.seconds + duration.nanos / 1e9


def moment_of(message: Message, field: str) -> datetime | None:
    """A Timestamp field as an aware datetime in UTC, to the microsecond; None when it is absent."""
    if not message.HasField(field):
        return None
    stamp: Timestamp = getattr(message, field)
    return stamp.ToDatetime(tzinfo=UTC)


def duration(seconds: float) -> Duration:
    """A Duration of so many seconds, to the nanosecond; at most MAX_TIMEOUT_S."""
    fraction, whole = math.modf(min(seconds, MAX_TIMEOUT_S))
    return Duration(seconds=int(whole), nanos=int(fraction * 1e9))


def json_bytes(value: Any) -> bytes:
    """The UTF-8 JSON text of a value; bytes are taken for such text already and pass as they are.

    Raises ValueError for NaN, infinities, lone surrogates, cycles and nesting too deep for the encoder,
    TypeError for what JSON has no form for.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise ValueError("nested too deep to be written as JSON") from None
    return text.encode("utf-8")


def result_of(message: Message, *, form: str, json_field: str, value_field: str) -> tuple[bool, Any]:
    """Whether the message holds a result, and the result as plain Python values."""
    held = message.WhichOneof(form)
    if held == json_field:
        return True, json.loads(getattr(message, json_field))
    if held == value_field:
        return True, MessageToDict(getattr(message, value_field))
    return False, None
