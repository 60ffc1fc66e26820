"""What makes two calls the same: hashes over the arguments and over the scope of a key.

The canonical form is JSON with sorted keys, no white space, and one spelling per number:
- an integral number within +-2^53 is an integer, whatever its spelling (1, 1.0, 1e0); -0 is 0;
- a larger integer is exact, and stays apart from a float of the same size;
- any other float is the shortest decimal text that reads back as the same double.
Strings are compared code point by code point (no Unicode normalisation); null differs from absent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

_EXACT = 2**53
# A fraction or an exponent: the only spellings in which equal numbers can look different.
_FLOAT_LIKE = re.compile(rb"\d[.eE]")
_HASH_BYTES = 8

MAX_MEMBERS = 1000
"""Top-level members that are told apart: for 100,000 it would take longer than all the rest of the call."""

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def canonical(value: Any) -> bytes:
    """Write decoded JSON in the canonical form described above."""
    raw = _encode_sorted(value)
    return _encode_sorted(_settle(value)) if _FLOAT_LIKE.search(raw) else raw


def fingerprint(arguments: Mapping[str, Any]) -> bytes:
    """SHA-256 (32 bytes) over the canonical arguments, as sent: before defaults are filled in."""
    return hashlib.sha256(canonical(arguments)).digest()


def member_hashes(arguments: Mapping[str, Any], secret: bytes) -> dict[str, bytes]:
    """Hash each top-level member to 8 bytes (BLAKE2b keyed with `secret`, at most 64 bytes).

    They tell which members of two calls differ without keeping any value; the key stops guessing. Of more
    than MAX_MEMBERS there are none.
    """
    if len(arguments) > MAX_MEMBERS:
        return {}
    return {
        name: hashlib.blake2b(canonical(value), digest_size=_HASH_BYTES, key=secret).digest()
        for name, value in arguments.items()
    }


def differing_members(a: Mapping[str, bytes], b: Mapping[str, bytes]) -> tuple[str, ...]:
    """Name the top-level members that differ or stand on one side only, sorted."""
    return tuple(sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name)))


def scope_id(tenant: str, tool: str, key: str) -> bytes:
    """SHA-256 (32 bytes) of the scope of an idempotency key: the row's identity in every store."""
    return _hash_parts(tenant.encode(), tool.encode(), key.encode()).digest()


def downstream_key(tenant: str, tool: str, key: str, fingerprint: bytes) -> str:
    """Name the work to an upstream: hex SHA-256, the same on every attempt of one keyed call."""
    return _hash_parts(tenant.encode(), tool.encode(), key.encode(), fingerprint).hexdigest()


def _hash_parts(*parts: bytes) -> hashlib._Hash:
    """Hash parts so that no two lists of parts give the same bytes: each has its length in front."""
    return hashlib.sha256(b"".join([framed for part in parts for framed in (len(part).to_bytes(4), part)]))


def _settle(value: Any) -> Any:
    """Give every float its canonical number; depth is bounded by the decoder."""
    kind = type(value)
    if kind is float:
        return int(value) if -_EXACT <= value <= _EXACT and value.is_integer() else value
    if kind is dict:
        return {key: _settle(item) for key, item in value.items()}
    if kind is list:
        return [_settle(item) for item in value]
    return value
