"""Start a coroutine at once, under a task of its own; one that never suspends needs no task made for it.

asyncio makes a task and starts it on the loop's next turn, which costs a task, a callback and a poll per
call. Here the first step is made in place, under a spare task as far as `asyncio.current_task` can tell. A
coroutine that suspends keeps that task for good; one that ended gives it back, and the next one starts under
it. Python 3.12 has eager tasks for the first half of this; for 3.11, which we support, asyncio documents the
hooks that task implementations use, and those are used here.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")

SPARE = "lineside:spare"
"""Name of a task that waits for something to do; it holds nothing and may be dropped at any time."""


class Ended(Generic[T]):
    """A coroutine that ended in its first step, with its result."""

    __slots__ = ("result",)

    def __init__(self, result: T) -> None:
        self.result = result


class EagerTasks:
    """Starts coroutines on the running loop, with the spare tasks that this takes: as many as nest."""

    __slots__ = ("_spares",)

    def __init__(self) -> None:
        self._spares: list[_Spare] = []

    def start(
        self, coroutine: Coroutine[Any, Any, T], name: str, context: contextvars.Context
    ) -> asyncio.Task[T] | Ended[T]:
        """Make the first step of a coroutine now. `Ended` when that was all, else the task that goes on.

        What the first step raises is raised by the task. name: of a task that goes on. context: the
        coroutine's own, not entered now.
        """
        loop = asyncio.get_running_loop()
        spare = self._take(loop)
        task = spare.task
        caller = asyncio.current_task(loop)
        if caller is not None:
            asyncio._leave_task(loop, caller)
        asyncio._enter_task(loop, task)
        try:
            yielded = context.run(coroutine.send, None)
        except StopIteration as stop:
            self._spares.append(spare)
            return Ended(stop.value)
        except (KeyboardInterrupt, SystemExit) as error:  # these two end the loop, from a task's step too
            spare.go_on(functools.partial(_raise, error))
            raise
        except BaseException as error:  # noqa: BLE001 - the task raises it
            spare.go_on(functools.partial(_raise, error))
            task.set_name(name)
        else:
            spare.adopt(coroutine, yielded, context)
            task.set_name(name)
        finally:
            asyncio._leave_task(loop, task)
            if caller is not None:
                asyncio._enter_task(loop, caller)
        return cast("asyncio.Task[T]", task)

    def _take(self, loop: asyncio.AbstractEventLoop) -> _Spare:
        while self._spares:
            spare = self._spares.pop()
            if not spare.task.cancelling():  # by whom it ran for last, or by somebody who ends all tasks
                return spare
        return _Spare(loop)


class _Spare(Coroutine[Any, Any, Any]):
    """What a spare task drives: nothing, until it adopts a coroutine after that one's first step."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._context: contextvars.Context | None = None
        self._awaited: Any = None
        # What the task's next step does; None once it drives the coroutine it has adopted.
        self._next: Callable[[], Any] | None = self._park
        self._parked: asyncio.Future[None] | None = None
        # What asyncio's own texts and stacks call it.
        self.__name__ = self.__qualname__ = SPARE
        self.task: asyncio.Task[Any] = loop.create_task(self, name=SPARE)
        # A spare that is never needed may go with its loop without a word.
        self.task._log_destroy_pending = False  # type: ignore[attr-defined]

    @property
    def cr_frame(self) -> Any:
        """Where it stands, for stacks that asyncio prints."""
        return getattr(self._coroutine, "cr_frame", None)

    @property
    def cr_await(self) -> Any:
        """What it waits for, likewise."""
        return getattr(self._coroutine, "cr_await", None)

    @property
    def cr_code(self) -> Any:
        """Its code, for the task's repr."""
        return getattr(self._coroutine, "cr_code", None)

    @property
    def cr_running(self) -> bool:
        """Whether it is running, for the task's repr."""
        return bool(getattr(self._coroutine, "cr_running", False))

    def adopt(self, coroutine: Coroutine[Any, Any, Any], awaited: Any, context: contextvars.Context) -> None:
        """Drive `coroutine` from now on, in `context`; it has handed out `awaited`."""
        self.__name__ = getattr(coroutine, "__name__", "coroutine")
        self.__qualname__ = getattr(coroutine, "__qualname__", "coroutine")
        self._coroutine = coroutine
        self._context = context
        self._awaited = awaited
        self.go_on(self._hand_out)

    def go_on(self, step: Callable[[], Any]) -> None:
        """Let the task make this step next."""
        self._next = step
        self.task._log_destroy_pending = True  # type: ignore[attr-defined]
        if self._parked is not None and not self._parked.done():
            self._parked.set_result(None)

    def send(self, value: Any) -> Any:
        step = self._next
        if step is None:
            return self._step("send", value)
        return step()

    def throw(self, *error: Any) -> Any:
        """Pass an error on; a cancel that comes before the task's first turn goes to what is awaited."""
        step, awaited = self._next, self._awaited
        if step is None:
            return self._step("throw", *error)
        if step == self._park:  # nobody's task: let it end
            raise error[1] if len(error) > 1 else error[0]
        if step != self._hand_out:
            return step()
        self._hand_out()
        if asyncio.isfuture(awaited) and awaited.cancel():
            return awaited
        return self._step("throw", *error)

    def close(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise TypeError("driven by its task alone")

    def _step(self, how: str, *values: Any) -> Any:
        if self._context is None:
            raise RuntimeError("a spare task was driven before it had anything to drive")
        return self._context.run(getattr(self._coroutine, how), *values)

    def _park(self) -> Any:
        self._parked = parked = self._loop.create_future()
        parked._asyncio_future_blocking = True  # what `await` says to the task about a future it yields
        return parked

    def _hand_out(self) -> Any:
        awaited, self._awaited, self._next = self._awaited, None, None
        return awaited


def _raise(error: BaseException) -> Any:
    raise error


async def within(coroutine: Coroutine[Any, Any, T], deadline: float) -> T:
    """Await a coroutine until `deadline` (loop time), then TimeoutError; no timer unless it suspends."""
    try:
        awaited = coroutine.send(None)
    except StopIteration as stop:
        return cast("T", stop.value)
    async with asyncio.timeout_at(deadline):
        return await _resume(coroutine, awaited)


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that has handed out `awaited`, in the same task."""
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # noqa: BLE001 - handed on, whatever it is
            step = functools.partial(coroutine.throw, error)
        else:
            step = functools.partial(coroutine.send, sent)
        try:
            awaited = step()
        except StopIteration as stop:
            return cast("T", stop.value)
