"""What the bytes of a request show and the parsed message does not, or too late.

Both forms of the arguments are one `oneof`, of which parsing keeps the last and drops the other without a
word. Dropping makes the parsed message smaller than what came, so the common road pays one size comparison
and never comes here. And arguments that are too large are found before parsing them has taken its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lineside.v1.dispatch_pb2 import DispatchBatchRequest, DispatchRequest, ToolCall

MAX_FIELDS: Final = 1000
"""Fields of one message that are looked at, the calls of a frame among them. A caller's call has a dozen;
millions of the same field, which parsing takes as one, would take seconds here."""

_NAMES: Final = {
    ToolCall.ARGUMENTS_FIELD_NUMBER: "arguments",
    ToolCall.ARGUMENTS_JSON_FIELD_NUMBER: "arguments_json",
}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class TooManyFields(Exception):
    """A message has more than MAX_FIELDS fields."""


def request_has_both_forms(raw: bytes, request: DispatchRequest) -> bool:
    """Whether the call of a unary request had both; raises TooManyFields.

    raw: what was parsed into `request`.
    """
    if len(raw) == request.ByteSize():
        return False
    # Several occurrences of a message field are merged, so their fields count together.
    parts = list(_occurrences(raw, DispatchRequest.CALL_FIELD_NUMBER))
    return {number for part in parts for number, _ in _fields(part)} >= _NAMES.keys()


def calls_with_both_forms(raw: bytes, frame: DispatchBatchRequest) -> frozenset[int]:
    """The positions, from 0, of the calls of a frame that had both; raises TooManyFields."""
    if len(raw) == frame.ByteSize():
        return frozenset()
    calls = enumerate(_occurrences(raw, DispatchBatchRequest.CALLS_FIELD_NUMBER))
    return frozenset(
        index for index, call in calls if {number for number, _ in _fields(call)} >= _NAMES.keys()
    )


def argument_bytes(raw: bytes) -> dict[str, int]:
    """The serialized size of each form of the arguments, by its name; raises TooManyFields.

    raw: a DispatchRequest, perhaps. Bytes that no parser would accept give sizes too, or none: what is wrong
    with them, parsing says.
    """
    sizes: dict[str, int] = {}
    try:
        for call in _occurrences(raw, DispatchRequest.CALL_FIELD_NUMBER):
            for number, content in _fields(call):
                if number in _NAMES:
                    sizes[_NAMES[number]] = sizes.get(_NAMES[number], 0) + len(content)
    except (IndexError, ValueError):
        return sizes
    return sizes


def _occurrences(raw: bytes, wanted: int) -> Iterator[bytes]:
    for number, content in _fields(raw):
        if number == wanted:
            yield content


def _fields(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """Field numbers with the content of length-delimited ones.

    IndexError or ValueError where bytes that no parser has accepted break off; TooManyFields.
    """
    at = count = 0
    while at < len(raw):
        count += 1
        if count > MAX_FIELDS:
            raise TooManyFields
        tag, at = _varint(raw, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _BYTES:
            length, at = _varint(raw, at)
            yield number, raw[at : at + length]
            at += length
        elif wire_type == _VARINT:
            _, at = _varint(raw, at)
            yield number, b""
        elif wire_type in (_FIXED64, _FIXED32):
            at += 8 if wire_type == _FIXED64 else 4
            yield number, b""
        else:
            return  # a group, which is unknown here: nothing of ours lies behind it


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while raw[at] & 0x80:
        if shift > 63:
            raise ValueError("a varint has ten bytes at most")
        value |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | raw[at] << shift, at + 1
