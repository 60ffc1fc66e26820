from __future__ import annotations

import asyncio

import pytest

from tests.support.effects import Effect, EffectLog
from tests.support.virtual_loop import VirtualTimeLoop


def test_effects_are_kept_in_order_with_their_virtual_time(virtual_loop: VirtualTimeLoop) -> None:
    """Each effect keeps key, tool, attempt and the time it took place."""
    log = EffectLog(virtual_loop.time)

    async def scenario() -> None:
        log.append("a", "pay", 1)
        await asyncio.sleep(2)
        log.append("b", "mail", 1)
        log.append("a", "pay", 2)

    virtual_loop.run(scenario())
    assert list(log) == [Effect("a", "pay", 1, 0.0), Effect("b", "mail", 1, 2.0), Effect("a", "pay", 2, 2.0)]
    assert len(log) == 3
    assert (log.count("a"), log.count("b"), log.count("never")) == (2, 1, 0)
    assert [effect.attempt for effect in log.of("a")] == [1, 2]


def test_a_second_effect_breaks_at_most_once(virtual_loop: VirtualTimeLoop) -> None:
    """A key with two effects is named with both of them; none or one is fine."""
    log = EffectLog(virtual_loop.time)
    log.append("a", "pay", 1)
    log.assert_at_most_once(["a", "never"])
    log.append("a", "pay", 2)
    with pytest.raises(AssertionError, match=r"'a' had .*attempt=1.*attempt=2"):
        log.assert_at_most_once(["a"])


def test_an_acknowledged_key_has_had_its_effect(virtual_loop: VirtualTimeLoop) -> None:
    """A caller told OK without an effect is caught."""
    log = EffectLog(virtual_loop.time)
    log.append("a", "pay", 1)
    log.assert_exactly_once(["a"])
    with pytest.raises(AssertionError, match="'never'"):
        log.assert_exactly_once(["a", "never"])


def test_effects_are_part_of_the_trace() -> None:
    """With `record` a different effect gives a different trace hash."""
    hashes = set()
    for key in ("a", "b"):
        with VirtualTimeLoop(0) as loop:
            EffectLog(loop.time, record=loop.record).append(key, "pay", 1)
            hashes.add(loop.trace_hash())
    assert len(hashes) == 2
