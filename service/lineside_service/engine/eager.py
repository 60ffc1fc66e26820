"""Start a coroutine at once, as a task of its own; one that never suspends costs no turn of the loop.

asyncio starts a task on the loop's next turn, which costs a future, a callback and a poll per call. Here the
first step is made in place, under its own task and context as far as `asyncio.current_task` and context
variables can tell. Python 3.12 has eager tasks for this; for 3.11, which we support, asyncio documents the
hooks that task implementations use, and those are used here.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import types
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


def start_eagerly(
    coroutine: Coroutine[Any, Any, T], name: str, context: contextvars.Context
) -> asyncio.Task[T] | Ended[T]:
    """Make the first step of a coroutine now. `Ended` when that was all, else the task that goes on with it.

    What the first step raises is raised by the task. context: the task's own, not entered at present.
    """
    loop = asyncio.get_running_loop()
    begun = _Begun(coroutine)
    task: asyncio.Task[T] = loop.create_task(begun, name=name, context=context)
    caller = asyncio.current_task(loop)
    if caller is not None:
        asyncio._leave_task(loop, caller)
    asyncio._enter_task(loop, task)
    try:
        context.run(begun.first_step)
    finally:
        asyncio._leave_task(loop, task)
        if caller is not None:
            asyncio._enter_task(loop, caller)
    return begun.ended or task


class Ended(Generic[T]):
    """A coroutine that ended in its first step, with its result."""

    __slots__ = ("result",)

    def __init__(self, result: T) -> None:
        self.result = result


class _Begun(Coroutine[Any, Any, T]):
    """A coroutine after its first step, in the shape that a task drives: first it hands out what it has."""

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

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        # What asyncio's own texts and stacks call it.
        self.__name__ = getattr(coroutine, "__name__", "coroutine")
        self.__qualname__ = getattr(coroutine, "__qualname__", "coroutine")
        self._coroutine = coroutine
        self._yielded: Any = None
        self._error: BaseException | None = None
        self._is_fresh = True
        self.ended: Ended[T] | None = None

    def first_step(self) -> None:
        """Run to the first suspension or the end."""
        try:
            self._yielded = self._coroutine.send(None)
        except StopIteration as stop:
            self.ended = Ended(stop.value)
        except (KeyboardInterrupt, SystemExit) as error:  # these two end the loop, from a task's step too
            self._error = error
            raise
        except BaseException as error:  # noqa: BLE001 - the task raises it
            self._error = error

    def send(self, value: Any) -> Any:
        if not self._is_fresh:
            return self._coroutine.send(value)
        self._is_fresh = False
        if self.ended is not None:
            raise StopIteration(self.ended.result)
        if self._error is not None:
            raise self._error
        return self._yielded

    def throw(self, *error: Any) -> Any:
        """Pass an error on; a cancel that comes before the task's first turn goes to what is awaited."""
        if not self._is_fresh:
            return self._coroutine.throw(*error)
        self._is_fresh = False
        if self.ended is not None:  # it is over: nothing is left that an error could reach
            raise StopIteration(self.ended.result)
        if self._error is not None:
            raise self._error
        awaited = self._yielded
        if asyncio.isfuture(awaited) and awaited.cancel():
            return awaited
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("driven by its task alone")


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
