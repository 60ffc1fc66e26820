"""The client against a real gRPC service on loopback, on the newest grpcio and on the oldest one it
accepts.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from pathlib import Path

import pytest

from tests.client.scripted_service import ScriptedTools
from tests.client.stories import STORIES

ROOT = Path(__file__).parents[2]
OLDEST = ROOT / ".venv-client-min/bin/python"


@pytest.mark.asyncio
@pytest.mark.parametrize("name", STORIES)
async def test_story(name: str, scripted: tuple[ScriptedTools, str]) -> None:
    """Each story holds; what it tells stands in its docstring."""
    story = STORIES[name]
    if inspect.iscoroutinefunction(story):
        await story(scripted[1])
    else:
        await asyncio.to_thread(story, scripted[1])


@pytest.mark.asyncio
async def test_every_story_on_the_oldest_grpcio(scripted: tuple[ScriptedTools, str]) -> None:
    """All stories hold on grpcio 1.76.0 and protobuf 6.31.1 too, with neither typer nor OpenTelemetry
    installed.
    """
    assert OLDEST.exists(), "make .venv-client-min/.installed"
    child = await asyncio.create_subprocess_exec(
        OLDEST,
        "-W",
        "error",
        "-m",
        "tests.client.stories",
        scripted[1],
        cwd=ROOT,
        env={"PATH": os.defpath, "PYTHONPATH": f"{ROOT}:{ROOT}/client/python"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await child.communicate()
    assert child.returncode == 0, err.decode()[-3000:]
    assert out.decode().split() == list(STORIES)
