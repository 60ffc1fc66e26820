"""Kill -9 at each named point of a call's road, 64 calls in flight, and what the next process makes of it.

Per seed the service dies once at every point of `killable.POINTS`, on one database with 10,000 older rows. In
the usual form LIVES_A_CHECK lives follow each other on the file before the plain service is started and
everything is checked (the next life recovers what a death leaves just the same); in the soak form the plain
service follows each death. That it serves again within 3 s is held to in test_start.py, on a quieter machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from lineside.v1 import calls_pb2
from tests.reliability.archive import write_archive
from tests.reliability.book import ONCE, Book, Sent
from tests.reliability.figures import Figures
from tests.reliability.killable import POINTS
from tests.support.effect_server import EffectServer
from tests.support.process import Ended, ServiceProcess, call_service, dispatched, service

IN_FLIGHT = 64
LIVES_A_CHECK = 6
OLD_ROWS = 10_000
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 23))]
CONFIG = """
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[tools.final]
target = "effect_tools:pay"
keep_done = "1h"
breaker = { enabled = false }
retry = { initial = "5ms", budget = 100 }
[tools.phased]
target = "effect_tools:pay_in_phases"
phases = true
keep_done = "1h"
breaker = { enabled = false }
retry = { initial = "5ms", budget = 100 }
[tools.by_key]
target = "effect_tools:pay"
idempotent = "by_key"
key_ttl = "1h"
keep_done = "1h"
breaker = { enabled = false }
retry = { initial = "5ms", budget = 100 }
[tools.safe]
target = "effect_tools:pay"
effect = "safe"
keep_done = "1h"
breaker = { enabled = false }
retry = { initial = "5ms", budget = 100 }
[tools.twice]
target = "effect_tools:pay"
idempotent = true
keep_done = "1h"
breaker = { enabled = false }
retry = { initial = "5ms", budget = 100 }
"""

NEVER_RAN = frozenset({"claim.before", "claim.after", "slot.before", "slot.after", "intent.before"})
"""Who dies here has started nothing and says so: the key executes."""
RECORDED = frozenset({"record.after", "answer.before"})
"""Who dies here has its answer on disk: the key replays it."""
EITHER = frozenset({"intent.during", "record.during", "answer.after"})
"""The write may have come through; or the point does not know whose call it was."""


class Mortal:
    """Lives of the service that end where they are told to, one after the other on the same database."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.victim = ""

    async def born(self, trap: dict[str, Any]) -> str:
        """Start a life with this trap; its address."""
        self.conceive(trap)
        found = re.search(r"SERVING on (\S+):", await self._line())
        assert found is not None
        return found[1]

    def conceive(self, trap: dict[str, Any]) -> None:
        """Start a life with this trap, which may close before it serves."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(trap).encode() + b"\n")

    async def died(self) -> None:
        """Return once the life has ended in its trap; victim: the key that was in it, if known."""
        words = (await self._line()).split(" ")
        assert words[0] == "KILLED", words
        self.victim = words[2].strip()
        assert (await self._line()).split() == ["ENDED", "-9"]

    async def _line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            line = (await self._process.stdout.readline()).decode()
        assert line, "the process that makes lives has ended"
        return line


@contextlib.asynccontextmanager
async def mortal(config: Path) -> AsyncIterator[Mortal]:
    """The process that makes lives."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.reliability.killable", str(config)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    try:
        yield Mortal(process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # a life that is still going on, too
        await process.communicate()


async def load(channel: grpc.aio.Channel, book: Book) -> None:
    """64 callers, one call after the other, until the service is gone."""

    async def caller() -> None:
        while True:
            sent = book.next()
            ended = await dispatched(channel, sent.call())
            book.told(sent, ended)
            if ended.kind == "bare":
                assert ended.code is grpc.StatusCode.UNAVAILABLE, ended
                return

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))


async def one_life(lives: Mortal, book: Book, trap: dict[str, Any]) -> None:
    """Born, loaded, dead."""
    async with (
        asyncio.timeout(30),  # a point that no call passes
        grpc.aio.insecure_channel(await lives.born(trap)) as channel,
        asyncio.TaskGroup() as both,
    ):
        both.create_task(load(channel, book))
        both.create_task(lives.died())


