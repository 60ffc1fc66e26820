from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count

import pytest

from conversations.catalogue import APIS
from conversations.corpus import Conversation
from conversations.faults import Fault, fault_at
from conversations.host import FailedBefore, Host

VEHICLE = next(api for api in APIS if api.prefix == "vehicle")
FILES = next(api for api in APIS if api.prefix == "files")
CONVERSATION = "multi_turn_base_50"  # it has a vehicle
KEY = f"{CONVERSATION}:0:0"


@dataclass(frozen=True)
class Attempt:
    """An attempt that was, or was not, given up before its effect."""

    key: str | None = KEY
    downstream_key: str = "d"
    given_up: bool = False

    def begin_effect(self) -> None:
        """Raise if the attempt was given up."""
        if self.given_up:
            raise RuntimeError("given up")


def _host_with(corpus: dict[str, Conversation], fault: Fault) -> Host:
    seed = next(seed for seed in count() if fault_at(seed, KEY, 0) is fault)
    return Host(corpus, fault_seed=seed)


async def _call(host: Host, attempt: Attempt) -> object:
    answer = await host.call(VEHICLE, "get_current_speed", CONVERSATION, {}, attempt)
    return answer.result


async def _hanging(host: Host, attempt: Attempt) -> asyncio.Task[object]:
    task = asyncio.create_task(_call(host, attempt))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.asyncio
async def test_a_call_has_its_effect_and_is_recorded(corpus: dict[str, Conversation]) -> None:
    """The record answers with the very result, by the downstream key and by the caller's."""
    host = _host_with(corpus, Fault.NONE)
    before = await host.state(CONVERSATION)
    result = await _call(host, Attempt())
    assert await host.state(CONVERSATION) != before
    for inquiry in (host.inquire("d"), host.inquire_by_key(KEY)):
        assert inquiry.state == "done"
        assert inquiry.answer is not None
        assert inquiry.answer.result == result


@pytest.mark.asyncio
async def test_a_failure_before_the_effect_leaves_nothing(corpus: dict[str, Conversation]) -> None:
    """The conversation is as before, and the call counts as not run."""
    host = _host_with(corpus, Fault.FAIL_BEFORE)
    before = await host.state(CONVERSATION)
    with pytest.raises(FailedBefore):
        await _call(host, Attempt())
    assert await host.state(CONVERSATION) == before
    assert host.inquire("d").state == "not_run"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fault", "during", "after"),
    [(Fault.HANG_BEFORE, "unknown", "not_run"), (Fault.HANG_AFTER, "done", "done")],
)
async def test_what_became_of_a_hanging_call_is_known_once_it_ends(
    corpus: dict[str, Conversation], fault: Fault, during: str, after: str
) -> None:
    """Before its effect a call in flight is unknown and then not run; after it, it is done."""
    host = _host_with(corpus, fault)
    task = await _hanging(host, Attempt())
    assert host.inquire("d").state == during
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert host.inquire("d").state == after


@pytest.mark.asyncio
async def test_a_call_that_never_arrived_is_unknown(corpus: dict[str, Conversation]) -> None:
    """A process that did not see a call cannot say that it did not run."""
    host = Host(corpus)
    assert host.inquire("elsewhere").state == host.inquire_by_key(KEY).state == "unknown"


@pytest.mark.asyncio
async def test_an_attempt_given_up_before_its_effect_has_none(corpus: dict[str, Conversation]) -> None:
    """With phases the point of no return comes right before the effect."""
    host = Host(corpus)
    before = await host.state("multi_turn_base_0")
    with pytest.raises(RuntimeError, match="given up"):
        await host.call(FILES, "mkdir", "multi_turn_base_0", {"dir_name": "x"}, Attempt(given_up=True))
    assert await host.state("multi_turn_base_0") == before


@pytest.mark.asyncio
async def test_effects_are_counted(corpus: dict[str, Conversation]) -> None:
    """The upstream does not protect itself from a repeated call; it tells on it."""
    host = Host(corpus)
    await _call(host, Attempt())
    assert (await host.state_digest(CONVERSATION))["effects"] == {KEY: 1}
    await _call(host, Attempt())
    assert (await host.state_digest(CONVERSATION))["effects"] == {KEY: 2}


@pytest.mark.asyncio
async def test_calls_of_one_conversation_wait_for_each_other(corpus: dict[str, Conversation]) -> None:
    """A hanging call holds its conversation and no other."""
    host = _host_with(corpus, Fault.HANG_BEFORE)
    task = await _hanging(host, Attempt())
    waiting = await _hanging(host, Attempt(key=None, downstream_key="e"))
    elsewhere = await host.call(FILES, "pwd", "multi_turn_base_0", {}, Attempt(key=None, downstream_key="f"))
    assert not elsewhere.tool_error
    task.cancel()
    assert await waiting is not None
    with pytest.raises(asyncio.CancelledError):
        await task
