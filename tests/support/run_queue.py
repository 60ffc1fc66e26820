"""How long threads were ready to run and had no core: the part of a delay that is the machine's.

Linux counts it for every thread (the second number in `/proc/<pid>/task/<tid>/schedstat`, ns), and it has
nothing to do with what a thread does with its time: one that sleeps, blocks or computes for too long waits
for no core. What a hypervisor took (`steal` in `/proc/stat`) counts the same. Where the kernel keeps no such
account, the waits are 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_LOOKS_EVERY_S = 0.005


def waited_s(pid: int) -> float:
    """Seconds that the first thread of a process has waited for a core since it was born."""
    return dict(_threads(pid)).get(str(pid), 0.0)


def _threads(pid: int) -> Iterator[tuple[str, float]]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile, or no account
            yield task.name, int((task / "schedstat").read_text().split()[1]) / 1e9


def _stolen() -> tuple[str, float]:
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()
    return "steal", int(fields[8]) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Slot:
    """Between two looks, by the loop's clock: how long threads had no core, at most as long as it is."""

    began: float
    ended: float
    lost_s: float = 0.0

    def lose(self, length_s: float) -> float:
        """Put a thread's wait that was over at the end into this slot; what of it began earlier."""
        within_s = min(length_s, self.ended - self.began)
        self.lost_s = min(self.lost_s + within_s, self.ended - self.began)
        return length_s - within_s

    def lost_within_s(self, begin: float, end: float) -> float:
        """The part that falls into a span of time, if the loss was even."""
        overlap_s = min(end, self.ended) - max(begin, self.began)
        return max(0.0, overlap_s) / (self.ended - self.began) * self.lost_s


class RunQueue:
    """The waits of this process and others while a block runs."""

    def __init__(self, *pids: int) -> None:
        self._pids = (os.getpid(), *pids)
        self._loop = asyncio.get_running_loop()
        self._seen = self._totals()
        self._at = self._loop.time()
        self._slots: list[Slot] = []
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        """Begin to look."""
        self._timer = self._loop.call_later(_LOOKS_EVERY_S, self._look_again)
        return self

    def __exit__(self, *_: object) -> None:
        """The block is over."""
        assert self._timer is not None
        self._timer.cancel()
        self._look()

    def lost_s(self, begin: float, end: float) -> float:
        """Seconds without a core between two moments of the loop's clock in the block, which is over."""
        first = max(0, bisect(self._slots, begin, key=lambda slot: slot.began) - 1)
        reached = itertools.takewhile(lambda slot: slot.began < end, self._slots[first:])
        return sum(slot.lost_within_s(begin, end) for slot in reached)

    def _look_again(self) -> None:
        self._look()
        self._timer = self._loop.call_later(_LOOKS_EVERY_S, self._look_again)

    def _look(self) -> None:
        """Take note of the waits since the last look: the kernel counts one at its end, which may be late."""
        now, totals = self._loop.time(), self._totals()
        self._slots.append(Slot(self._at, now))
        for thread, total_s in totals.items():
            left_s = total_s - self._seen.get(thread, 0.0)
            for slot in reversed(self._slots):
                if left_s <= 0:
                    break
                left_s = slot.lose(left_s)
        self._seen, self._at = totals, now

    def _totals(self) -> dict[str, float]:
        return dict([*(one for pid in self._pids for one in _threads(pid)), _stolen()])
