"""What a Python tool may ask about its call, and how it says that it did not succeed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lineside_service.ports import AttemptRequest

MAX_RETRY_AFTER_S = 24 * 3600.0
"""The longest wait a tool can ask for; more is taken as this much."""


class TransientError(Exception):
    """The call did not take effect and may be tried again.

    message: for the caller, if no retry helps. retry_after_s: seconds before which a repeat is useless;
    ignored unless finite and >= 0.
    """

    message: str = ""  # here for subclasses with an __init__ of their own that does not come by this one
    retry_after_s: float | None = None

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = usable_wait(retry_after_s)


class ToolError(Exception):
    """The tool ran and its answer is no: an answer with `tool_error` set, never retried.

    The caller's result is {"message": message, "data": data}; `data` is any JSON value, left out when None.
    """

    message: str = ""
    data: Any = None

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


def usable_wait(seconds: object) -> float | None:
    """Take what a tool's author wrote, anything: seconds that can be waited for, bounded, or None."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    # NaN fails both comparisons; an int may be too large for a float.
    return float(min(seconds, MAX_RETRY_AFTER_S)) if 0 <= seconds < math.inf else None


class ToolContext:
    """One attempt of one call, as the tool sees it. May be used from the tool's own thread.

    call_id: the server's id of the execution; attempt: 1-based; tenant: from verified credentials;
    idempotency_key: the caller's, None without one; downstream_key: hand this to an upstream that removes
    duplicates - the same on every attempt.
    """

    __slots__ = ("_clock", "_deadline", "_effects", "_log", "_tell_downstream_key", "attempt", "call_id",
                 "idempotency_key", "tenant")  # fmt: skip

    def __init__(self, request: AttemptRequest, clock: Callable[[], float], log: Callable[[], Any]) -> None:
        self.call_id = request.call_id
        self.attempt = request.number
        self.tenant = request.tenant
        self.idempotency_key = request.key
        self._tell_downstream_key = request.tell_downstream_key
        self._deadline = request.deadline
        self._effects = request.effects
        self._clock = clock
        self._log = log

    @property
    def downstream_key(self) -> str:
        """What names the work to an upstream."""
        return self._tell_downstream_key()

    def deadline_s(self) -> float:
        """Return the seconds left of this attempt's time limit, 0 when it has passed."""
        return max(0.0, self._deadline - self._clock())

    @property
    def logger(self) -> Any:
        """A structlog logger that carries the tool, the call id and the attempt number."""
        return self._log()

    def begin_effect(self) -> None:
        """Mark the point of no return; before it, a timeout or a cancel means that nothing happened.

        Raises Abandoned when the attempt was given up before: let it pass, and do nothing. Raises
        RuntimeError in a tool whose config does not say `phases = true`.
        """
        self._effects.begin_effect()
