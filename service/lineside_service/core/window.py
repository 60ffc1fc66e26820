"""A count of events over a sliding window, in bounded memory."""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 20
"""Resolution: an event leaves after between 19/20 and 20/20 of the window, never later."""


class WindowCount:
    """How many events fell into the last `window_s` seconds, to a twentieth of the window.

    Adding and reading cost O(1) amortised; memory is 20 integers. `now` must not run backwards; a reading
    that does is counted in the present bucket.
    """

    __slots__ = ("_at", "_edge", "_ring", "_total", "_width_s", "window_s")

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._width_s = window_s / BUCKETS
        self.clear()

    def clear(self) -> None:
        """Forget every event."""
        self._ring = [0] * BUCKETS
        self._at = 0
        self._total = 0
        self._edge = float("-inf")

    def add(self, now: float, events: int = 1) -> None:
        """Count events at loop time `now`."""
        if now >= self._edge:
            self._advance(now)
        self._ring[self._at] += events
        self._total += events

    def count(self, now: float) -> int:
        """Events still inside the window at loop time `now`."""
        if now >= self._edge:
            self._advance(now)
        return self._total

    def peek(self, now: float) -> int:
        """The same as `count`, and nothing is moved: may be asked on any thread."""
        if now < self._edge:
            return self._total
        passed = int((now - self._edge) / self._width_s) + 1 if self._total else BUCKETS
        gone = sum(self._ring[(self._at + step) % BUCKETS] for step in range(1, min(passed, BUCKETS) + 1))
        return max(0, self._total - gone)

    def resized(self, window_s: float) -> WindowCount:
        """The same events in a window of another length, all taken as having happened in the last bucket."""
        other = WindowCount(window_s)
        if self._total:
            other.add(self._edge - self._width_s, self._total)
        return other

    def _advance(self, now: float) -> None:
        """Move to the bucket that holds `now`, emptying every bucket passed on the way."""
        if self._total == 0:  # nothing to forget: the grid starts anew here
            self._edge = now + self._width_s
            return
        passed = int((now - self._edge) / self._width_s) + 1
        if passed >= BUCKETS:
            self.clear()
            self._edge = now + self._width_s
            return
        for _ in range(passed):
            self._at = (self._at + 1) % BUCKETS
            self._total -= self._ring[self._at]
            self._ring[self._at] = 0
        self._edge += passed * self._width_s
