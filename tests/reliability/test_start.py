"""From a process's birth to its first SERVING, measured at the health service.

The best of a few starts is held to the target by the clock, less the time in which its thread was ready to
run and others had the cores: whatever it does or waits for itself counts, while its processor time would not
tell of a start that sleeps. The figures show medians and spreads of the clock, of the wait for a core, and of
the processor time.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.reliability.archive import write_archive
from tests.reliability.figures import Figures
from tests.support.process import Started, service

STARTS = 5
HEAD = """
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
"""
FUNCTION = """
async def tool_{0}(number: int, text: str = "x", numbers: list[int] | None = None) -> dict[str, int]:
    return {{"number": number}}

"""


def note(figures: Figures, name: str, started: Started, target: str) -> None:
    """Note one start: the clock with its target, and what the clock's time consists of."""
    figures.note(name, started.clock_s, "s", target=target, combine=statistics.median)
    figures.note(f"{name}_no_core", started.waited_s, "s", combine=statistics.median)
    figures.note(f"{name}_cpu", started.cpu_s, "s", combine=statistics.median)


@pytest.mark.asyncio
async def test_a_hundred_tools_serve_within_a_second(tmp_path: Path, figures: Figures) -> None:
    """Interpreter, imports, config, schemas from type hints, store, port, health."""
    config = tmp_path / "lineside.toml"
    tools = "".join(f'[tools.tool_{n}]\ntarget = "hundred_tools:tool_{n}"\n' for n in range(100))
    config.write_text(HEAD + tools)
    functions = "".join(FUNCTION.format(number) for number in range(100))
    (tmp_path / "hundred_tools.py").write_text("from __future__ import annotations\n" + functions)
    starts: list[Started] = []
    for _ in range(STARTS):
        async with service(config) as served:
            starts.append(served.started)
            note(figures, "start.100_tools", served.started, "<= 1")
    assert min(started.own_s for started in starts) <= 1, starts


@pytest.mark.asyncio
@pytest.mark.parametrize("running", [0, 1_000, 10_000])
async def test_it_serves_again_with_ten_thousand_rows(running: int, tmp_path: Path, figures: Figures) -> None:
    """10,000 rows in the file, so many of them left by calls in flight when a process was killed (R049)."""
    config = tmp_path / "lineside.toml"
    config.write_text(HEAD)
    starts: list[Started] = []
    for number in range(3):
        store = tmp_path / f"{number}.db"
        await write_archive(store, rows=10_000 - running, running=running)
        async with service(config, "--store-path", str(store)) as served:
            starts.append(served.started)
            assert await served.metric("dispatch_ledger_unknown") == running
        note(figures, f"start.10000_rows_{running}_in_flight", served.started, "<= 3")
    assert min(started.own_s for started in starts) <= 3, starts
