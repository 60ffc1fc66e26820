"""`make demo`: real conversations through a real service, and whether it kept its promises."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from conversations.caller import PromiseBroken
from conversations.demo import DatabaseInUse, Outcome, run_demo, write_summary
from conversations.gateway import Refused
from conversations.process import ServiceDied
from conversations.report import Progress, print_report

DEFAULT_SEED = 1
BUILD = Path("build")
SUMMARY = BUILD / "demo.json"

EXIT_BROKEN = 1
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the demo; 0 if everything is as promised, 1 if not, 128 + n if signal n stopped it."""
    parser = argparse.ArgumentParser(prog="python -m conversations", description=__doc__)
    parser.add_argument("--no-faults", action="store_true", help="nothing fails, nobody misbehaves")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="which faults (default: %(default)s)")
    parser.add_argument("--conversations", type=int, metavar="N", help="only the first N (default: all 200)")
    chosen = parser.parse_args()
    seed = None if chosen.no_faults else chosen.seed
    SUMMARY.unlink(missing_ok=True)  # a run that fails leaves no figures behind, not even older ones
    stopped_by: list[signal.Signals] = []
    progress = Progress()
    try:
        outcome = asyncio.run(_stoppable(seed, chosen.conversations, progress, stopped_by))
    except* (DatabaseInUse, ServiceDied, PromiseBroken, Refused) as failures:
        progress.say("")
        print(*_leaves(failures), sep="\n", file=sys.stderr)
        return_code = EXIT_BROKEN
    except* asyncio.CancelledError:
        progress.say("")
        print("stopped, and the service with it", file=sys.stderr)
        return_code = 128 + stopped_by[0]
    else:
        return_code = _told(outcome)
    return return_code


async def _stoppable(
    seed: int | None, limit: int | None, progress: Progress, stopped_by: list[signal.Signals]
) -> Outcome:
    """Run the demo as a task that signals cancel, so that the service is stopped on every way out."""
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(run_demo(BUILD / "demo", seed=seed, limit=limit, progress=progress))

    def stop(number: signal.Signals) -> None:
        stopped_by.append(number)
        task.cancel()

    for number in _STOPS:
        loop.add_signal_handler(number, stop, number)
    return await task


def _told(outcome: Outcome) -> int:
    write_summary(SUMMARY, outcome.summary)
    print_report(outcome.summary, outcome.record)
    for line in outcome.differences:
        print(f"DIFFERENT: {line}", file=sys.stderr)
    return 0 if outcome.as_promised else EXIT_BROKEN


def _leaves(failures: BaseExceptionGroup[Exception]) -> list[BaseException]:
    """The failures themselves, out of the groups that tasks put around them."""
    found: list[BaseException] = []
    for failure in failures.exceptions:
        found += _leaves(failure) if isinstance(failure, BaseExceptionGroup) else [failure]
    return found


if __name__ == "__main__":
    sys.exit(main())
