"""How much the arguments of one call may hold, so that no caller holds up all the others.

Decoding, checking and fingerprinting run on the event loop. At these bounds they take a quarter of a second
together, most of it for 100,000 names in one object (measured: Python 3.11, one core of a small machine).
All is counted in the text, before anything is decoded, and short text is not looked at.
"""

from __future__ import annotations

from typing import Final

from lineside_service.core.jsonfault import JSON_STRING, refusal

MAX_ARGUMENT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one call's arguments: JSON text, or the serialized Struct. As much as a frame of a batch."""

MAX_VALUES: Final = 100_000
"""Members of objects and items of arrays, at all levels together."""

LONG_NUMBER: Final = 500
"""Digits beyond which a number's time grows with their square; 500 is an integer of 1,660 bits."""

MAX_LONG_DIGITS: Final = 500_000
"""Digits of all long numbers together."""

UNMEASURED: Final = 2 * MAX_VALUES
"""Bytes of text that cannot break any of the bounds: a value takes two at least."""

_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
_LONG_RUN = b"0" * (LONG_NUMBER + 1)


def require_bounded(raw: bytes, field: str) -> None:
    """Raise JsonRefused, naming `field`, the bound and the size, when the text is over one of the bounds.

    Text that is not JSON may pass, or be refused for its size: what else is wrong, decoding says.
    """
    if len(raw) > MAX_ARGUMENT_BYTES:
        raise refusal(
            field,
            f"{len(raw)} bytes; the limit is {MAX_ARGUMENT_BYTES} (4 MiB)",
            "TOO_LARGE",
        )
    if values := values_beyond(raw, MAX_VALUES):
        raise refusal(field, too_many_values(values), "TOO_MANY_VALUES")
    if (digits := _long_digits(raw)) > MAX_LONG_DIGITS:
        raise refusal(
            field,
            f"{digits} digits in numbers of more than {LONG_NUMBER}; the limit of them together "
            f"is {MAX_LONG_DIGITS}",
            "TOO_MANY_DIGITS",
        )


def too_many_values(at_least: int) -> str:
    """Say that there are too many, in a sentence without its subject."""
    return f"at least {at_least} values (members and items at all levels); the limit is {MAX_VALUES}"


def values_beyond(raw: bytes, most: int) -> int:
    """How many values JSON text holds, if that is more than `most`, else 0.

    Exact, but for text with more quotes than `most` values can have: then it is as many as those need at
    least, because taking a million strings out takes longer than decoding them.
    """
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") <= most:
        return 0
    # A member has two strings at most, a string two quotes; a backslash may escape what follows, or be one.
    if (quotes := raw.count(b'"') - raw.count(b'\\"')) > 4 * most:
        return -(-quotes // 4)
    bare = JSON_STRING.sub(b"0", raw).translate(None, b" \t\r\n")
    # Each value follows a comma or, as a container's first one, its bracket.
    firsts = bare.count(b"[") + bare.count(b"{") - bare.count(b"[]") - bare.count(b"{}")
    values = bare.count(b",") + firsts
    return values if values > most else 0


def _long_digits(raw: bytes) -> int:
    """Count the digits of numbers longer than LONG_NUMBER; strings are only left out if there are any."""
    if len(raw) <= MAX_LONG_DIGITS or _LONG_RUN not in raw.translate(_DIGITS):
        return 0
    runs = JSON_STRING.sub(b" ", raw).translate(_DIGITS).split()
    return sum(len(run) for run in runs if len(run) > LONG_NUMBER)