class Judge:
    """Looks at everything once the plain service is back. slowest_s: the longest a key took to answer."""

    def __init__(self, served: ServiceProcess, book: Book, effects: EffectServer) -> None:
        self._served = served
        self._book = book
        self._effects = effects
        self._channel = served.channel()
        self._calls = call_service(self._channel)
        self.slowest_s = 0.0
        self.unknown = 0

    async def judge(self) -> dict[str, Ended]:
        """Repeat every key, compare, settle what is unknown, and see those keys answer too."""
        assert len(await self.listed()) == await self._gauge()
        found = await self._repeated(list(self._book.keys.values()))
        unknown = {key for key, ended in found.items() if ended.kind == "outcome_unknown"}
        listed = await self.listed()
        assert {call.idempotency_key for call in listed} == unknown
        assert await self._gauge() == len(unknown)
        self.unknown = len(unknown)
        for call in listed:
            await self._settle(call)
        again = await self._repeated([self._book.keys[key] for key in unknown])
        assert all(ended.kind == "ok" for ended in again.values()), again
        assert await self._gauge() == 0
        effects = self._book.check_effects(self._effects)
        assert effects == sum(1 for sent in self._book.keys.values() if sent.tool in ONCE)
        return found

    async def _repeated(self, keys: list[Sent]) -> dict[str, Ended]:
        before = dict(self._effects.effects)
        found: dict[str, Ended] = {}
        left = list(keys)

        async def caller() -> None:
            while left:
                sent = left.pop()
                began = time.monotonic()
                found[sent.key] = await dispatched(self._channel, sent.call())
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self._book.check_repeat(sent, found[sent.key], before)

        await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
        return found

    async def _gauge(self) -> float:
        return await self._served.metric("dispatch_ledger_unknown")

    async def listed(self) -> list[Any]:
        """Every unknown call."""
        calls, token = [], ""
        while True:
            request = calls_pb2.ListCallsRequest(
                state=calls_pb2.Call.STATE_UNKNOWN, page_size=100, page_token=token
            )
            page = await self._calls.ListCalls(request, timeout=10)
            calls += page.calls
            token = page.next_page_token
            if not token:
                return calls

    async def _settle(self, call: Any) -> None:
        """As a person who looks at the effects: done with the result, or not run."""
        sent = self._book.keys[call.idempotency_key]
        request = calls_pb2.SettleCallRequest(call_id=call.call_id, etag=call.etag, reason="looked it up")
        if self._effects.effects[sent.key]:
            request.done.result_json = b'{"paid":%d}' % sent.amount
        else:
            request.not_run.SetInParent()
        await self._calls.SettleCall(request, timeout=10)


def check_victim(point: str, sent: Sent, ended: Ended) -> None:
    """What the call in the trap gets afterwards follows from where it was."""
    if sent.tool not in ONCE or sent.flaky or point in EITHER:
        return
    source = ended.answer.source if ended.answer is not None else None
    if point in NEVER_RAN:
        assert source == 1, (point, sent, ended)
    elif point in RECORDED:
        assert source == 3, (point, sent, ended)
    else:
        assert ended.kind == "outcome_unknown", (point, sent, ended)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", SEEDS)
async def test_kill_9_at_every_point_of_the_road(
    seed: int, home: Path, effects: EffectServer, figures: Figures, is_soak: bool
) -> None:
    """No second effect of a tool that is not idempotent, no acknowledged answer lost, no key blocked; what
    nobody can know is said to be unknown, listed, settled, and answers then (R049, R051, R097).
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    await write_archive(home / "lineside.db", rows=OLD_ROWS)
    chance = random.Random(seed)
    points = chance.sample(POINTS, len(POINTS))
    step = 1 if is_soak else LIVES_A_CHECK
    async with mortal(config) as lives:
        book = Book(chance)
        for start in range(0, len(points), step):
            victims: list[tuple[str, Sent]] = []
            for point in points[start : start + step]:
                book.life += 1
                nth = chance.randint(1, 30 if point.startswith("begin") else 150)
                delay_s = chance.uniform(0.0001, 0.003) if point.endswith("during") else 0.0
                await one_life(lives, book, {"point": point, "nth": nth, "delay_s": delay_s})
                victim = book.keys.get(lives.victim)
                if victim is not None and victim.life == book.life:
                    victim.is_victim = True
                    victims.append((point, victim))
            async with service(config) as served:
                judge = Judge(served, book, effects)
                found = await judge.judge()
                for point, victim in victims:
                    check_victim(point, victim, found[victim.key])
                served.kill()
                await served.ended()
            figures.note("kill.serving_again", served.started.clock_s, "s", target="<= 3")
            figures.note("kill.slowest_key_afterwards", judge.slowest_s, "s", target="< 10")
            figures.note("kill.unknown_settled", judge.unknown, "calls", combine=sum)
    figures.note("kill.deaths", len(points), "kills", combine=sum)
    figures.note("kill.keys", len(book.keys), "keys", combine=sum)
    figures.note("kill.acknowledged_answers", book.kinds["ok"], "answers", combine=sum)
    # check_effects and check_repeat would have failed otherwise
    figures.note("kill.second_effects", 0, "effects", target="0", combine=sum)
    figures.note("kill.acknowledged_lost", 0, "answers", target="0", combine=sum)


@pytest.mark.asyncio
async def test_kill_9_in_the_middle_of_a_recovery(home: Path) -> None:
    """Nine starts in a row die while they settle what 5,000 calls in flight left: each of those is unknown in
    the end, once, and listed (R049).
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    await write_archive(home / "lineside.db", rows=0, running=5_000)
    async with mortal(config) as lives:
        for moment, delay_s in (("before", 0.0), ("during", 0.002), ("after", 0.0)):
            for nth in (1, 40, 60):
                lives.conceive({"point": f"recover.{moment}", "nth": nth, "delay_s": delay_s})
                await lives.died()
    async with service(config) as served:
        judge = Judge(served, Book(random.Random(0)), EffectServer(home / "none"))
        keys = [call.idempotency_key for call in await judge.listed()]
        assert sorted(keys) == sorted(f"old-{number}" for number in range(5_000))
        assert await served.metric("dispatch_ledger_unknown") == 5_000
