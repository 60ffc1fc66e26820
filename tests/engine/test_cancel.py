"""A caller cancelled at every await of its call, while it waits and after it was woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, get_args

import pytest

from lineside_service.core.breaker import BreakerRules, BreakerState
from lineside_service.core.call import Answer, Reply
from lineside_service.core.errors import ErrorKind, Outcome
from lineside_service.core.ledger import RowState
from tests.support.cancel_points import When, for_each_await
from tests.support.commanded_store import Operation
from tests.support.engine_rig import BY_KEY, IDEMPOTENT, SAFE, Rig, value_of
from tests.support.scripted_tool import Step, answer, clean_up, hang, swallow_cancel, transient
from tests.support.virtual_loop import VirtualTimeLoop

both_moments = pytest.mark.parametrize("when", get_args(When))
seeds = pytest.mark.parametrize("seed", range(3))
SLOW_STORE: dict[Operation, float] = {"find": 0.05, "claim": 0.05, "save": 0.05, "release": 0.05}

Told = Callable[[Rig], Coroutine[Any, Any, None]]


async def victim(rig: Rig, tool: str, key: str | None, **more: Any) -> Reply:
    """The call that is cut."""
    return await rig.dispatch(tool, key, **more)


def _cut_everywhere(
    story: Told, *, when: When, seed: int, target: str = "victim", after: Told | None = None
) -> int:
    """Tell the story once for every await of the target; afterwards all is even and the next call works."""
    rigs: list[Rig] = []

    async def scenario(loop: VirtualTimeLoop) -> None:
        rigs.append(Rig(loop))
        await story(rigs[-1])

    runs = 0
    for k, ending in for_each_await(scenario, target=target, when=when, seed=seed):
        runs, rig = k, rigs[-1]
        ending.loop.run_until_idle()
        rig.assert_clean()
        ending.loop.run(_next_call_works(rig))
        if after is not None:
            ending.loop.run(after(rig))
        ending.loop.run_until_idle()
        rig.assert_clean()
    return runs


async def _next_call_works(rig: Rig) -> None:
    for name, tool in rig.tools.items():
        tool.choose, tool.script = None, [answer("next")]
        await rig.at(rig.loop.time() + 20)
        assert value_of(await rig.dispatch(name, "next")) == "next"
        assert value_of(await rig.dispatch(name)) == "next"


async def _gone(task: asyncio.Task[Reply]) -> Reply | None:
    """Its reply, or None when it was cancelled."""
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


SCRIPTS: list[tuple[str, list[Step], dict[str, Any]]] = [
    ("answers", [answer(after=0.5)], {}),
    ("answers at once", [answer()], {}),
    ("retries", [transient(after=0.1), transient(after=0.1), answer(after=0.1)], {}),
    ("hangs", [hang()], {}),
    ("deaf", [swallow_cancel(answer(after=3))], {}),
    ("cleans up", [clean_up(3, hang())], {}),
    ("idempotent timeouts", [hang(), answer()], IDEMPOTENT),
    ("safe", [hang(), answer()], SAFE),
    ("by key", [hang(effect_at=0.1), answer()], BY_KEY),
    ("phases", [hang(), answer(after=0.5, begin_at=0.2)], {"phases": True}),
]
scripts = pytest.mark.parametrize(
    ("script", "spec"), [row[1:] for row in SCRIPTS], ids=[row[0] for row in SCRIPTS]
)


@both_moments
@seeds
@scripts
@pytest.mark.parametrize("key", [None, "k"])
def test_nothing_leaks_at_any_await(
    script: list[Step], spec: dict[str, Any], key: str | None, when: When, seed: int
) -> None:
    """In the look-up, the claim, the queue, the intent, the attempt, the back-off, the last write."""

    async def story(rig: Rig) -> None:
        rig.add("mail", *script, timeout_s=1.0, concurrency=1, breaker=BreakerRules(), **spec)
        rig.store.delay_s = dict(SLOW_STORE)
        rig.tools["mail"].choose = lambda request: (
            answer(after=0.2) if request.tenant == "blocker" else script[min(request.number, len(script)) - 1]
        )
        busy = rig.start("mail", tenant="blocker")
        await rig.at(0.0)
        task = rig.loop.create_task(victim(rig, "mail", key))
        reply = await _gone(task)
        gone_at = rig.loop.time()
        await busy
        rig.store.delay_s = {}
        await rig.at(gone_at + 10)
        if reply is None and key is None:
            tool = rig.tools["mail"]
            for at, request in zip(tool.started_s, tool.requests, strict=True):
                assert request.tenant == "blocker" or at <= gone_at, "nothing starts for a caller who left"

    assert _cut_everywhere(story, when=when, seed=seed) >= 1


@both_moments
@seeds
@pytest.mark.parametrize("who", ["owner", "joiner"])
@pytest.mark.parametrize("spec", [{}, IDEMPOTENT, BY_KEY])
def test_whoever_is_cut_the_others_are_served(who: str, spec: dict[str, Any], when: When, seed: int) -> None:
    """The owner or a joiner is cancelled at any await: the others get the one result of one effect (R047)."""

    async def story(rig: Rig) -> None:
        tool = rig.add("mail", transient(after=0.1), answer({"id": 7}, after=0.5), **spec)
        rig.store.delay_s = dict(SLOW_STORE)
        if who == "owner":
            cut = rig.loop.create_task(victim(rig, "mail", "k"))
            await rig.at(0.0)
        others = [rig.start("mail", "k") for _ in range(2)]
        if who == "joiner":
            await rig.at(0.06)
            cut = rig.loop.create_task(victim(rig, "mail", "k"))
        await _gone(cut)
        for task in others:
            assert value_of(await task) == {"id": 7}
        assert tool.attempts == 2
        assert rig.effects.count("acme/mail/k") == 1
        assert (await rig.standing("mail", "k")).state is RowState.DONE

    assert _cut_everywhere(story, when=when, seed=seed) >= 2


@both_moments
@seeds
@pytest.mark.parametrize("step", [answer(after=0.5), hang(), swallow_cancel(answer(after=3))])
def test_a_cut_call_leaves_at_most_one_effect(step: Step, when: When, seed: int) -> None:
    """Repeating the key after a cancel joins, replays, executes or is refused, but never runs it twice."""

    async def story(rig: Rig) -> None:
        rig.add("mail", step, timeout_s=1.0)
        rig.store.delay_s = dict(SLOW_STORE)
        await _gone(rig.loop.create_task(victim(rig, "mail", "k")))
        rig.tools["mail"].script = [answer(after=0.1)]
        again = await rig.dispatch("mail", "k")
        if isinstance(again, Answer):
            assert rig.effects.count("acme/mail/k") == 1
        else:
            assert again.outcome in (Outcome.UNKNOWN, Outcome.NOT_RUN)
        await rig.at(rig.loop.time() + 10)
        assert rig.effects.count("acme/mail/k") <= 1

    assert _cut_everywhere(story, when=when, seed=seed) >= 2


@both_moments
@seeds
def test_a_call_cut_while_it_waits_for_a_deserted_key(when: When, seed: int) -> None:
    """The wait for somebody else's release can be cancelled like any other."""

    async def story(rig: Rig) -> None:
        tool = rig.add("mail", transient(retry_after_s=5), answer())
        rig.store.delay_s = {"release": 1.0}
        first = rig.start("mail", "k")
        await rig.at(0.5)
        first.cancel()
        await rig.at(0.6)
        await _gone(rig.loop.create_task(victim(rig, "mail", "k")))
        rig.store.delay_s = {}
        await rig.at(20)
        assert tool.attempts <= 2

    assert _cut_everywhere(story, when=when, seed=seed) >= 2


