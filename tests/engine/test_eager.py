"""Starting a coroutine at once must look like a task to everything in it and around it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from lineside_service.engine.eager import EagerTasks, Ended
from tests.support.virtual_loop import VirtualTimeLoop

pytestmark = pytest.mark.parametrize("virtual_loop", range(3), indirect=True)

Body = Callable[[], Coroutine[Any, Any, Any]]
COLOUR: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def _answers() -> str:
    return "at once"


async def _sleeps() -> str:
    await asyncio.sleep(1)
    await asyncio.sleep(0)
    return "slept"


async def _yields_first() -> str:
    await asyncio.sleep(0)
    await asyncio.sleep(1)
    return "yielded"


async def _raises() -> None:
    raise ValueError("at once")


async def _raises_later() -> None:
    await asyncio.sleep(1)
    raise ValueError("later")


async def _cancels_itself() -> None:
    raise asyncio.CancelledError("by itself")


async def _times_out() -> str:
    try:
        async with asyncio.timeout(0.5):
            await asyncio.sleep(2)
    except TimeoutError:
        return "timed out"
    return "slept"


async def _swallows() -> str:
    for _ in range(2):
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            return "swallowed"
    return "slept"


async def _sees_its_future_cancelled() -> str:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = asyncio.get_running_loop().call_later(2, future.set_result, None)
    try:
        await future
    except asyncio.CancelledError:
        timer.cancel()
        return f"cancelled: {future.cancelled()}"
    return "not cancelled"


async def _waits_for_a_task() -> str:
    inner = asyncio.get_running_loop().create_task(_swallows())
    return f"inner {await inner}"


async def _gathers() -> list[str]:
    return list(await asyncio.gather(_sleeps(), _yields_first()))


BODIES: list[Body] = [
    _answers,
    _sleeps,
    _yields_first,
    _raises,
    _raises_later,
    _cancels_itself,
    _times_out,
    _swallows,
    _sees_its_future_cancelled,
    _waits_for_a_task,
    _gathers,
]
bodies = pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__.strip("_"))


async def _outcome(task: Awaitable[Any]) -> str:
    try:
        return f"value {await task}"
    except asyncio.CancelledError:
        return "cancelled"
    except ValueError as error:
        return f"error {error}"


async def _run(body: Body, eagerly: bool, cancel_after_s: float | None) -> str:
    loop = asyncio.get_running_loop()
    if eagerly:
        started = EagerTasks().start(body(), "test", contextvars.copy_context())
        if isinstance(started, Ended):
            return f"value {started.result} at {loop.time()}"
        task: asyncio.Task[Any] = started
    else:
        task = loop.create_task(body())
        await asyncio.sleep(0)
    ended: list[float] = []
    task.add_done_callback(lambda _: ended.append(loop.time()))
    if cancel_after_s is not None:
        if cancel_after_s:
            await asyncio.sleep(cancel_after_s)
        task.cancel()
    outcome = await _outcome(asyncio.shield(task) if cancel_after_s is None else _settled(task))
    await asyncio.sleep(0)  # callbacks of one task run one by one
    return f"{outcome} at {ended[0]}"


async def _settled(task: asyncio.Task[Any]) -> Any:
    await asyncio.wait([task])
    return task.result()


@bodies
@pytest.mark.parametrize("cancel_after_s", [None, 0.0, 0.25, 0.5, 1.0, 3.0])
def test_it_ends_like_a_task(virtual_loop: VirtualTimeLoop, body: Body, cancel_after_s: float | None) -> None:
    """Value, error and cancellation at any time are those of a task that has made its first step."""
    outcomes = set()
    for eagerly in (True, False):
        with VirtualTimeLoop(virtual_loop.seed, shuffle=False) as loop:
            outcome = loop.run(_run(body, eagerly, cancel_after_s))
            loop.run_until_idle()
            outcomes.add(outcome)
    assert len(outcomes) == 1


def test_the_first_step_is_made_at_once(virtual_loop: VirtualTimeLoop) -> None:
    """Before the caller goes on, in the task's own name and context; the caller's are as before."""
    seen: list[object] = []

    async def body() -> str:
        seen.extend([asyncio.current_task(), COLOUR.get()])
        COLOUR.set("changed")
        await asyncio.sleep(1)
        seen.extend([asyncio.current_task(), COLOUR.get()])
        return "done"

    async def story() -> None:
        COLOUR.set("caller")
        me = asyncio.current_task()
        context = contextvars.copy_context()
        context.run(COLOUR.set, "own")
        task = EagerTasks().start(body(), "eager", context)
        assert isinstance(task, asyncio.Task)
        assert seen == [task, "own"]
        assert (asyncio.current_task(), COLOUR.get()) == (me, "caller")
        assert task.get_name() == "eager"
        assert await task == "done"
        assert seen[2:] == [task, "changed"]

    virtual_loop.run(story())


def test_one_that_never_waits_takes_no_turn(virtual_loop: VirtualTimeLoop) -> None:
    """Its result is there at once."""

    async def story() -> None:
        started = EagerTasks().start(_answers(), "eager", contextvars.copy_context())
        assert isinstance(started, Ended)
        assert started.result == "at once"

    virtual_loop.run(story())


@pytest.mark.parametrize("error", [GeneratorExit, BaseException, asyncio.CancelledError])
def test_what_the_first_step_raises_is_the_tasks(
    virtual_loop: VirtualTimeLoop, error: type[BaseException]
) -> None:
    """The caller goes on, whatever it is: only KeyboardInterrupt and SystemExit end a loop (R001)."""

    async def body() -> None:
        raise error

    async def story() -> None:
        task = EagerTasks().start(body(), "eager", contextvars.copy_context())
        assert isinstance(task, asyncio.Task)
        await asyncio.wait([task])
        assert task.cancelled() or type(task.exception()) is error

    virtual_loop.run(story())


def test_they_nest(virtual_loop: VirtualTimeLoop) -> None:
    """One that starts another in its first step is itself again afterwards."""

    async def outer() -> str:
        me = asyncio.current_task()
        inner = EagerTasks().start(_sleeps(), "inner", contextvars.copy_context())
        assert asyncio.current_task() is me
        assert isinstance(inner, asyncio.Task)
        return f"outer {await inner}"

    async def story() -> None:
        task = EagerTasks().start(outer(), "outer", contextvars.copy_context())
        assert isinstance(task, asyncio.Task)
        assert await task == "outer slept"

    virtual_loop.run(story())
