from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from lineside_service.tools.threads import MAX_IDLE, Threads

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


@pytest.mark.asyncio
async def test_a_function_runs_on_a_named_daemon_thread_with_the_callers_context() -> None:
    """The thread is a daemon, bears the tool's name, and sees the caller's context variables."""
    VARIABLE.set("set")

    def look() -> tuple[str, bool, str]:
        thread = threading.current_thread()
        return thread.name, thread.daemon, VARIABLE.get()

    assert await Threads().run("ferry", look) == ("tool-1 ferry", True, "set")


@pytest.mark.asyncio
async def test_idle_threads_are_used_again_and_few_are_kept() -> None:
    """One after another needs one thread; many at once leave only a few idle."""
    threads = Threads()
    names = {await threads.run("a", threading.get_ident) for _ in range(20)}
    assert len(names) == 1
    gate = threading.Barrier(MAX_IDLE + 9)
    async with asyncio.TaskGroup() as group:
        for _ in range(MAX_IDLE + 8):
            group.create_task(threads.run("b", gate.wait))
        gate_task = asyncio.create_task(Threads().run("c", gate.wait))
    await gate_task
    assert threads.alive <= MAX_IDLE


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError, TimeoutError])
async def test_what_a_function_raises_reaches_the_waiter(error: type[BaseException]) -> None:
    """Any exception is delivered, and the thread lives on."""

    def fail() -> None:
        raise error

    threads = Threads()
    with pytest.raises(error):
        await threads.run("a", fail)
    assert await threads.run("a", lambda: 1) == 1
    assert threads.alive == 1


@pytest.mark.asyncio
async def test_a_cancelled_wait_still_reports_the_real_end() -> None:
    """Cancelling does not end the wait before the function has ended: the late result is told (R023)."""
    started, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> str:
        loop.call_soon_threadsafe(started.set)
        gate.wait()
        return "late"

    task = asyncio.create_task(Threads().run("a", work))
    await started.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    assert await task == "late"


@pytest.mark.asyncio
async def test_a_second_cancel_ends_the_wait() -> None:
    """A loop that closes is not held up by a stuck function."""
    gate = threading.Event()
    task = asyncio.create_task(Threads().run("a", gate.wait))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()


@pytest.mark.asyncio
async def test_a_task_that_nobody_holds_gets_its_result() -> None:
    """The job in the thread keeps its waiter alive, whatever the collector does (R021)."""
    gate, told = threading.Event(), asyncio.Event()
    threads = Threads()

    async def detached() -> None:
        await threads.run("a", gate.wait)
        told.set()

    asyncio.get_running_loop().call_soon(asyncio.create_task, detached())
    await asyncio.sleep(0)
    for _ in range(5):
        gc.collect()
    gate.set()
    async with asyncio.timeout(10):
        await told.wait()


@pytest.mark.asyncio
async def test_a_result_is_not_kept_by_an_idle_thread() -> None:
    """What a function returned is free once its caller drops it."""

    class Big:
        pass

    threads = Threads()
    make: Callable[[], Big] = Big
    reference = weakref.ref(await threads.run("a", make))
    await threads.run("a", lambda: None)
    gc.collect()
    assert reference() is None


EXIT = """
import asyncio, threading
from lineside_service.tools.threads import Threads

async def main():
    started = asyncio.Event()
    loop = asyncio.get_running_loop()
    def stuck():
        loop.call_soon_threadsafe(started.set)
        threading.Event().wait()
    task = asyncio.create_task(Threads().run("stuck", stuck))
    await started.wait()
    task.cancel()
    await asyncio.sleep(0)
    print("leaving", flush=True)

asyncio.run(main())
"""


def test_a_stuck_function_does_not_keep_the_process() -> None:
    """A process whose given-up function never returns exits at once (R023)."""
    done = subprocess.run(
        [sys.executable, "-c", EXIT], capture_output=True, timeout=30, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "leaving"), done.stderr