@both_moments
@seeds
@pytest.mark.parametrize("key", [None, "k"])
def test_an_attempt_cut_from_inside_is_a_failure_of_the_tool(key: str | None, when: When, seed: int) -> None:
    """The tool's own task is cancelled by something in it, at every await: its caller is answered in time."""

    async def story(rig: Rig) -> None:
        rig.add("mail", transient(after=0.1), answer(after=0.1), timeout_s=1.0)
        reply = await rig.dispatch("mail", key)
        assert rig.loop.time() < 1.0
        if not isinstance(reply, Answer):
            assert (reply.kind, reply.reason_token) == (ErrorKind.INTERNAL, "TOOL_CANCELLED_ITSELF")

    assert _cut_everywhere(story, when=when, seed=seed, target="ScriptedTool.run") >= 2


@both_moments
@seeds
@pytest.mark.parametrize(
    "step", [answer(after=0.5), hang(), swallow_cancel(answer(after=3)), transient(after=0.5)]
)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_cut_probe_gives_its_place_back(step: Step, key: str | None, when: When, seed: int) -> None:
    """The breaker is half-open, its probe is cut at any await: the next call is let through (R037)."""
    rules = BreakerRules(min_attempts=1, open_s=5.0)

    async def story(rig: Rig) -> None:
        rig.add("mail", transient(), timeout_s=1.0, breaker=rules)
        await rig.failed("mail", budget=1)
        await rig.at(5)
        breaker = rig.state("mail").breaker
        assert breaker.state(rig.loop.time()) is BreakerState.HALF_OPEN
        rig.tools["mail"].script = [step]
        rig.store.delay_s = dict(SLOW_STORE)
        await _gone(rig.loop.create_task(victim(rig, "mail", key, budget=1)))
        await rig.at(rig.loop.time() + 6)
        assert breaker.live_probes(rig.loop.time()) == 0
        assert not breaker.is_open(rig.loop.time())
        rig.store.delay_s = {}

    assert _cut_everywhere(story, when=when, seed=seed) >= 2
