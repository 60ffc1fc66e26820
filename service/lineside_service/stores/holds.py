"""What a store keeps in its process's memory: who owns which key, how many bytes each tenant has stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lineside_service.core.ledger import Row

DEFAULT_TENANT_BYTES = 256 * 1024 * 1024
"""Bound on one tenant's stored bytes unless the operator says otherwise."""


@dataclass(slots=True)
class Hold:
    """One claimed key, owned by one execution of one process.

    base_version: what stood when the key was claimed (0 = nothing); every version above it was written under
    this claim. stored_bytes: what the key's row costs its tenant at present. has_written: whether a write was
    asked for, be it done or not.
    """

    call_id: str
    incarnation: str
    base_version: int
    stored_bytes: int
    has_written: bool = False

    @classmethod
    def over(cls, stored: Row | None, by: Row) -> Hold:
        """The hold that a claim by `by` makes where `stored` stands."""
        if stored is None:
            return cls(by.call_id, by.incarnation, 0, 0)
        return cls(by.call_id, by.incarnation, stored.version, stored.stored_bytes)

    @property
    def is_first_write(self) -> bool:
        """Whether the next write would be the first one of a row."""
        return self.base_version == 0 and not self.has_written

    def is_of(self, row: Row) -> bool:
        """Whether the execution behind `row` is the owner."""
        return self.call_id == row.call_id and self.incarnation == row.incarnation


class TenantBytes:
    """Stored bytes per tenant against one bound that holds for each of them."""

    def __init__(self, limit: int, sums: Iterable[tuple[str, int]] = ()) -> None:
        self._limit = limit
        self._sums = dict(sums)

    def has_room_for(self, row: Row) -> bool:
        """Whether the row fits under its tenant's bound, as it is now."""
        return self.of(row.scope.tenant) + row.stored_bytes <= self._limit

    @property
    def limit(self) -> int:
        """The bound."""
        return self._limit

    @property
    def fullest(self) -> int:
        """Bytes of the tenant that has most; may be asked on any thread."""
        return max(list(self._sums.values()), default=0)

    def of(self, tenant: str) -> int:
        """Bytes that the tenant has stored."""
        return self._sums.get(tenant, 0)

    def add(self, tenant: str, change: int) -> None:
        """Count a change of stored bytes."""
        total = self.of(tenant) + change
        if total:
            self._sums[tenant] = total
        else:
            self._sums.pop(tenant, None)
