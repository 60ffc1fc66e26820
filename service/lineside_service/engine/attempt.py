"""One attempt in flight: its time limit, its point of no return, and its real end.

An attempt is answered for at its limit whatever the tool does. Giving it up and `begin_effect` are decided
under one lock, so that either the effect may have begun (the outcome is unknown) or it never will.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Final, Protocol

from opentelemetry.trace import Span

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.errors import ErrorKind, Outcome
from lineside_service.engine.eager import EagerTasks, Ended
from lineside_service.engine.history import AttemptRecord
from lineside_service.ports import Abandoned, AttemptRequest, Tool


class EffectLatch:
    """ports.Effects for one attempt of a tool with phases; begin_effect may come from a tool's own thread."""

    __slots__ = ("_abandoned", "_begun", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = False
        self._abandoned = False

    @property
    def begun(self) -> bool:
        """Whether an effect may have started."""
        return self._begun

    def begin_effect(self) -> None:
        """See ports.Effects."""
        with self._lock:
            if self._abandoned:
                raise Abandoned("this attempt was given up before its effect")
            self._begun = True

    def abandon(self) -> Outcome:
        """Give the attempt up: UNKNOWN if its effect may have begun, else NOT_RUN for good."""
        with self._lock:
            self._abandoned = True
            return Outcome.UNKNOWN if self._begun else Outcome.NOT_RUN


class NoPhases:
    """The same for a tool without phases: its effect may have started with its first line."""

    __slots__ = ()

    begun = True

    def begin_effect(self) -> None:
        """See ports.Effects."""
        raise RuntimeError("begin_effect needs `phases = true` in the tool's config")

    def abandon(self) -> Outcome:
        """Give the attempt up."""
        return Outcome.UNKNOWN


NO_PHASES: Final = NoPhases()


class AttemptOwner(Protocol):
    """Whose attempt it is: asked for its limit, told how it went."""

    def limit_of(self, attempt: Attempt) -> float:
        """Loop time at which the attempt is given up; it may move, so it is asked again when it is due."""
        ...

    def is_shortened(self, attempt: Attempt) -> bool:
        """Whether that limit is earlier than the tool's own."""
        ...

    def given_up(self, attempt: Attempt, end: AttemptEnd) -> None:
        """The attempt is given up at this moment; `end` is what the call makes of it."""
        ...

    def ended_late(self, attempt: Attempt, end: AttemptEnd | None) -> None:
        """A given-up attempt has really ended (None: it was cancelled without saying more). Called once."""
        ...


class Attempt:
    """A started attempt. `end` waits for its answer or its limit; the tool itself may go on longer.

    known: the end, once the call knows it. context: what the tool runs in. record, span: the owner's own.
    longest_s: the longest limit that any of its callers has accepted so far, in seconds.
    """

    __slots__ = (
        "_latch",
        "_owner",
        "_task",
        "_timer",
        "_waiter",
        "given_up",
        "known",
        "longest_s",
        "record",
        "span",
    )

    def __init__(
        self,
        tool: Tool,
        request: AttemptRequest,
        latch: EffectLatch | NoPhases,
        *,
        owner: AttemptOwner,
        tasks: EagerTasks,
        record: AttemptRecord,
        context: contextvars.Context,
        span: Span | None = None,
    ) -> None:
        self._latch = latch
        self._owner = owner
        self.record = record
        self.span = span
        self.given_up = False
        self.known: AttemptEnd | None = None
        self.longest_s = 0.0
        self._task: asyncio.Task[AttemptEnd] | None = None
        try:
            running = tool.run(request)
        except Exception as error:  # noqa: BLE001 - an adapter's bug; it ends like one that comes later
            running = _raising(error)
        started = tasks.start(running, request.tool, context)
        if isinstance(started, Ended):
            self.known = started.result
            return
        loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[AttemptEnd] = loop.create_future()
        self._task = started
        self._task.add_done_callback(self._ended)
        self._timer = loop.call_at(request.deadline, self._limit_passed)

    async def end(self) -> AttemptEnd:
        """The attempt's end as the call sees it. Cancelling this wait gives the attempt up."""
        if self._task is None and self.known is not None:
            return self.known
        try:
            return await self._waiter
        finally:
            self._timer.cancel()
            if not self._waiter.done() or self._waiter.cancelled():
                self.give_up(ErrorKind.CANCELLED, "the caller left")

    def give_up(
        self, kind: ErrorKind, message: str, *, reason: str = "", caller_shortened: bool = False
    ) -> None:
        """End the attempt for its call now; the tool is cancelled and tracked until it really ends."""
        if self.given_up or self._task is None or self._task.done():
            return
        self.given_up = True
        outcome = self._latch.abandon()
        end = AttemptEnd(
            kind=kind, outcome=outcome, message=message, reason=reason, caller_shortened=caller_shortened
        )
        self._owner.given_up(self, end)
        self._know(end)
        self._task.cancel()

    def look(self) -> None:
        """Ask for the limit again: it may have come nearer."""
        if self.known is None:
            self._timer.cancel()
            self._limit_passed()

    def _limit_passed(self) -> None:
        loop = asyncio.get_running_loop()
        limit = self._owner.limit_of(self)
        if limit > loop.time():
            self._timer = loop.call_at(limit, self._limit_passed)
            return
        is_shortened = self._owner.is_shortened(self)
        whose = "that its caller gave" if is_shortened else "of the tool"
        self.give_up(
            ErrorKind.TIMEOUT,
            f"the attempt did not end within the time {whose}",
            caller_shortened=is_shortened,
        )

    def _ended(self, task: asyncio.Task[AttemptEnd]) -> None:
        end = _real_end(task, self._latch)
        if self.given_up:
            self._owner.ended_late(self, end)
        else:
            self._know(end or _cancelled_itself(self._latch))

    def _know(self, end: AttemptEnd) -> None:
        self.known = end
        if not self._waiter.done():
            self._waiter.set_result(end)


async def _raising(error: Exception) -> AttemptEnd:
    raise error


def _real_end(task: asyncio.Task[AttemptEnd], latch: EffectLatch | NoPhases) -> AttemptEnd | None:
    if task.cancelled():
        return None
    error = task.exception()
    if error is None:
        return task.result()
    loop = task.get_loop()
    loop.call_exception_handler({"message": "a tool adapter raised", "exception": error, "task": task})
    return AttemptEnd(
        kind=ErrorKind.INTERNAL,
        outcome=Outcome.UNKNOWN if latch.begun else Outcome.NOT_RUN,
        message="the tool failed",
        local=True,
    )


def _cancelled_itself(latch: EffectLatch | NoPhases) -> AttemptEnd:
    """The tool's task ended as cancelled although nobody cancelled it: a failure of the tool."""
    return AttemptEnd(
        kind=ErrorKind.INTERNAL,
        outcome=Outcome.UNKNOWN if latch.begun else Outcome.NOT_RUN,
        message="the tool failed",
        reason="TOOL_CANCELLED_ITSELF",
        local=True,
    )
