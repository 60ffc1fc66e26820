from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tests.support.virtual_loop import (
    EPOCH_S,
    Deadlock,
    Livelock,
    LoopNotClean,
    ThreadsRefused,
    VirtualTimeLoop,
)

DAY_S = 86_400.0


async def _finish_order(count: int = 8) -> list[int]:
    order: list[int] = []

    async def worker(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(worker(number))
    return order


async def _raise_after(delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    raise ValueError("boom")


async def _failing_group() -> None:
    """Cancels siblings, which asyncio does in the order of a set."""
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(30):
                group.create_task(asyncio.sleep(DAY_S))
            group.create_task(asyncio.Event().wait())
            group.create_task(_raise_after(2))
    except* ValueError:
        await asyncio.sleep(1)


def _trace_of(seed: int) -> str:
    with VirtualTimeLoop(seed) as loop:
        loop.run(_finish_order())
        loop.run(_failing_group())
        return loop.trace_hash()


def test_a_day_passes_in_no_time(virtual_loop: VirtualTimeLoop) -> None:
    """A 24 h sleep moves the clock by exactly 24 h and costs less than 50 ms of real time."""
    started = time.perf_counter()
    virtual_loop.run(asyncio.sleep(DAY_S))
    assert time.perf_counter() - started < 0.05
    assert virtual_loop.time() == DAY_S


def test_timers_fire_in_time_order_whatever_the_seed() -> None:
    """The seed orders what is ready, never time itself."""

    async def sleepers() -> list[float]:
        woken: list[float] = []

        async def sleeper(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            woken.append(asyncio.get_running_loop().time())

        await asyncio.gather(*(sleeper(delay_s) for delay_s in (3.0, 1.0, 2.0)))
        return woken

    for seed in range(20):
        with VirtualTimeLoop(seed) as loop:
            assert loop.run(sleepers()) == [1.0, 2.0, 3.0]


def test_a_cancelled_timer_does_not_move_the_clock(virtual_loop: VirtualTimeLoop) -> None:
    """An idle loop stays at the last timer that fired, not at one that was cancelled."""
    virtual_loop.call_later(5, lambda: None).cancel()
    virtual_loop.call_later(2, lambda: None)
    virtual_loop.run_until_idle()
    assert virtual_loop.time() == 2


def test_run_until_idle_stops_at_its_time_limit(virtual_loop: VirtualTimeLoop) -> None:
    """Periodic work runs up to and including the limit; a later timer waits for the next run."""
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(10)
            ticks.append(virtual_loop.time())

    task = virtual_loop.create_task(tick())
    virtual_loop.run_until_idle(until_s=30)
    assert ticks == [10, 20, 30]
    virtual_loop.advance(15)
    assert ticks[-1] == 40
    assert virtual_loop.time() == 45
    task.cancel()
    virtual_loop.run_until_idle()


def test_run_until_idle_leaves_waiting_tasks_alone(virtual_loop: VirtualTimeLoop) -> None:
    """A task that waits for an event nobody sets yet is idle, and goes on when it is set."""
    event = asyncio.Event()
    task = virtual_loop.create_task(event.wait())
    virtual_loop.run_until_idle()
    assert virtual_loop.pending_tasks() == [task]
    virtual_loop.call_soon(event.set)
    virtual_loop.run_until_idle()
    assert task.result() is True


def test_wall_clock_follows_and_can_be_stepped(virtual_loop: VirtualTimeLoop) -> None:
    """The wall clock runs with virtual time; a step of it leaves the monotonic clock alone."""
    virtual_loop.advance(60)
    assert virtual_loop.wall() == EPOCH_S + 60
    virtual_loop.step_wall(-3600)
    assert virtual_loop.wall() == EPOCH_S + 60 - 3600
    assert virtual_loop.time() == 60


def test_same_seed_same_trace() -> None:
    """A seed run twice gives the same trace hash, also where asyncio itself iterates sets of tasks (F2)."""
    for seed in range(50):
        assert _trace_of(seed) == _trace_of(seed)


def test_seeds_give_different_schedules() -> None:
    """Different seeds really run ready tasks in different orders."""
    assert len({_trace_of(seed) for seed in range(50)}) == 50
    orders = set()
    for seed in range(50):
        with VirtualTimeLoop(seed) as loop:
            orders.add(tuple(loop.run(_finish_order())))
    assert len(orders) > 40


def test_a_lost_update_is_found_by_some_seed() -> None:
    """Read, yield, write without a lock loses updates under shuffled order."""

    async def race() -> int:
        total = 0

        async def add() -> None:
            nonlocal total
            seen = total
            await asyncio.sleep(0)
            total = seen + 1

        await asyncio.gather(add(), add())
        return total

    totals = set()
    for seed in range(20):
        with VirtualTimeLoop(seed) as loop:
            totals.add(loop.run(race()))
    assert totals == {1, 2}


def test_without_shuffle_order_is_first_in_first_out() -> None:
    """`shuffle=False` keeps asyncio's own order, equal timers included."""
    with VirtualTimeLoop(1, shuffle=False) as loop:
        assert loop.run(_finish_order()) == list(range(8))
        seen: list[int] = []
        for number in range(20):
            loop.call_later(1, seen.append, number)
        loop.run_until_idle()
        assert seen == list(range(20))


def test_threads_are_refused(virtual_loop: VirtualTimeLoop) -> None:
    """Executors and to_thread raise at once."""
    with pytest.raises(ThreadsRefused, match="sleep"):
        virtual_loop.run_in_executor(None, time.sleep, 0)
    with pytest.raises(ThreadsRefused):
        virtual_loop.run(asyncio.to_thread(time.monotonic))


def test_a_foreign_thread_is_refused_and_reported(virtual_loop: VirtualTimeLoop) -> None:
    """call_soon_threadsafe raises in the other thread and is seen by the test; from our own it works."""
    refused: list[BaseException] = []

    def foreign() -> None:
        try:
            virtual_loop.call_soon_threadsafe(print)
        except ThreadsRefused as error:
            refused.append(error)

    thread = threading.Thread(target=foreign)
    thread.start()
    thread.join()
    assert [context["exception"] for context in virtual_loop.take_exceptions()] == refused != []

    ran: list[bool] = []
    virtual_loop.call_soon_threadsafe(ran.append, True)
    virtual_loop.run_until_idle()
    assert ran == [True]


def test_a_deadlock_is_named(virtual_loop: VirtualTimeLoop) -> None:
    """Two tasks that wait for each other raise Deadlock with both names and where they wait."""

    async def hold(first: asyncio.Lock, second: asyncio.Lock) -> None:
        async with first:
            await asyncio.sleep(1)
            async with second:
                pass

    async def embrace() -> None:
        left, right = asyncio.Lock(), asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            group.create_task(hold(left, right), name="left-right")
            group.create_task(hold(right, left), name="right-left")

    with pytest.raises(Deadlock) as caught:
        virtual_loop.run(embrace())
    text = str(caught.value)
    assert "left-right at" in text
    assert "right-left at" in text
    assert "Lock.acquire:" in text
    assert "at 1.0 s (seed 0)" in text
    virtual_loop.cancel_pending()


def test_an_infinite_sleep_is_no_timer(virtual_loop: VirtualTimeLoop) -> None:
    """Waiting for infinity is a deadlock, not a jump of the clock to infinity; NaN is refused."""
    with pytest.raises(Deadlock):
        virtual_loop.run(asyncio.sleep(float("inf")))
    virtual_loop.cancel_pending()
    with pytest.raises(ValueError, match="number"):
        virtual_loop.call_at(float("nan"), print)


def test_a_livelock_is_named() -> None:
    """A task that yields for ever without time passing is stopped and named."""

    async def spin() -> None:
        while True:  # noqa: ASYNC110 - spinning is the point
            await asyncio.sleep(0)

    with VirtualTimeLoop(0, max_steps_per_instant=1000) as loop:
        with pytest.raises(Livelock, match="spin"):
            loop.run_until_complete(loop.create_task(spin()))
        loop.cancel_pending()


@pytest.mark.parametrize("virtual_loop", range(20), indirect=True)
def test_asyncio_primitives_work(virtual_loop: VirtualTimeLoop) -> None:
    """timeout, timeout_at, Event, Queue, gather, TaskGroup and shield keep their meaning under any order."""

    async def scenario() -> None:
        now = virtual_loop.time
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(DAY_S)
        assert now() == 5
        with pytest.raises(TimeoutError):
            async with asyncio.timeout_at(7):
                await asyncio.Event().wait()
        assert now() == 7
        async with asyncio.timeout(5):
            await asyncio.sleep(1)

        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)

        async def produce() -> None:
            for number in range(10):
                await queue.put(number)

        async def consume() -> list[int]:
            return [await queue.get() for _ in range(10)]

        _, got = await asyncio.gather(produce(), consume())
        assert got == list(range(10))

        await _failing_group()
        assert now() == 11

        inner = asyncio.ensure_future(asyncio.sleep(3, "kept"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(inner)
        assert await inner == "kept"
        assert now() == 14

        done, pending = await asyncio.wait(
            [asyncio.ensure_future(asyncio.sleep(s)) for s in (1, 2)], return_when=asyncio.FIRST_COMPLETED
        )
        assert (len(done), len(pending)) == (1, 1)
        await asyncio.gather(*pending)

    virtual_loop.run(scenario())


def test_errors_are_collected_and_fail_the_close() -> None:
    """A callback's error and a task's unretrieved error both make close fail, naming them."""

    def broken() -> None:
        raise KeyError("callback")

    loop = VirtualTimeLoop(3)
    loop.call_soon(broken)
    task = loop.create_task(_raise_after(1))
    loop.run_until_idle()
    with pytest.raises(LoopNotClean, match="seed 3") as caught:
        loop.close()
    assert "KeyError('callback')" in str(caught.value)
    assert "_raise_after: its exception was never retrieved: ValueError('boom')" in str(caught.value)
    assert loop.is_closed()
    assert task.done()


def test_errors_taken_do_not_fail_the_close() -> None:
    """What a test has taken, or awaited, it has answered for."""
    with VirtualTimeLoop(0) as loop:
        task = loop.create_task(_raise_after(1))
        loop.run_until_idle()
        assert [repr(context["exception"]) for context in loop.take_exceptions()] == ["ValueError('boom')"]
        with pytest.raises(ValueError, match="boom"):
            loop.run(_raise_after(1))
        assert loop.take_exceptions() == []
        assert task.done()


def test_pending_tasks_fail_the_close() -> None:
    """A task left behind is named at close, and its clean-up still runs."""
    cleaned: list[bool] = []

    async def forgotten() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    loop = VirtualTimeLoop(0)
    task = loop.create_task(forgotten())
    loop.run_until_idle()
    with pytest.raises(LoopNotClean, match=r"forgotten at .*Event\.wait"):
        loop.close()
    assert cleaned == [True]
    assert task.cancelled()


def test_leaving_with_an_error_does_not_hide_it() -> None:
    """A `with` block's own failure wins over what it left pending."""
    left_behind: list[asyncio.Task[None]] = []

    def fail_with_work_pending() -> None:
        with VirtualTimeLoop(0) as loop:
            left_behind.append(loop.create_task(asyncio.sleep(1)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_with_work_pending()
    assert left_behind[0].cancelled()


def test_ten_thousand_sleepers(virtual_loop: VirtualTimeLoop) -> None:
    """10,000 sleeping tasks over ten virtual hours finish, at their own times."""

    async def scenario() -> None:
        await asyncio.gather(*(asyncio.sleep(number * 3.6) for number in range(10_001)))

    virtual_loop.run(scenario())
    assert virtual_loop.time() == 36_000
