"""The whole engine in a seeded world of faults, hour after virtual hour."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.world import HOUR_S, WEATHERS, World, live
from tests.support.virtual_loop import VirtualTimeLoop

MINUTES_S = 60.0


def _simulate(seed: int, for_s: float) -> tuple[World, str]:
    """One world of this seed; its number chooses the weather too."""
    with VirtualTimeLoop(seed) as loop:
        world = loop.run(live(loop, for_s))
        loop.run_until_idle(until_s=loop.time() + HOUR_S)
        return world, loop.trace_hash()


@pytest.mark.parametrize("seed", range(len(WEATHERS) * 2))
def test_invariants_hold(seed: int) -> None:
    """Random tools, keys, tenants, cancels, a failing store and sudden deaths: what must hold holds (F1)."""
    world, _ = _simulate(seed, 4 * MINUTES_S)
    assert world.seen["ok executed"] > 50


def test_a_world_is_rich() -> None:
    """Every way to end a call is met: a simulation that meets no trouble proves nothing (F3)."""
    seen: Counter[str] = Counter()
    for seed in range(100, 100 + len(WEATHERS)):
        seen += _simulate(seed, 3 * MINUTES_S)[0].seen
    rare = {"unavailable/not_run", "circuit_open/not_run", "settled by hand", "death", "ok joined"}
    common = {
        "ok replayed",
        "timeout/unknown",
        "outcome_unknown/unknown",
        "caller left",
        "key_reused/not_run",
    }
    assert rare | common <= seen.keys()


def test_the_same_seed_is_the_same_history() -> None:
    """Two runs of one seed have the same trace, another seed has another (F2)."""
    traces = [_simulate(seed, 2 * MINUTES_S)[1] for seed in (7, 7, 11)]
    assert traces[0] == traces[1] != traces[2]


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_invariants_hold_for_an_hour(seed: int) -> None:
    """The same for an hour of virtual time each, 200 seeds (F1)."""
    _simulate(seed, HOUR_S)
