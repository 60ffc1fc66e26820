"""Text that may leave the service: valid UTF-8, bounded in bytes, marked where it was cut."""

from __future__ import annotations

from typing import Final

CUT_MARK: Final = " [cut]"


def clean(text: str) -> str:
    """The text with every lone surrogate replaced by U+FFFD, so that it can be encoded."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def cut(text: str, limit_bytes: int) -> str:
    """The cleaned text in at most `limit_bytes` of UTF-8, cut on a character boundary and marked."""
    if len(text) > limit_bytes:
        # A character is at least one byte: what lies beyond can never fit, so it is not even looked at.
        text = text[: limit_bytes + 1]
    encoded = clean(text).encode()
    if len(encoded) <= limit_bytes:
        return encoded.decode()
    kept = encoded[: max(limit_bytes - len(CUT_MARK), 0)].decode(errors="ignore")
    return kept + CUT_MARK
