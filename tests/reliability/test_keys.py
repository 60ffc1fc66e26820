"""One key, many callers, and connections that break: on a real wire, with effects in another process."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import grpc
import pytest

from lineside.v1.errors_pb2 import Source
from tests.reliability.figures import Figures
from tests.support.cut_proxy import cut_proxy
from tests.support.effect_server import EffectServer
from tests.support.process import dispatched, service, wire_call

CALLERS = 100
CONFIG = """
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[tools.pay]
target = "effect_tools:pay"
concurrency = 1
"""
RETRYING = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "lineside.v1.DispatchService"}],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.01s",
                    "maxBackoff": "0.05s",
                    "backoffMultiplier": 1,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)
"""A service config against all advice: the channel repeats Dispatch by itself."""
ACTIVE = "dispatch_rpc_active"


@pytest.mark.asyncio
@pytest.mark.parametrize("leaving", [0, 1, 37, 99, 100])
async def test_a_hundred_callers_of_one_key_share_one_execution(
    leaving: int, home: Path, effects: EffectServer, figures: Figures
) -> None:
    """Sent at once, any of them cancelled while it runs: one effect, and all others get the same answer; when
    nobody is left, it is recorded and replayed (R041, R047).
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    call = wire_call("pay", {"amount": 7}, idempotency_key="k")
    async with service(config) as served:
        effects.hold()
        channels = [served.channel() for _ in range(4)]
        callers = [asyncio.create_task(dispatched(channels[n % 4], call, 60)) for n in range(CALLERS)]
        await effects.arrivals(1)
        await served.until_metric(ACTIVE, CALLERS)
        chosen = random.Random(leaving).sample(callers, leaving)
        for caller in chosen:
            caller.cancel()
        await served.until_metric(ACTIVE, CALLERS - leaving)
        effects.release()
        answers = [(await caller).answer for caller in callers if caller not in chosen]
        replay = (await dispatched(channels[0], call)).answer
        assert replay is not None
        assert replay.source in {Source.SOURCE_REPLAYED, Source.SOURCE_JOINED}
        assert effects.total == 1
        equal = [a for a in answers if a is not None and a.result_json == b'{"paid":7}']
        assert len({a.call_id for a in [*equal, replay]}) == 1
        assert len(equal) == CALLERS - leaving
        for caller in chosen:
            with pytest.raises(asyncio.CancelledError):
                await caller
    if not leaving:
        figures.note("joining.executions_of_100_callers", effects.total, "effects", target="1")
        figures.note("joining.equal_answers", len(equal), "answers", target="100", combine=min)


@pytest.mark.asyncio
@pytest.mark.parametrize("keyed", [False, True])
async def test_a_channel_that_retries_by_itself_repeats_no_effect(
    keyed: bool, home: Path, effects: EffectServer, figures: Figures
) -> None:
    """The connection is cut right after the effect, 25 times: what the channel sends again is joined by its
    key, or refused as outcome_unknown without one; each effect happens once (R029).
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    async with service(config) as served, cut_proxy(served.address) as proxy:
        channel = served.channel(target=proxy.target, options=[("grpc.service_config", RETRYING)])
        for number in range(25):
            effects.hold()
            key = {"idempotency_key": f"k{number}"} if keyed else {}
            caller = asyncio.create_task(dispatched(channel, wire_call("pay", {"amount": number}, **key), 20))
            await effects.arrivals(number + 1)
            proxy.cut()
            effects.release()
            ended = await caller
            if keyed:
                assert ended.answer is not None, ended
                assert ended.answer.source in {Source.SOURCE_JOINED, Source.SOURCE_REPLAYED}
            else:
                assert ended.kind == "outcome_unknown", ended
        assert proxy.cuts >= 25
    assert effects.total == 25
    figures.note("retrying_channel.effects_a_cut_call", effects.total / 25, "effects", target="1")


@pytest.mark.asyncio
async def test_a_process_that_is_killed_mid_call_answers_the_repeat(
    home: Path, effects: EffectServer
) -> None:
    """The effect is under way, unanswered: the next process says outcome_unknown at once, and never repeats
    it; a joiner that came before the end is told by a bare UNAVAILABLE (R049).
    """
    config = home / "lineside.toml"
    config.write_text(CONFIG)
    call = wire_call("pay", {"amount": 1}, idempotency_key="k")
    async with service(config) as first:
        effects.hold()
        channel = first.channel()
        callers = [asyncio.create_task(dispatched(channel, call)) for _ in range(2)]
        await effects.arrivals(1)
        await first.until_metric(ACTIVE, 2)
        first.kill()
        for caller in callers:
            assert (await caller).code is grpc.StatusCode.UNAVAILABLE
    effects.release()
    async with service(config) as second:
        for _ in range(3):
            assert (await dispatched(second.channel(), call, 2)).kind == "outcome_unknown"
    assert effects.total == 1
