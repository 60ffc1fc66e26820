"""The sliding count under the breaker and the retry budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lineside_service.core.window import BUCKETS, WindowCount


@given(st.lists(st.floats(min_value=0, max_value=30), max_size=60), st.floats(min_value=0.1, max_value=20))
def test_an_event_counts_for_at_least_nineteen_twentieths_and_at_most_the_window(
    gaps: list[float], window_s: float
) -> None:
    """Compared with the exact list of times: never an event too old, never one missing that is young.

    A reading that moves nothing says the same.
    """
    count, now, times = WindowCount(window_s), 0.0, []
    slack = 1e-6
    for gap in gaps:
        now += gap
        assert count.peek(now) == count.count(now)
        count.add(now)
        times.append(now)
        young = sum(now - t < window_s * (BUCKETS - 1) / BUCKETS - slack for t in times)
        alive = sum(now - t < window_s + slack for t in times)
        assert young <= count.count(now) <= alive


def test_an_idle_window_empties_and_stays_small() -> None:
    """A million events and a long pause leave nothing behind."""
    count = WindowCount(10.0)
    for second in range(1000):
        count.add(float(second), 1000)
    assert len(count._ring) == BUCKETS
    assert count.count(5000.0) == 0


def test_a_clock_reading_that_runs_backwards_is_counted_now() -> None:
    """An earlier reading lands in the present bucket instead of corrupting the ring."""
    count = WindowCount(10.0)
    count.add(100.0)
    count.add(50.0)
    assert count.count(100.0) == 2
    assert count.count(111.0) == 0


@pytest.mark.parametrize("window_s", [1.0, 10.0, 100.0])
def test_a_resized_window_keeps_its_events(window_s: float) -> None:
    """They count as having happened in the last bucket."""
    count = WindowCount(10.0)
    count.add(1.0, 3)
    count.add(4.0, 2)
    other = count.resized(window_s)
    assert other.count(4.0) == 5
    assert other.count(4.1 + window_s) == 0
    assert WindowCount(10.0).resized(window_s).count(0.0) == 0
