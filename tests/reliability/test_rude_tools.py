"""Tools that end, fork and signal: none of them takes the service with it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
import pytest

from tests.support.process import ServiceProcess, dispatched, service, wire_call

CONFIG = """
[server]
listen = "127.0.0.1:0"
grace = "5s"
[admin]
listen = "127.0.0.1:0"
"""
RAISED = ("BaseException", "CancelledError", "GeneratorExit", "KeyboardInterrupt", "SystemExit")
TOOLS = ("raises", "raises_at_once", "gathers_an_exit", "leaves_an_exit", "pool", "child")


@pytest.fixture
def config(home: Path) -> Path:
    """A config with the rude tools and a good one."""
    sections = [f'[tools.{name}]\ntarget = "rude_tools:{name}"\ntimeout = "10s"\n' for name in TOOLS]
    file = home / "lineside.toml"
    file.write_text(CONFIG + "".join(sections) + '[tools.echo]\ntarget = "hostile_tools:echo"\n')
    return file


async def serves(served: ServiceProcess) -> bool:
    """Whether a good call is answered and nothing is held."""
    ended = await dispatched(served.channel(), wire_call("echo"), 5)
    await served.until_metric("dispatch_inflight", 0)
    await served.until_metric("dispatch_slots_running", 0)
    return ended.kind == "ok"


@pytest.mark.asyncio
async def test_what_a_tool_raises_ends_its_call_alone(config: Path) -> None:
    """Whatever it is, on the loop or on a thread: `internal`, well before any limit (R001)."""
    async with service(config) as served:
        channel = served.channel()
        for tool in ("raises", "raises_at_once"):
            for name in RAISED:
                ended = await dispatched(channel, wire_call(tool, {"name": name}), 5)
                assert (ended.code, ended.kind) == (grpc.StatusCode.INTERNAL, "internal"), (tool, name)
        assert await serves(served)


@pytest.mark.asyncio
async def test_an_exit_in_a_task_of_a_tool_is_no_exit_of_the_service(config: Path) -> None:
    """A SystemExit in a task leaves the event loop: the loop goes on, who awaits the task is told."""
    async with service(config) as served:
        channel = served.channel()
        assert (await dispatched(channel, wire_call("gathers_an_exit"), 5)).kind == "internal"
        assert (await dispatched(channel, wire_call("leaves_an_exit"), 5)).kind == "ok"
        assert await serves(served)
        refused = [entry for entry in served.logged() if entry["event"] == "loop.exit_refused"]
        assert [entry["error_type"] for entry in refused] == ["SystemExit"] * 2
        code, _ = await served.terminated()
        assert code == 0


@pytest.mark.asyncio
async def test_forked_workers_take_their_signals_themselves(config: Path) -> None:
    """A pool's SIGTERM ends its workers, and is not taken for one to the service (R011)."""
    async with service(config) as served:
        calls = (dispatched(served.channel(), wire_call("pool"), 20) for _ in range(4))
        assert {ended.kind for ended in await asyncio.gather(*calls)} == {"ok"}
        assert await serves(served)
        assert "drain.begun" not in {entry["event"] for entry in served.logged()}


@pytest.mark.asyncio
async def test_a_forked_child_does_not_keep_the_database(config: Path, tmp_path: Path) -> None:
    """The service is killed, its tool's child lives on: the next process may have the file at once (R011)."""
    note = tmp_path / "child"
    async with service(config) as served:
        ended = await dispatched(served.channel(), wire_call("child", {"file": str(note)}), 5)
        assert ended.kind == "ok"
        served.kill()
        await served.ended()
    child = int(note.read_text())
    try:
        os.kill(child, 0)
        async with service(config) as again:
            assert await serves(again)
    finally:
        os.kill(child, signal.SIGKILL)
