"""What the edge asks of the engine, as narrow Protocols, so that tests may stand a small engine behind it."""

from __future__ import annotations

from typing import Protocol

from lineside_service.core.call import Call, Reply
from lineside_service.core.errors import Failure
from lineside_service.core.ledger import Evidence, RowState
from lineside_service.engine.calls import CallView
from lineside_service.engine.registry import RegisteredTool


class Dispatching(Protocol):
    """The road: takes calls until it is drained."""

    async def dispatch(self, call: Call) -> Reply:
        """Run one call; raises CancelledError only when the caller itself is cancelled."""
        ...

    def begin_drain(self, grace_s: float) -> None:
        """Refuse new calls from now on; those in flight have `grace_s` seconds."""
        ...

    async def drain(self, grace_s: float) -> bool:
        """Return when everything in flight has ended, or was ended at the grace, and is recorded.

        True when everything ended by itself.
        """
        ...


class Catalogue(Protocol):
    """The tools as a tenant sees them."""

    def find(self, name: str, tenant: str) -> RegisteredTool | None:
        """The tool; None when it is unknown, disabled or hidden from the tenant."""
        ...

    def visible(self, tenant: str) -> list[RegisteredTool]:
        """What the tenant may call, by name in code-point order."""
        ...

    def name_near(self, name: str, tenant: str) -> str | None:
        """A visible tool whose name looks like this one."""
        ...


class CallBook(Protocol):
    """The ledger as callers look at it, always within one tenant."""

    async def get(self, tenant: str, call_id: str) -> CallView | Failure:
        """The call with this id, running or kept."""
        ...

    async def get_by_key(self, tenant: str, tool: str, key: str) -> CallView | Failure:
        """The call of this key, running or kept."""
        ...

    async def list(
        self, tenant: str, *, state: RowState | None, tool: str | None, after: str, limit: int
    ) -> list[CallView] | Failure:
        """At most `limit` kept calls after the call id `after`, in the store's order."""
        ...

    async def settle(self, tenant: str, call_id: str, etag: str, evidence: Evidence) -> CallView | Failure:
        """Apply a person's word to an unknown outcome."""
        ...
