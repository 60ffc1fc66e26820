"""A real Prometheus on a real service: whatever the dashboard and the rules ask for is there."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from lineside.v1.dispatch_pb2 import DispatchBatchRequest
from lineside.v1.dispatch_pb2_grpc import DispatchServiceStub
from tests.deploy.monitoring import (
    DEPLOY,
    RULES,
    Prometheus,
    always_answering,
    annotation_expressions,
    dashboard_expressions,
    need_prometheus,
    prometheus,
    variable_selectors,
)
from tests.support.pages import ROOT
from tests.support.process import ServiceProcess, dispatched, service, wire_call

TOOLS = """
import threading

from lineside_service.tools import ToolContext, TransientError

async def ok() -> int:
    return 1

async def flaky(ctx: ToolContext) -> int:
    if ctx.attempt == 1:
        raise TransientError("not yet")
    return 2

async def dead() -> int:
    raise TransientError("never")

def late() -> int:
    threading.Event().wait(0.2)
    return 3

def lost() -> int:
    threading.Event().wait(60)
    return 4
"""
CONFIG = """
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[store]
path = "ledger/lineside.db"
[tools.ok]
target = "watched_tools:ok"
[tools.flaky]
target = "watched_tools:flaky"
effect = "safe"
retry = { initial = "1ms" }
[tools.dead]
target = "watched_tools:dead"
effect = "safe"
retry = { max_attempts = 1 }
breaker = { min_attempts = 2, open = "60s" }
[tools.late]
target = "watched_tools:late"
timeout = "100ms"
[tools.lost]
target = "watched_tools:lost"
timeout = "100ms"
"""
SILENT = {
    'ALERTS{alertname=~"Lineside.*",alertstate="firing"}': "none fires within seconds; promtool tests that",
}
"""Expressions that have nothing to show here, and why."""
TEST_S = 25.0


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    need_prometheus()


def test_the_rules_do_what_their_unit_tests_say() -> None:
    """promtool: the files are sound, every alert fires when it should, and is silent beside it."""
    for command in (
        ["promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")],
        ["promtool", "check", "rules", *map(str, RULES)],
        ["promtool", "test", "rules", str(ROOT / "tests" / "deploy" / "rules_test.yml")],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, f"{' '.join(command)}:\n{ran.stdout}{ran.stderr}"


@pytest.mark.asyncio
async def test_every_expression_of_dashboard_and_rules_has_data(tmp_path: Path) -> None:
    """After answers, retries, an open breaker, unknown outcomes, lost attempts, a batch, a failing store."""
    config = tmp_path / "lineside.toml"
    config.write_text(CONFIG)
    (tmp_path / "watched_tools.py").write_text(TOOLS)
    (tmp_path / "ledger").mkdir()
    async with service(config) as running:
        stub: Any = DispatchServiceStub(running.channel())
        stream = stub.DispatchBatch(timeout=60)
        async with prometheus(tmp_path, running.admin.removeprefix("http://")) as server:
            asked = await all_asked(server)
            end, number = time.monotonic() + TEST_S, 0
            while asked:
                await some_of_everything(running, stream, number)
                asked = [one for one in asked if not await server.has(one)]
                number += 1
                assert time.monotonic() < end, f"no data after {TEST_S:.0f} s:\n" + "\n".join(asked)
            await failing_store(running, tmp_path / "ledger")
            await alerts_are_about_to_fire(server)
        await stream.done_writing()


async def all_asked(server: Prometheus) -> list[str]:
    """Everything that anybody asks for, the alerts in the form that answers always."""
    rules = await server.rules()
    recorded = [rule["name"] for rule in rules if rule["type"] == "recording"]
    alerts = [always_answering(rule["query"]) for rule in rules if rule["type"] == "alerting"]
    assert len(recorded) > 5
    assert len(alerts) > 10
    shown = [*dashboard_expressions(), *annotation_expressions(), *variable_selectors()]
    assert set(shown) >= set(SILENT)
    return [one for one in dict.fromkeys([*recorded, *alerts, *shown]) if one not in SILENT]


async def some_of_everything(running: ServiceProcess, stream: Any, number: int) -> None:
    """One call of each sort; number: tells the rounds apart."""
    channel = running.channel()
    await dispatched(channel, wire_call("ok", idempotency_key=f"ok-{number}"))
    await dispatched(channel, wire_call("ok", idempotency_key=f"ok-{number}"))
    for tool in ("flaky", "dead", "late", "nobody"):
        await dispatched(channel, wire_call(tool))
    if number < 3:  # each takes a slot for good
        unknown = await dispatched(channel, wire_call("lost", idempotency_key=f"lost-{number}"))
        assert unknown.kind == "timeout"
    await stream.write(DispatchBatchRequest(calls=[wire_call("ok", item_id=f"item-{number}")]))
    await stream.read()


async def failing_store(running: ServiceProcess, folder: Path) -> None:
    """A keyed call that is refused while the database is gone, and one that works when it is back."""
    channel, away = running.channel(), folder.with_name("away")
    folder.rename(away)
    refused = await dispatched(channel, wire_call("ok", idempotency_key="refused"))
    assert refused.kind == "unavailable"
    away.rename(folder)
    assert (await dispatched(channel, wire_call("ok", idempotency_key="taken"))).kind == "ok"


async def alerts_are_about_to_fire(server: Prometheus) -> None:
    """What is wrong by now is seen as such, and no rule fails."""
    wrong = {
        "LinesideBreakerOpen",
        "LinesideAttemptsAbandoned",
        "LinesideUnknownOutcomes",
        "LinesideLedgerFailing",
    }
    end = time.monotonic() + TEST_S
    while missing := wrong - {
        rule["name"] for rule in await server.rules() if rule.get("state") == "pending"
    }:
        assert time.monotonic() < end, f"not noticed: {missing}"  # each look is a request
    failed = [
        (rule["name"], rule.get("lastError")) for rule in await server.rules() if rule["health"] != "ok"
    ]
    assert failed == []
