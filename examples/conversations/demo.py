"""The demo: all conversations through a real service, then its final states against direct execution."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from conversations.caller import Caller
from conversations.config import FAULTS_TOOL, STATE_DIGEST_TOOL, STATE_TOOL, demo_config, write_config
from conversations.corpus import Conversation, load_corpus
from conversations.direct import FinalState, run_directly
from conversations.gateway import CallRecord, Gateway, connected
from conversations.process import free_port, serving
from conversations.report import Progress
from conversations.schemas import tool_schemas
from conversations.state import differences
from conversations.tally import Tally

__all__ = ["Outcome", "run_demo", "write_summary"]

AT_ONCE = 32
"""Conversations that run at a time."""

_DATABASE = "demo.sqlite"
_ADAPTER_TIMEOUT_S = 30.0
_DIFFERENCES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run: the summary, the call with most attempts, and where states differ, in words."""

    summary: dict[str, Any]
    record: CallRecord | None
    differences: list[str]

    @property
    def as_promised(self) -> bool:
        """Whether every state and answer is as direct execution leaves it, and nothing is left open."""
        return (
            not self.differences
            and self.summary["states_equal"] == self.summary["conversations"]
            and self.summary["answers_equal"] == self.summary["calls"]
            and self.summary["second_effects"] == self.summary["left_unknown"] == 0
        )


async def run_demo(directory: Path, *, seed: int | None, limit: int | None = None) -> Outcome:
    """Run the first `limit` conversations (None: all) with the faults of `seed` (None: none).

    `directory` gets the config, the database, the log and the summary `demo.json`.

    Raises:
        ServiceDied: the service did not start or stop in order.
        PromiseBroken: the service broke a promise to a caller.
    """
    conversations = dict(islice(load_corpus().items(), limit))
    direct = {final.conversation: final for final in run_directly(conversations.values())}
    target = f"127.0.0.1:{free_port()}"
    config = _fresh_config(directory, target)
    print(f"starting the service on {target}", file=sys.stderr)
    async with serving(config, target, directory / "service.log"), connected(target) as gateway:
        await gateway.send(FAULTS_TOOL, {"seed": seed}, timeout_s=_ADAPTER_TIMEOUT_S)
        tally = Tally()
        began = time.monotonic()
        record = await _run_all(gateway, conversations, direct, tally, seed)
        seconds = time.monotonic() - began
        compared = await _compare(gateway, direct)
        left_unknown = len(await gateway.unknown_calls())
    counts = tally.summary()
    summary = {
        "seed": seed,
        "conversations": len(conversations),
        **counts,
        "seconds": round(seconds, 1),
        "left_unknown": left_unknown,
        "second_effects": compared.second_effects,
        "answers_equal": counts["calls"] - len(counts["unequal_answers"]),
        "states_equal": compared.equal,
    }
    return Outcome(summary=summary, record=record, differences=compared.differences)


def _fresh_config(directory: Path, target: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob(f"{_DATABASE}*"):
        old.unlink()
    config = directory / "lineside.toml"
    write_config(config, demo_config(listen=target, database=_DATABASE))
    return config


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Write a summary as JSON, its directory included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


async def _run_all(
    gateway: Gateway,
    conversations: dict[str, Conversation],
    direct: dict[str, FinalState],
    tally: Tally,
    seed: int | None,
) -> CallRecord | None:
    caller = Caller(
        gateway,
        tally,
        schemas=tool_schemas(),
        expected={key: answer for final in direct.values() for key, answer in final.answers.items()},
        seed=seed,
    )
    calls = sum(len(conversation.calls) for conversation in conversations.values())
    progress = Progress(tally, calls=calls, conversations=len(conversations))
    free = asyncio.Semaphore(AT_ONCE)

    async def run(conversation: Conversation) -> None:
        async with free:
            await caller.run(conversation)

    async with _drawn(progress), asyncio.TaskGroup() as group:
        for conversation in conversations.values():
            group.create_task(run(conversation))
    return caller.most_retried


@asynccontextmanager
async def _drawn(progress: Progress) -> AsyncIterator[None]:
    async def draw() -> None:
        while True:
            progress.draw()
            await asyncio.sleep(progress.interval_s)

    drawing = asyncio.create_task(draw())
    try:
        yield
    finally:
        drawing.cancel()
        await asyncio.wait({drawing})
        progress.draw(last=True)


@dataclass(frozen=True, kw_only=True)
class _Compared:
    equal: int
    second_effects: int
    differences: list[str]


async def _compare(gateway: Gateway, direct: dict[str, FinalState]) -> _Compared:
    equal = second_effects = 0
    found: list[str] = []
    for name, final in direct.items():
        arguments = {"conversation": name}
        told = (await gateway.send(STATE_DIGEST_TOOL, arguments, timeout_s=_ADAPTER_TIMEOUT_S)).answer.result
        second_effects += told["second_effects"]
        if told["digest"] == final.digest:
            equal += 1
            continue
        served = (await gateway.send(STATE_TOOL, arguments, timeout_s=_ADAPTER_TIMEOUT_S)).answer.result
        lines = differences(served, final.state) or ["the states differ in how they share containers"]
        found += [f"{name}{line}" for line in lines[:_DIFFERENCES_SHOWN]]
    return _Compared(equal=equal, second_effects=second_effects, differences=found)
