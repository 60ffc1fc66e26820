"""The demo's faults: pure functions of a seed and a call's place, so that every run meets the same ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

__all__ = ["CallerFaults", "Fault", "broken_arguments", "caller_faults", "fault_at"]

FAIL_BEFORE = 0.20
HANG_BEFORE = 0.05
HANG_AFTER = 0.01
"""Shares of arrivals that fail before their effect, hang before it, hang after it."""

MAX_HANGS_IN_A_ROW = 2

SENT_TWICE = 0.10
SENT_AGAIN = 0.10
SENT_BROKEN = 0.03
"""Shares of calls sent twice at once, again afterwards, first with broken arguments; independent draws."""

UNKNOWN_PROPERTY = "no_such_argument"


class Fault(Enum):
    """What the upstream does to one arrival of a call."""

    NONE = "none"
    FAIL_BEFORE = "fails before its effect"
    HANG_BEFORE = "hangs before its effect"
    HANG_AFTER = "hangs after its effect"


_HANGS = frozenset({Fault.HANG_BEFORE, Fault.HANG_AFTER})


@dataclass(frozen=True, kw_only=True)
class CallerFaults:
    """How a caller misbehaves with one call."""

    twice: bool
    again: bool
    broken: bool


def fault_at(seed: int, key: str, arrival: int) -> Fault:
    """Return the fault of the `arrival`-th arrival (from 0) of the call `key` = `conversation:turn:index`.

    A draw that would be the third hang in a row is no fault.
    """
    hangs = 0
    for count in range(arrival + 1):
        fault = _drawn(_uniform(seed, key, str(count)))
        if fault in _HANGS and hangs == MAX_HANGS_IN_A_ROW:
            fault = Fault.NONE
        hangs = hangs + 1 if fault in _HANGS else 0
    return fault


def caller_faults(seed: int, key: str) -> CallerFaults:
    """Return what the caller does besides sending the call `key` once."""
    return CallerFaults(
        twice=_uniform(seed, key, "twice") < SENT_TWICE,
        again=_uniform(seed, key, "again") < SENT_AGAIN,
        broken=_uniform(seed, key, "broken") < SENT_BROKEN,
    )


def broken_arguments(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return `arguments` without the last required one of the method's own, else with an unknown property.

    The conversation is required by every tool and stands first, so it is never the one taken away.
    """
    own_required = list(islice(schema["required"], 1, None))
    if own_required:
        return {name: value for name, value in arguments.items() if name != own_required[-1]}
    return {**arguments, UNKNOWN_PROPERTY: True}


def _drawn(u: float) -> Fault:
    if u < FAIL_BEFORE:
        return Fault.FAIL_BEFORE
    if u < FAIL_BEFORE + HANG_BEFORE:
        return Fault.HANG_BEFORE
    if u < FAIL_BEFORE + HANG_BEFORE + HANG_AFTER:
        return Fault.HANG_AFTER
    return Fault.NONE


def _uniform(seed: int, *place: str) -> float:
    """Return a number in [0, 1) that depends on the seed and the place alone."""
    hashed = hashlib.sha256("/".join((str(seed), *place)).encode()).digest()
    return int.from_bytes(hashed[:8], "big") / 2**64
