"""When the replies of calls with one and the same deadline are sent: not all at that moment.

One event loop writes them, one after the other, and a reply that is written after its margin comes too late:
the caller has gone with a bare DEADLINE_EXCEEDED. So each RPC books the time that its reply would take, at
the end of its time or as shortly before as there is room. A call that shares its moment with nobody loses
nothing. Decision 7 in docs/adr.
"""

from __future__ import annotations

from typing import Final

REPLY_S: Final = 0.000_25
"""What a timed-out call costs the loop, all in all, on cores that the callers share (measured)."""
TICK_S: Final = 0.004
"""Room is counted by ticks of this many seconds; a tick's replies take a fraction of the reply margin."""
PER_TICK: Final = round(TICK_S / REPLY_S)
MAX_EARLY_SHARE: Final = 0.25
MAX_EARLY_S: Final = 0.1
"""Most that a call ends earlier for the sake of others: the smaller of this and the share of its time."""


class ReplyTimes:
    """The replies that are due at most, by tick of the loop's clock."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[int, int] = {}

    def book(self, latest: float, left_s: float) -> float:
        """Book a reply at `latest`, or as shortly before as there is room; the moment, for `release` too.

        latest: loop time; left_s: seconds until then. Without room in all of the time that the call may end
        early it is `latest`: who comes last then waits for the others, and they do not wait for it.
        """
        due, tick = self._due, int(latest / TICK_S)
        count = due.get(tick, 0)
        if count < PER_TICK:
            due[tick] = count + 1
            return latest
        for earlier in range(tick - 1, int((latest - _early_s(left_s)) / TICK_S), -1):
            count = due.get(earlier, 0)
            if count < PER_TICK:
                due[earlier] = count + 1
                return (earlier + 0.25) * TICK_S  # well inside its tick, whatever the rounding
        due[tick] += 1
        return latest

    def release(self, moment: float) -> None:
        """The reply that was booked at this moment is sent, or nobody waits for it any more."""
        due, tick = self._due, int(moment / TICK_S)
        left = due[tick] - 1
        if left:
            due[tick] = left
        else:
            del due[tick]


def _early_s(left_s: float) -> float:
    return min(MAX_EARLY_S, MAX_EARLY_SHARE * max(left_s, 0.0))
