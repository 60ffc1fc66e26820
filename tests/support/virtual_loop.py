"""An asyncio event loop on virtual time: seeded, replayable, and strict about what a test leaves behind.

One seed is one schedule. The loop runs one ready callback at a time, chosen by the seed, and moves its clock
only when nothing is ready: a day's sleep costs microseconds. The same seed and the same code give the same
``trace_hash``; to keep that true across processes as well, code under test must not iterate sets of strings
(or PYTHONHASHSEED must be fixed).

Real asyncio runs ready callbacks first in, first out, even the callbacks of one future. Shuffled order is
harsher than that on purpose: code that passes under it does not lean on who was woken first. Where the
order itself is what a test is about, pass ``shuffle=False``.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from hashlib import blake2b
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, TypeVarTuple

from lineside_service.engine.eager import SPARE
from tests.support.task_names import label, listed, qualname

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_S = 1_767_225_600.0
"""Where the virtual wall clock starts: 2026-01-01T00:00:00Z, in Unix seconds."""


class Deadlock(Exception):
    """Nothing is ready and no timer is left, yet the awaited work is not done; names the pending tasks."""


class Livelock(Exception):
    """Callbacks keep making each other ready and time cannot move on."""


class ThreadsRefused(RuntimeError):
    """Work was handed to, or came from, another thread, which an idle virtual clock would run past."""


class LoopNotClean(AssertionError):
    """At close there were pending tasks, or errors that nobody took."""


class _Future(asyncio.Future[Any]):
    """A future whose hash is its number, so that sets of futures iterate alike in every run of a seed."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number: `TaskGroup` cancels its children in the order of a set."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An event loop whose clock moves only when nothing is ready, and whose order is the seed's.

    `time()` starts at 0.0 s. `wall()` is Unix seconds, starts at `epoch_s` and can be stepped. More than
    `max_steps_per_instant` callbacks at one instant raise `Livelock`. No I/O, no threads.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(
        self,
        seed: int,
        *,
        shuffle: bool = True,
        epoch_s: float = EPOCH_S,
        max_steps_per_instant: int = 1_000_000,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.wrap_coroutine: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]] | None = None
        self._choice = random.Random(seed) if shuffle else None
        self._now_s = 0.0
        self._wall_offset_s = epoch_s
        self._horizon_s: float | None = None
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count(1)
        self._task_numbers = itertools.count(1)
        self._tasks: weakref.WeakSet[_Task] = weakref.WeakSet()
        self._failures: list[dict[str, Any]] = []
        self._home_thread = threading.get_ident()
        self._max_steps = max_steps_per_instant
        self._steps_here = 0
        self._trace = blake2b(digest_size=16)

    # Clocks

    def time(self) -> float:
        """Virtual monotonic seconds."""
        return self._now_s

    def wall(self) -> float:
        """Virtual wall clock, Unix seconds."""
        return self._wall_offset_s + self._now_s

    def step_wall(self, delta_s: float) -> None:
        """Let the wall clock jump by `delta_s` (negative: back); the monotonic clock does not notice."""
        self._wall_offset_s += delta_s
        self.record(f"wall step {delta_s!r}")

    # Running

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` to its end, then what is still ready at that instant; no further time passes."""
        try:
            return self.run_until_complete(coro)
        finally:
            self.run_until_idle(until_s=self._now_s)

    def run_until_idle(self, until_s: float = math.inf) -> None:
        """Run until nothing is ready and no timer up to and including `until_s` (virtual time) is left.

        Tasks that wait for something else stay pending: that is idle, not a deadlock. The clock stays at the
        last timer that fired. With periodic work in the loop give `until_s`, or this never returns.
        """
        self._horizon_s = until_s
        try:
            self.run_forever()
        finally:
            self._horizon_s = None

    def advance(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass, running everything that falls due, and end exactly there."""
        target_s = self._now_s + seconds
        self.run_until_idle(until_s=target_s)
        self._now_s = max(self._now_s, target_s)

    def _run_once(self) -> None:
        """Run one callback; with none ready, jump to the next timer first, or stop, or call it a deadlock."""
        self._release_due_timers()
        if not self._ready and not self._stopping and not self._jump():
            return
        if not self._ready:
            return
        if self._choice is not None:
            pick = int(self._choice.random() * len(self._ready))
            self._ready[0], self._ready[pick] = self._ready[pick], self._ready[0]
        if self._steps_here >= self._max_steps:
            self._steps_here = 0
            raise Livelock(f"{self._max_steps} callbacks {self._here()}; next: {label(self._ready[0])}")
        handle = self._ready.popleft()
        if handle.cancelled():
            return
        self._steps_here += 1
        self.record(label(handle))
        handle._run()

    def _here(self) -> str:
        return f"at {self._now_s} s (seed {self.seed})"

    def _jump(self) -> bool:
        """Move the clock to the next timer and release it; False if this run ends here instead."""
        next_s = self._timers[0][0] if self._timers else math.inf
        if self._horizon_s is None and next_s == math.inf:
            raise Deadlock(f"nothing can happen any more {self._here()}; {listed(self.pending_tasks())}")
        if next_s == math.inf or (self._horizon_s is not None and next_s > self._horizon_s):
            self.stop()
            return False
        self._now_s = next_s
        self._steps_here = 0
        self._release_due_timers()
        return True

    def _release_due_timers(self) -> None:
        # Cancelled timers leave here as well, so that the clock never jumps to one.
        while self._timers and (self._timers[0][0] <= self._now_s or self._timers[0][2].cancelled()):
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self._ready.append(timer)

    # What code under test asks of a loop

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule `callback` at virtual time `when`; timers of one instant keep their order unless shuffled.

        Infinity never fires; NaN raises ValueError.
        """
        self._check_open()
        if math.isnan(when):
            raise ValueError("a timer's time must be a number")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if when < math.inf:
            heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        """A future bound to this loop."""
        return _Future(next(self._numbers), loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Start a task; unnamed ones are called after their number in this loop and their coroutine."""
        self._check_open()
        if self.wrap_coroutine is not None and isinstance(coro, Coroutine):
            coro = self.wrap_coroutine(coro)
        number = next(self._task_numbers)
        title = f"task-{number} {qualname(coro)}" if name is None else str(name)
        task = _Task(number, coro, loop=self, name=title, context=context)
        self._tasks.add(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> NoReturn:
        """Refuse: raises ThreadsRefused."""
        raise ThreadsRefused(f"run_in_executor({qualname(func)}): no threads on virtual time")

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Like `call_soon` from the loop's own thread; from another: ThreadsRefused, and the test fails."""
        if threading.get_ident() != self._home_thread:
            refusal = ThreadsRefused(f"call_soon_threadsafe({qualname(callback)}) from another thread")
            self._failures.append({"message": str(refusal), "exception": refusal})
            raise refusal
        return self.call_soon(callback, *args, context=context)

    def _check_open(self) -> None:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")

    # What a test asks of it

    def record(self, event: str) -> None:
        """Add an event of the test's own to the trace."""
        self._trace.update(f"{self._now_s!r} {event}\n".encode())

    def trace_hash(self) -> str:
        """Hex digest over every callback run so far, in order, each with its virtual time."""
        return self._trace.hexdigest()

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """The tasks that have not ended, in the order they were made; spare ones have nothing to do."""
        return sorted((t for t in self._tasks if not t.done() and t.get_name() != SPARE), key=hash)

    def cancel_pending(self) -> None:
        """Cancel every pending task and run what is ready; for tests that leave work behind on purpose."""
        for task in self.pending_tasks():
            task.cancel()
        self.run_until_idle(until_s=self._now_s)

    def take_exceptions(self) -> list[dict[str, Any]]:
        """Hand over, once, what reached the exception handler and the errors of tasks that nobody asked for.

        Each is asyncio's context: `message`, and mostly `exception` and `task`.
        """
        for task in sorted(self._tasks, key=hash):
            # asyncio itself would report these only when the task is collected, perhaps after the test.
            if task.done() and getattr(task, "_log_traceback", False):
                message = f"{task.get_name()}: its exception was never retrieved"
                self._failures.append({"message": message, "exception": task.exception(), "task": task})
        taken, self._failures = self._failures, []
        return taken

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect instead of logging."""
        self._failures.append(context)

    def close(self) -> None:
        """Close the loop; raises LoopNotClean, naming them, if tasks are pending or errors were not taken."""
        if self.is_running() or self.is_closed():
            super().close()
            return
        failures = self.take_exceptions()
        pending = self.pending_tasks()
        complaints = [f"{failure['message']}: {failure.get('exception')!r}" for failure in failures]
        if pending:
            complaints.append(listed(pending))
        try:
            if pending:
                self.cancel_pending()
        finally:
            super().close()
        if complaints:
            cause = next((failure["exception"] for failure in failures if "exception" in failure), None)
            raise LoopNotClean(f"seed {self.seed}: " + "\n".join(complaints)) from cause

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except LoopNotClean:
            # What a failing test leaves behind must not hide why it failed.
            if error is None:
                raise
