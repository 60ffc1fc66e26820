"""Time and chance, handed in once so that tests can own them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the engine gets time and chance from.

    now: the loop's monotonic clock, seconds; wall: Unix seconds; chance: one seeded or system random.
    """

    now: Callable[[], float]
    wall: Callable[[], float]
    chance: random.Random

    def new_call_id(self) -> str:
        """A UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then 74 random bits; time-ordered text."""
        millis = int(self.wall() * 1000) & 0xFFFF_FFFF_FFFF
        bits = self.chance.getrandbits(74)
        high, low = bits >> 62, bits & 0x3FFF_FFFF_FFFF_FFFF
        text = f"{millis << 80 | (0x7000 | high) << 64 | 1 << 63 | low:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
