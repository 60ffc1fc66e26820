"""What the pages tell a reader to type, and where they lead, exists."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from lineside.cli.app import app as caller_app
from lineside_service.cli import app as service_app
from tests.support.pages import ROOT
from tests.support.process import COMMAND, service

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
COMMANDS = {"lineside": caller_app, "lineside-service": service_app}
_FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TYPED = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(lineside(?:-service)? .*)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def typed(page: Path) -> Iterator[list[str]]:
    """The words of each line in a block that runs one of our commands, without its comment."""
    for block in _FENCED.findall(page.read_text()):
        for line in _TYPED.findall(block):
            yield shlex.split(line, comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    """Every command line in a block of a page names a command that there is, with options that it has."""
    for name, *words in typed(page):
        command = typer.main.get_command(COMMANDS[name])
        while known := getattr(command, "commands", {}):
            assert words, f"{name} alone does nothing"
            if words[0].startswith("-"):
                break
            assert words[0] in known, f"{name} has no command {words[0]}"
            command = known[words.pop(0)]
        options = {spelling for parameter in command.params for spelling in parameter.opts} | {"--help"}
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in options, f"{name} {command.name} has no {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links name files that are there, and headings of theirs."""
    for link in _LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if heading:
            assert heading in headings(target), f"{page.name} links to {link}"


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readmes_own_tools_can_be_served(tmp_path: Path) -> None:
    """Its tools.py and its lineside.toml fit each other: `check` has nothing to say against them."""
    page = (ROOT / "README.md").read_text()
    for name in ("tools.py", "lineside.toml"):
        found = re.search(rf"^```\w+\n(# {re.escape(name)}\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
        assert found is not None
        (tmp_path / name).write_text(found[1])
    checked = subprocess.run(
        (COMMAND, "check", "--config", str(tmp_path / "lineside.toml")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.asyncio
async def test_the_readmes_calls_work_on_the_quickstart(tmp_path: Path) -> None:
    """Each command line under "Call it" is tried, in its order, on what `make run` serves."""
    for name in ("tools.py", "lineside.toml"):
        shutil.copy(ROOT / "examples" / "quickstart" / name, tmp_path)
    free = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    async with service(tmp_path / "lineside.toml", *free) as running:
        lines = [words for program, *words in typed(ROOT / "README.md") if program == "lineside"]
        assert [words[0] for words in lines] == ["tools", "call", "call", "calls"]
        for words in lines:
            tried = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lineside.cli", *words, "--target", running.address),
                stderr=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
            )
            _, said = await tried.communicate()
            assert tried.returncode == 0, said.decode()
