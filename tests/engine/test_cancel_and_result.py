"""The tool resolves in the very instant of its caller's cancel, in as many orders as chance makes.

One rig tells the story again and again, so that a hundred thousand orders are affordable (10,000 in the usual
form): the loop draws the order anew each time, and the cancel comes some callbacks into the instant, before,
amid and after those that hand the result on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from lineside_service.core.call import Reply
from lineside_service.core.ledger import RowState
from tests.support.engine_rig import IDEMPOTENT, Rig
from tests.support.scripted_tool import answer, transient

ORDERS = 500
"""In each rig; there are 5 rigs a test, 50 in the long form, and 4 tests."""

LATEST_HOP = 6
"""So many callbacks pass before the cancel at most: enough for a reply to be there already."""

MET = {(True, 1), (False, 1), (False, 0)}
"""Whether the caller was answered, and how many effects there were."""

pytestmark = [
    pytest.mark.parametrize(
        "virtual_loop",
        [*range(5), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 55))],
        indirect=True,
    ),
    pytest.mark.parametrize("key", [None, "k"]),
]


class Instants:
    """Calls of `mail` that are cancelled one second in, when its tool resolves, and their keys."""

    def __init__(self, rig: Rig, key: str | None) -> None:
        self._rig = rig
        self._key = key
        self._chance = random.Random(rig.loop.seed)

    def __iter__(self) -> Iterator[str | None]:
        return (self._key and f"{self._key}{number}" for number in range(ORDERS))

    async def cancelled(self, key: str | None) -> Reply | None:
        """One call; None when the cancel came before its reply."""
        task = self._rig.start("mail", key)
        self._rig.loop.call_later(1.0, self._hop, task, self._chance.randint(0, LATEST_HOP))
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    def _hop(self, task: asyncio.Task[Any], left: int) -> None:
        if left:
            self._rig.loop.call_soon(self._hop, task, left - 1)
        else:
            task.cancel()

    async def drained(self) -> None:
        """One more call, cancelled amid a drain: that ends as soon as the call does."""
        task = self._rig.loop.create_task(self.cancelled(self._key))
        await asyncio.sleep(0.5)
        assert await self._rig.dispatcher.drain(30)
        await task


async def test_no_attempt_follows_a_cancel(rig: Rig, key: str | None) -> None:
    """A failure worth a retry meets the cancel: there is no further attempt, and a drain ends (R015)."""
    tool = rig.add("mail", transient(after=1), **IDEMPOTENT)
    instants = Instants(rig, key)
    for own in instants:
        assert await instants.cancelled(own) is None
    await asyncio.sleep(60)
    assert tool.attempts == ORDERS
    await instants.drained()
    assert tool.attempts == ORDERS + 1


async def test_a_result_is_kept_if_the_tool_did_finish(rig: Rig, key: str | None) -> None:
    """A success meets the cancel: one attempt, and its row is done exactly if its effect is (R015)."""
    tool = rig.add("mail", answer(after=1))
    instants, met = Instants(rig, key), set[tuple[bool, int]]()
    for number, own in enumerate(instants, 1):
        before = len(rig.effects)
        reply = await instants.cancelled(own)
        await asyncio.sleep(1)
        effects = len(rig.effects) - before
        assert tool.attempts == number
        met.add((reply is not None, effects))
        row = None if own is None else await rig.row("mail", own)
        assert own is None or effects == (row is not None and row.state is RowState.DONE)
    assert met == (MET if key is None else MET - {(False, 0)})  # with a key the work outlives its caller
    await instants.drained()
