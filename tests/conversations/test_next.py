from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from conversations.config import demo_config, write_config
from conversations.process import serving
from conversations.report import NEXT

COMMANDS = [command for _, commands in NEXT for command in commands]
BIN = Path(sys.executable).parent


async def _typed(command: str, target: str) -> str:
    """Run a `lineside` command as it is shown, against `target`; it must succeed. Returns what it prints."""
    program, *arguments = shlex.split(command)
    process = await asyncio.create_subprocess_exec(
        str(BIN / Path(program).name), *arguments, "--target", target, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


@pytest.mark.asyncio
async def test_the_commands_to_try_next_work(tmp_path: Path) -> None:
    """Against the demo's own config: the ledger is listed, and one key has one effect and one answer."""
    config = tmp_path / "lineside.toml"
    write_config(config, demo_config(listen="127.0.0.1:50051", database="demo.sqlite"))
    ledger = next(command for command in COMMANDS if command.endswith("lineside calls"))
    call = next(command for command in COMMANDS if "lineside call " in command)
    async with serving(config, tmp_path / "service.log") as target:
        first = await _typed(call, target)
        assert await _typed(call, target) == first
        assert (await _typed(ledger, target)).count("files.mkdir") == 1
        assert '"source":"replayed"' in await _typed(f"{call} --whole", target)


def test_what_to_make_next_is_made_by_make() -> None:
    """Every `make` target exists, and the config that it names is the one the demo leaves behind."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    targets = {command.partition("make ")[2].split()[0] for command in COMMANDS if "make " in command}
    assert all(f"\n{target}: " in makefile for target in targets)
    assert any(command.endswith("CONFIG=build/demo/lineside.toml") for command in COMMANDS)
