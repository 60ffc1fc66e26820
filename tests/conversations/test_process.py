from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from conversations.config import demo_config, write_config
from conversations.demo import DatabaseInUse, run_demo
from conversations.process import ServiceDied, serving

DATABASE = "demo.sqlite"


def _config(directory: Path) -> Path:
    path = directory / "lineside.toml"
    write_config(path, demo_config(listen="127.0.0.1:50051", database=DATABASE))
    return path


def _pid(directory: Path) -> int:
    pid: int = json.loads((directory / f"{DATABASE}.lock").read_text())["pid"]
    return pid


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def _run_until_signalled(directory: Path, number: signal.Signals) -> None:
    async with serving(_config(directory), directory / "service.log"):
        os.kill(_pid(directory), number)
        await asyncio.Event().wait()


@pytest.mark.asyncio
async def test_a_service_that_dies_ends_what_relies_on_it(tmp_path: Path) -> None:
    """The block is cancelled where it stands, and the cause is the service's end."""
    with pytest.raises(ServiceDied, match="exit code -9"):
        await _run_until_signalled(tmp_path, signal.SIGKILL)


@pytest.mark.asyncio
async def test_a_service_that_stops_by_itself_is_no_orderly_end(tmp_path: Path) -> None:
    """Exit code 0 in the middle of a run is as bad as any other."""
    with pytest.raises(ServiceDied, match="exit code 0"):
        await _run_until_signalled(tmp_path, signal.SIGTERM)


@pytest.mark.asyncio
async def test_a_cancelled_run_leaves_no_service_behind(tmp_path: Path) -> None:
    """It is asked to stop, and has drained when the cancellation goes on."""
    served = asyncio.Event()

    async def run() -> None:
        async with serving(_config(tmp_path), tmp_path / "service.log"):
            served.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await served.wait()
    pid = _pid(tmp_path)
    assert _is_alive(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not _is_alive(pid)
    assert "drain.ended" in (tmp_path / "service.log").read_text()


@pytest.mark.asyncio
async def test_a_start_that_fails_shows_why(tmp_path: Path) -> None:
    """The exception carries the service's own words."""
    config = tmp_path / "lineside.toml"
    config.write_text("[server]\nlissten = 'x'\n")
    with pytest.raises(ServiceDied, match="lissten"):
        async with serving(config, tmp_path / "service.log"):
            pytest.fail("it does not serve")


@pytest.mark.asyncio
async def test_a_database_in_use_is_left_alone(tmp_path: Path) -> None:
    """Whoever serves what a run left behind keeps it; the next run says so instead of taking it away."""
    async with serving(_config(tmp_path), tmp_path / "service.log"):
        with pytest.raises(DatabaseInUse, match="stop it first"):
            await run_demo(tmp_path, seed=None, limit=1)
        assert (tmp_path / DATABASE).exists()
