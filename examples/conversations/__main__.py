"""`make demo`: real conversations through a real service, and whether it kept its promises."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from conversations.caller import PromiseBroken
from conversations.demo import run_demo, write_summary
from conversations.process import ServiceDied
from conversations.report import print_summary

DEFAULT_SEED = 1
BUILD = Path("build")


def main() -> int:
    """Run the demo; 0 if everything is as promised, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m conversations", description=__doc__)
    parser.add_argument("--no-faults", action="store_true", help="nothing fails, nobody misbehaves")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="which faults (default: %(default)s)")
    parser.add_argument("--conversations", type=int, metavar="N", help="only the first N (default: all 200)")
    chosen = parser.parse_args()
    seed = None if chosen.no_faults else chosen.seed
    try:
        outcome = asyncio.run(run_demo(BUILD / "demo", seed=seed, limit=chosen.conversations))
    except* (ServiceDied, PromiseBroken) as failures:
        print(*failures.exceptions, sep="\n", file=sys.stderr)
        sys.exit(1)
    write_summary(BUILD / "demo.json", outcome.summary)
    print_summary(outcome.summary, outcome.record)
    for line in outcome.differences:
        print(f"DIFFERENT: {line}", file=sys.stderr)
    return 0 if outcome.as_promised else 1


if __name__ == "__main__":
    sys.exit(main())
