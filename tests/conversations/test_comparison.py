from __future__ import annotations

from typing import Any

import pytest

from conversations.comparison import compare
from conversations.config import STATE_DIGEST_TOOL
from conversations.corpus import Conversation
from conversations.demo import Outcome
from conversations.direct import run_directly
from conversations.execution import Answer
from conversations.gateway import Gateway, Reply
from conversations.host import Host

NAME = "multi_turn_base_50"

AS_PROMISED = {
    "conversations": 200,
    "states_equal": 200,
    "calls": 1142,
    "answers_equal": 1142,
    "final_calls": 698,
    "effects_once": 698,
    "second_effects": 0,
    "left_unknown": 0,
}


class Arrival:
    """An attempt of a call under its key."""

    def __init__(self, key: str) -> None:
        self.key = self.downstream_key = key

    def begin_effect(self) -> None:
        """Go on."""


class InProcess(Gateway):
    """Asks the upstream's host directly, without a service in between."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def send(
        self, tool: str, arguments: dict[str, Any], *, timeout_s: float, key: str | None = None
    ) -> Reply:
        """Answer the two questions about a conversation's state."""
        ask = self._host.state_digest if tool == STATE_DIGEST_TOOL else self._host.state
        answer = Answer(result=await ask(arguments["conversation"]))
        return Reply(answer=answer, attempts=1, source="executed", call_id="")


async def _served(conversation: Conversation) -> Host:
    host = Host({conversation.id: conversation})
    for call in conversation.calls:
        await host.call(call.api, call.method, conversation.id, call.arguments, Arrival(call.key))
    return host


@pytest.mark.asyncio
async def test_equal_conversations_compare_equal(corpus: dict[str, Conversation]) -> None:
    """Each call once, in order: the same state, and every effect exactly once."""
    conversation = corpus[NAME]
    direct = {final.conversation: final for final in run_directly([conversation])}
    compared = await compare(InProcess(await _served(conversation)), [conversation], direct)
    assert (compared.states_equal, compared.differences, compared.second_effects) == (1, [], 0)
    assert compared.effects_once == compared.final_calls > 0


@pytest.mark.asyncio
async def test_a_call_that_ran_twice_is_found_out(corpus: dict[str, Conversation]) -> None:
    """By the count of its effects, and by the state if it left a mark there, told in words."""
    conversation = corpus[NAME]
    direct = {final.conversation: final for final in run_directly([conversation])}
    host = await _served(conversation)
    call = next(call for call in conversation.calls if call.method not in call.api.read_only)
    draw = next(api for api in conversation.apis if api.prefix == "vehicle")
    await host.call(draw, "get_current_speed", NAME, {}, Arrival(call.key))
    compared = await compare(InProcess(host), [conversation], direct)
    assert (compared.states_equal, compared.second_effects) == (0, 1)
    assert compared.effects_once == compared.final_calls - 1
    assert any("random" in line for line in compared.differences)


def _outcome(figures: dict[str, int], differences: list[str]) -> Outcome:
    return Outcome(summary={**AS_PROMISED, **figures}, record=None, differences=differences)


def test_only_a_run_without_any_blemish_is_as_promised() -> None:
    """One state, answer or effect amiss, or one outcome left open, and the run has failed."""
    assert _outcome({}, []).as_promised
    assert not _outcome({}, ["multi_turn_base_0/files: 1 is not 2"]).as_promised
    amiss = {
        "states_equal": 199,
        "answers_equal": 1,
        "effects_once": 0,
        "second_effects": 1,
        "left_unknown": 1,
    }
    for figure in amiss.items():
        assert not _outcome(dict([figure]), []).as_promised
