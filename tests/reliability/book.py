"""What the callers know: which key they sent, what they were told, and whether a later word may differ."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lineside.v1.dispatch_pb2 import ToolAnswer, ToolCall
from lineside.v1.errors_pb2 import Source
from tests.support.effect_server import EffectServer
from tests.support.process import Ended, wire_call

ONCE = frozenset({"final", "phased"})
"""Tools whose effect may happen once per key."""


@dataclass(slots=True)
class Sent:
    """One key and everything that its callers were told.

    life: in which it was first sent; is_victim: a process died over it, so it is left alone until everything
    is checked.
    """

    key: str
    tool: str
    amount: int
    flaky: bool
    life: int
    is_victim: bool = False
    answers: list[ToolAnswer] = field(default_factory=list)

    @property
    def arguments(self) -> dict[str, Any]:
        """What it is always sent with."""
        return {"amount": self.amount, "flaky": self.flaky}

    def call(self) -> ToolCall:
        """The call, as often as wanted."""
        return wire_call(self.tool, self.arguments, idempotency_key=self.key)


class Book:
    """Every key of one story. kinds: how calls ended, by kind."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.keys: dict[str, Sent] = {}
        self.kinds: Counter[str] = Counter()
        self.life = 0

    def next(self) -> Sent:
        """Mostly a new key; sometimes one under way, or one whose fate an earlier death left open."""
        again = self._chance.random()
        if again < 0.2 and (
            open_keys := [s for s in self.keys.values() if not s.answers and not s.is_victim]
        ):
            return self._chance.choice(open_keys[-200:])
        number = len(self.keys)
        sent = Sent(
            key=f"key-{number}",
            tool=self._chance.choice(("final", "final", "phased", "phased", "by_key", "safe", "twice")),
            amount=self._chance.randrange(1_000_000),
            flaky=self._chance.random() < 0.1,
            life=self.life,
        )
        self.keys[sent.key] = sent
        return sent

    def told(self, sent: Sent, ended: Ended) -> None:
        """What a caller got, before a death or between two."""
        self.kinds[ended.kind] += 1
        if ended.answer is not None:
            assert ended.answer.result_json == b'{"paid":%d}' % sent.amount
            sent.answers.append(ended.answer)
        else:
            assert ended.kind in {"bare", "outcome_unknown"}, ended

    @property
    def acknowledged(self) -> int:
        """Keys whose callers were told OK."""
        return sum(1 for sent in self.keys.values() if sent.answers)

    def check_repeat(self, sent: Sent, ended: Ended, before: Mapping[str, int]) -> None:
        """Judge what the key gets after the last death; before: effects when all was quiet."""
        known = sent.answers[0] if sent.answers else None
        if ended.kind == "outcome_unknown":
            assert sent.tool in ONCE, sent
            assert known is None, f"acknowledged, then lost: {sent}"
            assert before.get(sent.key, 0) <= 1, sent
            return
        assert ended.answer is not None, (sent, ended)
        if known is not None:
            assert ended.answer.source == Source.SOURCE_REPLAYED, sent
            said, again = known, ended.answer
            assert (again.result_json, again.call_id) == (said.result_json, said.call_id), sent
            assert (again.attempts, again.tool_error) == (said.attempts, said.tool_error), sent
        if sent.tool in ONCE:
            replayed = ended.answer.source == Source.SOURCE_REPLAYED
            assert before.get(sent.key, 0) == (1 if replayed else 0), (sent, ended)
        sent.answers.append(ended.answer)

    def check_effects(self, after: EffectServer) -> int:
        """At most one effect per key where that is promised; returns how many such keys had one."""
        for sent in self.keys.values():
            if sent.tool in ONCE:
                assert after.effects[sent.key] <= 1, f"a second effect: {sent}"
            assert len(after.tokens[sent.key]) <= 1, f"an upstream saw two keys for one call: {sent}"
        return sum(after.effects[sent.key] for sent in self.keys.values() if sent.tool in ONCE)
