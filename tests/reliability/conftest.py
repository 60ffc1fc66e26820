"""Figures: every test here notes what it measured; `--figures FILE` shows and writes it (`make figures`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.reliability.figures import Figures
from tests.support.effect_server import EffectServer, effect_server

_FIGURES: pytest.StashKey[Figures] = pytest.StashKey()
HOME = Path(__file__).with_name("home")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known when these tests are named on the command line, as `make figures` does."""
    parser.addoption("--figures", metavar="FILE", help="show the measured figures and write them as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """One book of figures for the whole run."""
    config.stash[_FIGURES] = Figures()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table, at the end."""
    file = config.getoption("--figures", default=None)
    if file:
        terminalreporter.section("figures")
        for line in config.stash[_FIGURES].table():
            terminalreporter.write_line(line)
        config.stash[_FIGURES].write(Path(file))


@pytest.fixture
def figures(pytestconfig: pytest.Config) -> Figures:
    """Where a test notes what it measured."""
    return pytestconfig.stash.setdefault(_FIGURES, Figures())


@pytest.fixture
def is_soak() -> bool:
    """Whether this is the long form."""
    return os.environ.get("LINESIDE_SOAK") == "1"  # noqa: TID251 - a switch of the test run, not of the service


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the tools' modules, for a config beside them."""
    for module in HOME.glob("*.py"):
        shutil.copy(module, tmp_path)
    return tmp_path


@pytest_asyncio.fixture
async def effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EffectServer]:
    """The world outside; every process started from here finds it."""
    path = tmp_path / "effects.sock"
    monkeypatch.setenv("EFFECT_SOCKET", str(path))
    async with effect_server(path) as server:
        yield server
