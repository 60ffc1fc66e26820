"""When the replies of calls with one and the same deadline are sent: not all at that moment.

One event loop writes them, one after the other, and a reply that is written after its margin comes too late:
the caller has gone with a bare DEADLINE_EXCEEDED. So each RPC books the time that its reply would take, at
the end of its time or as shortly before as there is room. A call that shares its moment with nobody loses
nothing. Decision 7 in docs/adr.
"""

from __future__ import annotations

from typing import Final

TICK_S: Final = 0.004
"""Room is counted by ticks of this many seconds; what is due in one takes well less than the reply margin."""
PER_TICK: Final = 10
"""Replies there is room for in a tick. Measured: a timed-out call costs the loop 0.2 ms all in all, and up to
0.4 ms where others dispute its cores.
"""
KEYED: Final = 2
"""Replies that one to a keyed call counts for: its end is written first."""
MAX_EARLY_SHARE: Final = 0.25
MAX_EARLY_S: Final = 0.2
"""Most that a call ends earlier for the sake of others: the smaller of this and the share of its time."""


class ReplyTimes:
    """The replies that are due at most, by tick of the loop's clock."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[int, int] = {}

    def book(self, latest: float, left_s: float, replies: int = 1) -> float:
        """Book a reply at `latest`, or as shortly before as there is room; the moment, for `release` too.

        latest: loop time; left_s: seconds until then. Where room is nowhere in all of the time that the call
        may end early, it is the least crowded moment.
        """
        due, last = self._due, int(latest / TICK_S)
        tick, count = last, due.get(last, 0)
        if count >= PER_TICK:
            tick, count = self._roomier(last, count, int((latest - _early_s(left_s)) / TICK_S))
        due[tick] = count + replies
        # A quarter into the tick is inside of it whatever the rounding.
        return latest if tick == last else (tick + 0.25) * TICK_S

    def release(self, moment: float, replies: int = 1) -> None:
        """The reply that was booked at this moment is sent, or nobody waits for it any more."""
        due, tick = self._due, int(moment / TICK_S)
        left = due[tick] - replies
        if left:
            due[tick] = left
        else:
            del due[tick]

    def _roomier(self, last: int, count: int, first: int) -> tuple[int, int]:
        """The latest tick with room after `first`, else the least crowded one; and what is due there."""
        best, least = last, count
        for tick in range(last - 1, first, -1):
            count = self._due.get(tick, 0)
            if count < least:
                best, least = tick, count
                if count < PER_TICK:
                    break
        return best, least


def _early_s(left_s: float) -> float:
    return min(MAX_EARLY_S, MAX_EARLY_SHARE * max(left_s, 0.0))
