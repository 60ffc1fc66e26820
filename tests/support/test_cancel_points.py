from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from tests.support.cancel_points import When, for_each_await
from tests.support.virtual_loop import Deadlock, VirtualTimeLoop

both_moments = pytest.mark.parametrize("when", get_args(When))


def _resolve(future: asyncio.Future[int]) -> None:
    if not future.cancelled():
        future.set_result(1)


async def _three_awaits(steps: list[str]) -> str:
    steps.append("start")
    await asyncio.sleep(1)
    steps.append("slept")
    await asyncio.sleep(0)
    steps.append("yielded")
    async with asyncio.timeout(5):
        await asyncio.sleep(2)
    steps.append("done")
    return "value"


@both_moments
def test_every_await_is_cut_once(when: When) -> None:
    """The k-th run is cancelled at the k-th suspension, in order, and the last run not at all."""
    runs: list[list[str]] = []

    async def scenario(loop: VirtualTimeLoop) -> str:
        runs.append([])
        return await _three_awaits(runs[-1])

    endings = list(for_each_await(scenario, when=when))
    assert [k for k, _ in endings] == [1, 2, 3, 4]
    assert [steps[-1] for steps in runs] == ["start", "slept", "yielded", "done"]
    assert [type(ending.error) for _, ending in endings[:3]] == [asyncio.CancelledError] * 3
    last = endings[-1][1]
    assert (last.value, last.error, last.cut_at) == ("value", None, None)
    assert ["_three_awaits:" in str(ending.cut_at) for _, ending in endings] == [True, True, True, False]


@pytest.mark.parametrize(("when", "granted"), [("waiting", False), ("woken", True)])
def test_woken_comes_after_the_result_is_there(when: When, granted: bool) -> None:
    """A cancel of a waiting task cancels its future; a woken one's future already holds its result."""
    futures: list[asyncio.Future[int]] = []

    async def scenario(loop: VirtualTimeLoop) -> int:
        futures.append(loop.create_future())
        loop.call_later(1, _resolve, futures[-1])
        return await futures[-1]

    for _, ending in for_each_await(scenario, when=when):
        ending.loop.run_until_idle()
        if ending.cut_at is not None:
            assert isinstance(ending.error, asyncio.CancelledError)
            assert futures[-1].cancelled() is not granted


@both_moments
@pytest.mark.parametrize("seed", range(5))
def test_a_chosen_inner_task_is_cut_and_the_scenario_goes_on(when: When, seed: int) -> None:
    """With `target` only tasks of that coroutine are cancelled, one in each run; the scenario goes on."""
    counts: list[int] = []

    async def scenario(loop: VirtualTimeLoop) -> list[str]:
        slot = asyncio.Semaphore(1)

        async def attempt() -> str:
            async with slot:
                await asyncio.sleep(1)
            return "ran"

        tasks = [asyncio.create_task(attempt()) for _ in range(3)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        counts.append(sum(task.cancelled() for task in tasks))
        assert not slot.locked()
        return [str(result) for result in results]

    endings = [ending for _, ending in for_each_await(scenario, target="attempt", when=when, seed=seed)]
    assert counts == [1] * (len(endings) - 1) + [0]
    # Three sleeps inside the slot and two waits for it.
    assert len(endings) == 6


@both_moments
def test_a_cancel_beside_a_timeout_wins(when: When) -> None:
    """An await that a timeout or an error ends at the same moment is cut all the same, as asyncio does it."""

    async def times_out(loop: VirtualTimeLoop) -> str:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(2)
        except TimeoutError:
            return "timeout"
        return "slept"

    async def fails(loop: VirtualTimeLoop) -> str:
        future: asyncio.Future[int] = loop.create_future()
        loop.call_later(1, lambda: None if future.done() else future.set_exception(OSError("refused")))
        try:
            await future
        except OSError:
            return "refused"
        return "answered"

    for scenario, uncut in ((times_out, "timeout"), (fails, "refused")):
        endings = [ending for _, ending in for_each_await(scenario, when=when)]
        assert [(type(ending.error), ending.value) for ending in endings] == [
            (asyncio.CancelledError, None),
            (type(None), uncut),
        ]


def test_a_slot_lost_to_a_late_cancel_is_found() -> None:
    """A gate that forgets a permit granted just before the cancel deadlocks when "woken" only."""

    async def scenario(loop: VirtualTimeLoop) -> None:
        waiter: asyncio.Future[int] = loop.create_future()
        free = asyncio.Event()

        async def careless() -> None:
            loop.call_later(1, _resolve, waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    free.set()
                raise
            free.set()

        task = asyncio.create_task(careless())
        await asyncio.wait([task])
        await free.wait()

    assert len(list(for_each_await(scenario, target="careless", when="waiting"))) == 2
    with pytest.raises(Deadlock) as caught:
        list(for_each_await(scenario, target="careless", when="woken"))
    assert "cancelled at await 1" in caught.value.__notes__[0]


def test_a_swallowed_cancel_shows_as_a_value() -> None:
    """A scenario that swallows the cancel ends with a value and a cut."""

    async def stubborn(loop: VirtualTimeLoop) -> str:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            return "swallowed"
        return "finished"

    assert [ending.value for _, ending in for_each_await(stubborn)] == ["swallowed", "finished"]


def test_a_failed_assertion_after_a_cut_is_raised() -> None:
    """An invariant that breaks inside the scenario is never taken for the cancellation's own ending."""

    async def scenario(loop: VirtualTimeLoop) -> None:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            raise AssertionError("invariant broken") from None

    with pytest.raises(AssertionError, match="broken"):
        list(for_each_await(scenario))


def test_a_target_that_never_runs_is_an_error() -> None:
    """A misspelt target cannot pass as a test of nothing."""

    async def scenario(loop: VirtualTimeLoop) -> None:
        await asyncio.sleep(1)

    with pytest.raises(LookupError, match=r"Road\.atempt"):
        list(for_each_await(scenario, target="Road.atempt"))


def test_a_scenario_that_never_ends_uncut_is_bounded() -> None:
    """Too many suspensions end in an error, not in an endless test."""

    async def scenario(loop: VirtualTimeLoop) -> None:
        for _ in range(100):
            await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="after 10 runs"):
        list(for_each_await(scenario, max_runs=10))
