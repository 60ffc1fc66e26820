"""The demo: all conversations through a real service, then its final states against direct execution."""

from __future__ import annotations

import asyncio
import fcntl
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from conversations.caller import Caller
from conversations.comparison import Comparison, compare
from conversations.config import (
    ATTEMPT_TIMEOUT_S,
    CALL_TIMEOUT_S,
    FAULTS_TOOL,
    demo_config,
    write_config,
)
from conversations.corpus import Conversation, load_corpus
from conversations.direct import run_directly
from conversations.gateway import CallRecord, connected
from conversations.process import serving
from conversations.report import Progress
from conversations.schemas import tool_schemas
from conversations.tally import Tally

__all__ = ["DatabaseInUse", "Outcome", "run_demo", "write_summary"]

AT_ONCE = 32
"""Conversations that run at a time."""

_LISTEN = "127.0.0.1:50051"  # for whoever serves the config afterwards; the demo itself takes a free port
_DATABASE = "demo.sqlite"


class DatabaseInUse(Exception):
    """A service still works on the database of an earlier run."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run: the summary, the call with the longest story, and where states differ, in words."""

    summary: dict[str, Any]
    record: CallRecord | None
    differences: list[str]

    @property
    def as_promised(self) -> bool:
        """Whether states, answers and effects are as direct execution leaves them, and nothing is open."""
        summary = self.summary
        return (
            not self.differences
            and summary["states_equal"] == summary["conversations"]
            and summary["answers_equal"] == summary["calls"]
            and summary["effects_once"] == summary["final_calls"]
            and summary["second_effects"] == summary["left_unknown"] == 0
        )


async def run_demo(
    directory: Path, *, seed: int | None, limit: int | None = None, progress: Progress | None = None
) -> Outcome:
    """Run the first `limit` conversations (None: all) with the faults of `seed` (None: none).

    `directory` gets the config, the database and the service's log.

    Raises:
        DatabaseInUse: a service still has the database that a run there left behind.
        ServiceDied: the service did not start, or did not live to an orderly stop.
        PromiseBroken: the service broke a promise to a caller.
        Refused: it refused what it must not refuse.
    """
    progress = progress or Progress()
    progress.say("  starting the service …")
    conversations = list(islice(load_corpus().values(), limit))
    direct = {final.conversation: final for final in run_directly(conversations)}
    config = _fresh_config(directory, with_faults=seed is not None)
    async with serving(config, directory / "service.log") as target, connected(target) as gateway:
        await gateway.send(FAULTS_TOOL, {"seed": seed}, timeout_s=CALL_TIMEOUT_S)
        tally = Tally()
        caller = Caller(
            gateway,
            tally,
            schemas=tool_schemas(),
            expected={key: answer for final in direct.values() for key, answer in final.answers.items()},
            seed=seed,
        )
        began = time.monotonic()
        await _run_all(caller, conversations, tally, progress)
        seconds = time.monotonic() - began
        progress.say("  comparing the final states …")
        comparison = await compare(gateway, conversations, direct)
        left_unknown = len(await gateway.unknown_calls())
        progress.say("  stopping the service …")
    progress.say("")
    run = {"seed": seed, "conversations": len(conversations), "seconds": round(seconds, 1)}
    summary = {**run, **_summary(tally, comparison), "left_unknown": left_unknown}
    return Outcome(summary=summary, record=caller.most_eventful, differences=comparison.differences)


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Write a summary as JSON, its directory included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _fresh_config(directory: Path, *, with_faults: bool) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    _remove_database(directory / _DATABASE)
    config = directory / "lineside.toml"
    # Where nothing hangs, the short limit would only measure how busy the machine is.
    limit_s = ATTEMPT_TIMEOUT_S if with_faults else CALL_TIMEOUT_S
    write_config(config, demo_config(listen=_LISTEN, database=_DATABASE, attempt_timeout_s=limit_s))
    return config


def _remove_database(database: Path) -> None:
    lock = database.with_name(f"{database.name}.lock")  # the service holds it as long as it lives
    if lock.exists():
        with lock.open() as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DatabaseInUse(f"a service is using {database}: stop it first") from None
    for old in database.parent.glob(f"{database.name}*"):
        old.unlink()


async def _run_all(
    caller: Caller, conversations: Sequence[Conversation], tally: Tally, progress: Progress
) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def run(conversation: Conversation) -> None:
        async with free:
            await caller.run(conversation)

    calls = sum(len(conversation.calls) for conversation in conversations)
    draw = partial(progress.draw, tally, calls=calls, conversations=len(conversations))
    async with _repeated(draw, progress.interval_s), asyncio.TaskGroup() as group:
        for conversation in conversations:
            group.create_task(run(conversation))


@asynccontextmanager
async def _repeated(draw: Callable[[], None], interval_s: float) -> AsyncIterator[None]:
    async def redraw() -> None:
        while True:
            draw()
            await asyncio.sleep(interval_s)

    drawing = asyncio.create_task(redraw())
    try:
        yield
    finally:
        drawing.cancel()
        await asyncio.wait({drawing})


def _summary(tally: Tally, comparison: Comparison) -> dict[str, Any]:
    counts = tally.summary()
    return {
        **counts,
        "answers_equal": counts["calls"] - len(counts["unequal_answers"]),
        "final_calls": comparison.final_calls,
        "effects_once": comparison.effects_once,
        "second_effects": comparison.second_effects,
        "states_equal": comparison.states_equal,
    }
