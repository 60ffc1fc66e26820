"""Run one stage of a longer job and note how long it took.

    NAME COMMAND...     run COMMAND, append "NAME seconds exit-code" to build/stages.txt
    --table             print what was noted, as a table

Standard library only: it runs before anything is installed. Exits with the stage's own code.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

NOTES = Path(__file__).resolve().parent.parent / "build" / "stages.txt"


def run(name: str, command: list[str]) -> int:
    """Run the command with this process's own streams; return its exit code."""
    print(f"== {name}", flush=True)
    begun = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    NOTES.parent.mkdir(exist_ok=True)
    with NOTES.open("a") as notes:
        notes.write(f"{name} {time.monotonic() - begun:.1f} {code}\n")
    return code


def table() -> str:
    """Lay out the noted stages, one a line, with their sum."""
    rows = [line.split() for line in NOTES.read_text().splitlines()] if NOTES.exists() else []
    lines = [f"{name:<10}{seconds:>9} s{'' if code == '0' else '   FAILED'}" for name, seconds, code in rows]
    total = sum(float(seconds) for _, seconds, _ in rows)
    return "\n".join(["stage      seconds", *lines, f"{'total':<10}{total:>9.1f} s"])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--table"]:
            print(table())
        case [stage, *command] if command:
            sys.exit(run(stage, command))
        case _:
            sys.exit(__doc__)
