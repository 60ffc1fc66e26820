"""Which ids may have a row: most keys are new, and that is known without asking the database."""

from __future__ import annotations

from collections.abc import Iterable

_SLOTS = 1 << 22
"""One byte each, 4 MiB. With n rows stored, n in _SLOTS new keys are looked up in the database in vain."""
_SHIFT = 24 - 22
_FULL = 255


class Presence:
    """A counting filter over row ids (hashes, so they spread evenly). It never denies a stored row."""

    __slots__ = ("_counts",)

    def __init__(self, ids: Iterable[bytes]) -> None:
        self._counts = bytearray(_SLOTS)
        for row_id in ids:
            self.add(row_id)

    def may_stand(self, row_id: bytes) -> bool:
        """False: there is no such row."""
        return self._counts[_slot(row_id)] > 0

    def add(self, row_id: bytes) -> None:
        """A row is about to be stored. A slot that is full stays so."""
        slot = _slot(row_id)
        if self._counts[slot] < _FULL:
            self._counts[slot] += 1

    def remove(self, row_id: bytes) -> None:
        """A row was deleted."""
        slot = _slot(row_id)
        if 0 < self._counts[slot] < _FULL:
            self._counts[slot] -= 1


def _slot(row_id: bytes) -> int:
    return int.from_bytes(row_id[:3], "big") >> _SHIFT
