"""`make trace`: the story told to a real service, what a real Jaeger has of it, and whether that is right.

With --keep Jaeger goes on afterwards, to look around in. Exits 1 if anything is wrong.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.trace.backend import Span, jaeger  # noqa: E402
from tests.trace.checks import SPANS, faults  # noqa: E402
from tests.trace.expected import GO, SERVICE, STORY, TRACES  # noqa: E402
from tests.trace.story import Told, tell  # noqa: E402
from tests.trace.tree import drawn  # noqa: E402


async def traced(folder: Path, *, keep: bool = False) -> tuple[list[Span], Told, str]:
    """Tell the story; the spans that Jaeger has of it, what the callers saw, and how to ask Jaeger.

    folder: for files of service and Jaeger. Needs build/bin/jaeger and build/bin/tracecaller.
    """
    async with jaeger(folder, keep=keep) as backend:
        told = await tell(folder / "service", backend.otlp)
        spans = await backend.until_spans([SERVICE, STORY, GO], SPANS)
        ask = (
            f"Jaeger goes on at {backend.query} (its API; a page for people is not built in). Try\n"
            f"  curl -s {backend.query}/api/traces/{told.trace_ids['three attempts']}\n"
            f"  curl -s '{backend.query}/api/traces?service={SERVICE}&limit=100'\n"
            f"It takes spans at {backend.otlp} (OTLP over gRPC) and ends with: kill {backend.pid}"
        )
        return spans, told, ask


async def main(*, keep: bool) -> int:
    """All of it, printed; the exit code."""
    with tempfile.TemporaryDirectory(prefix="lineside-trace-") as name:
        spans, told, ask = await traced(Path(name), keep=keep)
    print("   began    took")
    print("\n".join(drawn(spans)))
    wrong = faults(spans, told)
    print(f"{len(spans)} spans in {len(TRACES)} traces of {STORY}, {SERVICE} and {GO}: ", end="")
    print("parents, links, attributes, status and counts are as they must be" if not wrong else "wrong:")
    print("".join(f"  {fault}\n" for fault in wrong), end="")
    if keep:
        print(f"\n{ask}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(keep="--keep" in sys.argv[1:])))
