"""When the replies of calls that share a deadline are due."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside.v1.dispatch_pb2 import DispatchRequest
from lineside_service.edge.replytimes import (
    KEYED,
    MAX_EARLY_S,
    MAX_EARLY_SHARE,
    PER_TICK,
    TICK_S,
    ReplyTimes,
)
from tests.support.scripted_tool import Turn
from tests.support.serving import serving, tool_call


def tick_of(moment: float) -> int:
    """The tick that a moment lies in."""
    return int(moment / TICK_S)


def test_a_call_that_shares_its_moment_with_few_loses_nothing() -> None:
    """As many replies as a tick has room for are due at the very end of their time."""
    times = ReplyTimes()
    assert [times.book(100.0, 1.0) for _ in range(PER_TICK)] == [100.0] * PER_TICK


def test_the_next_ones_are_due_shortly_before() -> None:
    """Tick by tick, each filled in turn, none after its deadline."""
    times = ReplyTimes()
    moments = [times.book(100.0, 1.0) for _ in range(3 * PER_TICK)]
    last = tick_of(100.0)
    assert Counter(map(tick_of, moments)) == {last - n: PER_TICK for n in range(3)}


def test_keyed_calls_take_more_room() -> None:
    """A keyed call's end is written before its reply."""
    times = ReplyTimes()
    moments = [times.book(100.0, 1.0, KEYED) for _ in range(PER_TICK)]
    assert len(set(map(tick_of, moments))) == KEYED


def test_what_is_released_leaves_room() -> None:
    """Calls that are answered early leave theirs to later ones, however many they were."""
    times = ReplyTimes()
    for _ in range(100):
        moments = [times.book(100.0, 1.0) for _ in range(2 * PER_TICK)]
        for moment in moments:
            times.release(moment)
    assert times.book(100.0, 1.0) == 100.0


@given(
    calls=st.lists(
        st.tuples(
            st.floats(1000.0, 2.0e6), st.floats(-1.0, 600.0), st.sampled_from((1, KEYED)), st.integers(1, 150)
        ),
        max_size=8,
    )
)
def test_nobody_is_late_and_nobody_loses_more_than_the_share(
    calls: list[tuple[float, float, int, int]],
) -> None:
    """Without room too; and every booking can be released at its moment."""
    times = ReplyTimes()
    booked: list[tuple[float, int]] = []
    for latest, left_s, replies, count in calls:
        for _ in range(count):
            moment = times.book(latest, left_s, replies)
            early_s = min(MAX_EARLY_S, MAX_EARLY_SHARE * max(left_s, 0.0))
            assert latest - early_s - 1e-6 <= moment <= latest
            booked.append((moment, replies))
    for moment, replies in booked:
        times.release(moment, replies)


def test_without_room_the_load_is_even() -> None:
    """Twice as many as there is room for are twice as many in each tick."""
    times = ReplyTimes()
    first = [times.book(100.0, 0.2) for _ in range(2000)]
    due = Counter(map(tick_of, first))
    assert max(due.values()) - min(due.values()) <= 1
    assert len(due) == pytest.approx(MAX_EARLY_SHARE * 0.2 / TICK_S, abs=1.5)


@pytest.mark.asyncio
@pytest.mark.parametrize("has_key", [False, True])
async def test_calls_with_one_deadline_end_one_after_the_other(*, has_key: bool) -> None:
    """60 calls that are sent at once: their limits are spread over as much time as their replies take; the
    60 after them, once they are gone, find the same room.
    """
    async with serving() as served:
        limits: list[float] = []
        everybody, release = asyncio.Event(), asyncio.Event()

        async def held(turn: Turn) -> None:
            limits.append(turn.request.deadline)
            if len(limits) == 60:
                everybody.set()
            await release.wait()

        served.add("held", held, timeout_s=600.0, concurrency=64)
        stub = served.dispatching()
        for turn in range(2):
            keys = [{"idempotency_key": f"{turn}-{n}"} if has_key else {} for n in range(60)]
            requests = [DispatchRequest(call=tool_call("held", **key)) for key in keys]
            rpcs = [stub.Dispatch(request, timeout=100) for request in requests]
            await everybody.wait()
            release.set()
            await asyncio.gather(*rpcs)
            due = Counter(map(tick_of, limits))
            assert max(due.values()) <= PER_TICK // (KEYED if has_key else 1)
            assert max(limits) - min(limits) <= 1.0
            limits.clear()
            everybody.clear()
            release.clear()
