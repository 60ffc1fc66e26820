"""Counts the log lines that an alert looks at: failures only, so nothing is counted while calls go well."""

from __future__ import annotations

from typing import Final

from lineside_service.engine.telemetry import Log

WATCHED: Final = (
    "ledger.look_up_failed",
    "ledger.claim_failed",
    "ledger.intent_failed",
    "ledger.write_failed",
    "ledger.sweep_failed",
    "ledger.lost_ownership",
    "ledger.work_failed",
    "ledger.task_failed",
    "ledger.unknown_for_7_days",
    "rpc.fault",
    "item.fault",
    "task.died",
)
"""A fixed list, so that every one is there from the start with 0 and a first failure is a rise."""


class WatchedLog:
    """A log that hands every line on and counts those in WATCHED. counts: by event, for several logs."""

    def __init__(self, behind: Log, counts: dict[str, int]) -> None:
        self._behind = behind
        self._counts = counts

    def debug(self, event: str, **values: object) -> object:
        """See Log."""
        return self._behind.debug(event, **values)

    def info(self, event: str, **values: object) -> object:
        """See Log."""
        return self._behind.info(event, **values)

    def warning(self, event: str, **values: object) -> object:
        """See Log."""
        self._count(event)
        return self._behind.warning(event, **values)

    def error(self, event: str, **values: object) -> object:
        """See Log."""
        self._count(event)
        return self._behind.error(event, **values)

    def _count(self, event: str) -> None:
        if event in self._counts:
            self._counts[event] += 1
