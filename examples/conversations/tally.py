"""Counting what a run saw, and the summary that is printed and written."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

__all__ = ["Tally", "percentile"]


class Tally:
    """The counts of one run.

    An execution is counted once by its call id, however many answers showed it.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.conversations = 0
        self.sources: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.sent_again_after_not_run = 0
        self.sent_again_as_safe = 0
        self.unequal_answers: list[str] = []
        self._latencies_s: list[float] = []
        self._attempts: dict[str, int] = {}
        self._settled: dict[str, str] = {}

    @property
    def retries(self) -> int:
        """Attempts beyond the first of their execution."""
        return sum(max(0, attempts - 1) for attempts in self._attempts.values())

    def answered(self, source: str, call_id: str, attempts: int, latency_s: float) -> None:
        """Count an answer and how long its caller waited."""
        self.sources[source] += 1
        self._latencies_s.append(latency_s)
        self._executed(call_id, attempts)

    def refused(self, kind: str, outcome: str, call_id: str, attempts: int) -> None:
        """Count a refusal, and the attempts that its execution made."""
        self.refusals[f"{kind} ({outcome})"] += 1
        self._executed(call_id, attempts)

    def settled(self, call_id: str, by: str) -> None:
        """Count an outcome that was unknown, and who settled it."""
        self._settled[call_id] = by

    def summary(self) -> dict[str, Any]:
        """Return all counts by name; latencies in milliseconds."""
        return {
            "calls": self.calls,
            "executed": self.sources["executed"],
            "joined": self.sources["joined"],
            "replayed": self.sources["replayed"],
            "attempts": sum(self._attempts.values()),
            "retries": self.retries,
            "refusals": dict(sorted(self.refusals.items())),
            "unknown": len(self._settled),
            "settled_by": dict(sorted(Counter(self._settled.values()).items())),
            "sent_again_after_not_run": self.sent_again_after_not_run,
            "sent_again_as_safe": self.sent_again_as_safe,
            "unequal_answers": self.unequal_answers,
            "p50_ms": round(percentile(self._latencies_s, 0.50) * 1e3, 1),
            "p99_ms": round(percentile(self._latencies_s, 0.99) * 1e3, 1),
        }

    def _executed(self, call_id: str, attempts: int) -> None:
        if call_id:
            self._attempts[call_id] = max(attempts, self._attempts.get(call_id, 0))


def percentile(values: list[float], share: float) -> float:
    """Return the nearest-rank percentile; 0 for no values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
