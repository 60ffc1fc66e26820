"""`make bench`: what the road itself costs per call in process, and the service beside a bare echo.

Each figure is the median over several rounds that alternate between the cases, with the lowest and highest
round as its spread. Prints a table and writes build/bench.json. `--wire` measures the wire alone, `--road`
the rest alone; the figures of the other half stay in the file.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lineside_service.core.call import Call  # noqa: E402
from lineside_service.main import keep_pauses_short  # noqa: E402
from tests.load.figure import Figure  # noqa: E402
from tests.load.in_frames import frame_item_us  # noqa: E402
from tests.load.rig import Rig, open_rig  # noqa: E402
from tests.load.stages import stage_costs  # noqa: E402
from tests.load.wire import wire_figures  # noqa: E402

ROUNDS = 7
SEQUENTIAL_CALLS = 2_000
CONCURRENT_CALLS = 4_000
IN_FLIGHT = 64


async def bare_us(rig: Rig) -> float:
    """The median cost of the tool alone, in microseconds."""
    costs = []
    for _ in range(SEQUENTIAL_CALLS):
        started = time.perf_counter_ns()
        await rig.bare()
        costs.append(time.perf_counter_ns() - started)
    return statistics.median(costs) / 1000


async def sequential_us(rig: Rig, make: Callable[[], Call]) -> float:
    """The median cost of one call after another, in microseconds."""
    costs = []
    for call in [make() for _ in range(SEQUENTIAL_CALLS)]:
        started = time.perf_counter_ns()
        await rig.dispatch(call)
        costs.append(time.perf_counter_ns() - started)
        await asyncio.sleep(0)  # what a call leaves behind is done before the next is timed
    return statistics.median(costs) / 1000


async def rate(rig: Rig, make: Callable[[], Call]) -> float:
    """Calls per second with IN_FLIGHT callers."""
    calls = [make() for _ in range(CONCURRENT_CALLS)]

    async def caller() -> None:
        while calls:
            await rig.dispatch(calls.pop())

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return CONCURRENT_CALLS / (time.perf_counter() - started)


def progress(text: str) -> None:
    """Say where the run is, on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


async def measure(memory: Rig, sqlite: Rig) -> list[Figure]:
    """Every case once per round, alternating, so that a slow minute of the machine hits all of them."""
    cases: list[tuple[Figure, Callable[[], Awaitable[float]]]] = [
        (Figure("road.own_cost_us.no_key", "us"), lambda: sequential_us(memory, memory.keyless)),
        (Figure("road.bare_tool_us", "us"), lambda: bare_us(memory)),
        (Figure("road.own_cost_us.frame64_item", "us"), lambda: frame_item_us(memory)),
        (Figure("road.own_cost_us.key_memory", "us"), lambda: sequential_us(memory, memory.keyed_safe)),
        (Figure("road.latency_us.key_sqlite_safe", "us"), lambda: sequential_us(sqlite, sqlite.keyed_safe)),
        (Figure("road.latency_us.key_sqlite_final", "us"), lambda: sequential_us(sqlite, sqlite.keyed_final)),
        (Figure("road.rate.no_key_c64", "1/s"), lambda: rate(sqlite, sqlite.keyless)),
        (Figure("road.rate.key_memory_c64", "1/s"), lambda: rate(memory, memory.keyed_safe)),
        (Figure("road.rate.key_sqlite_safe_c64", "1/s"), lambda: rate(sqlite, sqlite.keyed_safe)),
        (Figure("road.rate.key_sqlite_final_c64", "1/s"), lambda: rate(sqlite, sqlite.keyed_final)),
    ]
    ratio = Figure("ledger.ratio.sqlite_safe", "1")
    for number in range(ROUNDS + 1):
        for figure, run in cases:
            progress(f"round {number}/{ROUNDS}: {figure.name}")
            gc.collect()
            value = await run()
            if number:  # round 0 warms caches, threads and files
                figure.rounds.append(value)
        if number:
            by_name = {figure.name: figure.rounds[-1] for figure, _ in cases}
            ratio.rounds.append(by_name["road.rate.key_sqlite_safe_c64"] / by_name["road.rate.no_key_c64"])
    progress("")
    return [*(figure for figure, _ in cases), ratio]


async def main(halves: list[str]) -> None:
    """Run what is asked for and report."""
    figures: list[Figure] = []
    if "--wire" not in halves:
        figures += await road_figures()
    if "--road" not in halves:
        wire = await wire_figures(progress)
        print_table(wire)
        figures += wire
    path = ROOT / "build" / "bench.json"
    path.parent.mkdir(exist_ok=True)
    measured = [figure.as_json() for figure in figures]
    names = {one["name"] for one in measured}
    before = msgspec.json.decode(path.read_bytes()) if halves and path.exists() else []
    kept = [one for one in before if one["name"] not in names]
    path.write_bytes(msgspec.json.format(msgspec.json.encode([*kept, *measured])))


async def road_figures() -> list[Figure]:
    """What the road costs in this process, and where that goes."""
    chance = random.Random(1)
    keep_pauses_short()  # as the service runs
    with tempfile.TemporaryDirectory() as folder:
        memory = await open_rig(None, chance)
        sqlite = await open_rig(Path(folder) / "bench.db", chance)
        figures = await measure(memory, sqlite)
        stages = [
            Figure(f"road.stage_us.{name}", "us", costs)
            for name, costs in (await stage_costs(memory)).items()
        ]
        await sqlite.close()
        await memory.close()
    print_table(figures)
    sys.stdout.write("\nwhere the time of a call goes, each part alone\n")
    for figure in stages:
        sys.stdout.write(f"{figure.name:38} {figure.value:10.2f}  {figure.unit}\n")
    sys.stdout.write("\n")
    return [*figures, *stages]


def print_table(figures: list[Figure]) -> None:
    """The median of each with its spread."""
    sys.stdout.write(f"{'figure':40} {'median':>10} {'lowest':>10} {'highest':>10}  unit\n")
    for figure in figures:
        low, high = min(figure.rounds), max(figure.rounds)
        sys.stdout.write(f"{figure.name:40} {figure.value:10.2f} {low:10.2f} {high:10.2f}  {figure.unit}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
