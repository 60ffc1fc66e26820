"""The Protocols the engine needs from the outside: stores that remember, tools that reach out."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.ledger import Row, RowState
from lineside_service.core.tool import ToolSpec


class StoreUnavailable(Exception):
    """The store could not do what was asked (locked, read-only, full, gone); nothing was changed.

    The text is for the operator's log; callers get a typed `unavailable`.
    """


class Abandoned(Exception):
    """Raised by begin_effect in an attempt that was given up before its effect: do nothing and return."""


class Claim(enum.Enum):
    """How a claim of a key ended."""

    CLAIMED = "claimed"
    STANDING = "standing"
    TENANT_FULL = "tenant_full"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLoad:
    """What a store holds and has done since its start, for metrics.

    fullest_tenant_bytes, tenant_bytes_limit: stored for the tenant with most, and each tenant's bound.
    writes, commits, commit_s: what was made durable, in how many transactions, in how many seconds.
    """

    fullest_tenant_bytes: int
    tenant_bytes_limit: int
    writes: int = 0
    commits: int = 0
    commit_s: float = 0.0


class LedgerStore(Protocol):
    """Keyed work by scope id. The store compares, the core decides.

    Every method, or the future it returns, raises StoreUnavailable when it cannot be done. `member_secret`:
    32 random bytes that live as long as the store, to key the hashes of argument members.
    """

    @property
    def member_secret(self) -> bytes:
        """32 random bytes, made with the store."""
        ...

    async def find(self, row_id: bytes) -> Row | None:
        """The standing row, expired ones included (the core judges expiry)."""
        ...

    async def claim(self, row: Row) -> tuple[Claim, Row | None]:
        """Own the key: succeeds if no row stands or the standing one has exactly `row.version`.

        A claim is exclusive at once but need not be durable: a process that dies with a bare claim has
        started nothing. TENANT_FULL: the tenant's stored bytes are over the bound, nothing was claimed.
        STANDING comes with the row that stands (None: a claim without a stored row).
        """
        ...

    def save(self, row: Row) -> asyncio.Future[bool]:
        """Write the row durably, as version `row.version + 1`, if the stored version and the owning
        incarnation still match; False = somebody else owns it now, nothing was written.

        The write begins at once, and goes on if nobody waits for it any more.
        """
        ...

    def release(self, row: Row) -> asyncio.Future[None]:
        """Give the key back: the claim ends and the stored row, if this claim wrote one, goes durably.

        It begins at once, like `save`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """Which rows to list; None = any. Results are ordered by call_id (time-ordered), after `after`."""

    tenant: str | None = None
    state: RowState | None = None
    tool: str | None = None
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one pass of expiry did: rows deleted; UNKNOWN rows past the alert age, already cut."""

    deleted: int
    alerted: int


class LedgerRecords(Protocol):
    """The same rows, as people and housekeeping look at them. Raises StoreUnavailable likewise."""

    async def by_call_id(self, call_id: str) -> Row | None:
        """The row with this call id."""
        ...

    async def list(self, which: RowFilter, limit: int) -> Sequence[Row]:
        """At most `limit` rows, in the order that RowFilter states."""
        ...

    async def count(self, state: RowState) -> int:
        """How many rows stand in this state."""
        ...

    async def sweep(self, wall_s: float, limit: int) -> Swept:
        """Delete at most `limit` rows whose expires_s passed (never UNKNOWN or RUNNING ones) and cut UNKNOWN
        rows older than the alert age (each counted once).
        """
        ...

    async def close(self) -> None:
        """Write what is under way and let the store go."""
        ...


class Effects(Protocol):
    """One attempt's point of no return, handed to the tool by the engine. Safe to use from any thread."""

    @property
    def begun(self) -> bool:
        """Whether begin_effect succeeded."""
        ...

    def begin_effect(self) -> None:
        """Mark the point of no return; raises Abandoned if the attempt was given up before it, and
        RuntimeError in a tool that does not declare `phases`.
        """
        ...


@dataclass(slots=True, kw_only=True)
class AttemptRequest:
    """What a tool gets for one attempt. Never changed once made; not frozen: that would cost 2 us per call.

    number: 1-based over the whole call; deadline: loop time (seconds) of this attempt's limit;
    deadline_wall_s: the same instant in Unix seconds; tell_downstream_key: gives downstream_key, the same on
    every attempt of a keyed call (hex SHA-256), the call_id for a keyless one.
    """

    call_id: str
    tool: str
    tenant: str
    number: int
    arguments: Mapping[str, Any]
    key: str | None
    tell_downstream_key: Callable[[], str]
    deadline: float
    deadline_wall_s: float
    effects: Effects

    @property
    def downstream_key(self) -> str:
        """Worked out when a tool asks for it: most never do."""
        return self.tell_downstream_key()


class Tool(Protocol):
    """One callable tool. `run` never raises except asyncio.CancelledError (the engine gave it up), and it
    does not end before the work behind it has really ended.
    """

    @property
    def spec(self) -> ToolSpec:
        """What the operator says about it."""
        ...

    async def run(self, request: AttemptRequest) -> AttemptEnd:
        """Make one attempt."""
        ...
