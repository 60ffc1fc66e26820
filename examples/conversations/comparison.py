"""How the served conversations ended, against direct execution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from conversations.catalogue import effect_of
from conversations.config import STATE_DIGEST_TOOL, STATE_TOOL
from conversations.corpus import Conversation
from conversations.direct import FinalState
from conversations.gateway import Gateway
from conversations.state import differences

__all__ = ["Comparison", "compare"]

_TIMEOUT_S = 30.0
_LINES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What agrees and what does not.

    `states_equal`: conversations whose final state is the same. `differences`: where the others' differ, in
    words. `effects_once`: of the `final_calls`, those that took effect exactly once. `second_effects`: what
    took effect more often than once, times counted beyond the first.
    """

    states_equal: int
    differences: list[str]
    final_calls: int
    effects_once: int
    second_effects: int


async def compare(
    gateway: Gateway, conversations: Iterable[Conversation], direct: Mapping[str, FinalState]
) -> Comparison:
    """Ask the upstream how each conversation ended, and hold it against direct execution."""
    states_equal = 0
    effects: Counter[str] = Counter()
    found: list[str] = []
    final_keys: list[str] = []
    for conversation in conversations:
        final_keys += [call.key for call in conversation.calls if effect_of(call.api, call.method) == "final"]
        arguments = {"conversation": conversation.id}
        told = (await gateway.send(STATE_DIGEST_TOOL, arguments, timeout_s=_TIMEOUT_S)).answer.result
        effects.update(told["effects"])
        if told["digest"] == direct[conversation.id].digest:
            states_equal += 1
            continue
        served = (await gateway.send(STATE_TOOL, arguments, timeout_s=_TIMEOUT_S)).answer.result
        lines = differences(served, direct[conversation.id].state)
        lines = lines or ["the states differ in how they share containers"]
        found += [f"{conversation.id}{line}" for line in lines[:_LINES_SHOWN]]
    return Comparison(
        states_equal=states_equal,
        differences=found,
        final_calls=len(final_keys),
        effects_once=sum(effects[key] == 1 for key in final_keys),
        second_effects=effects.total() - len(effects),
    )
