"""The languages whose clients run the contract's scenarios. A new one: its runner, and a row here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Language:
    """A language with a runner.

    needs: commands of its toolchain, looked for on PATH. build: commands, run in this order in `directory`,
    of this checkout. run: the runner, without its argument, there too.
    """

    name: str
    run: tuple[str, ...]
    directory: str = "."
    needs: tuple[str, ...] = ()
    build: tuple[tuple[str, ...], ...] = ()


_GO_RUNNER = str(ROOT / "build" / "bin" / "contract-go")
LANGUAGES = (
    Language(name="python", run=(sys.executable, "-m", "tests.contract.runner_python")),
    Language(
        name="go",
        run=(_GO_RUNNER,),
        directory="client/go",
        needs=("go",),
        build=(("go", "build", "-trimpath", "-buildvcs=false", "-o", _GO_RUNNER, "./cmd/contract"),),
    ),
    Language(
        name="node",
        run=("node", "dist/contract/runner.js"),
        directory="client/node",
        needs=("node", "npm"),
        build=(("make", "--no-print-directory", "-C", str(ROOT), "client/node/dist/.built"),),
    ),
    Language(
        name="java",
        run=("java", "-cp", "target/classes:target/test-classes:target/lib/*", "io.lineside.contract.Runner"),
        directory="client/java",
        needs=("javac", "mvn"),
        build=((sys.executable, str(ROOT / "scripts" / "java_client.py"), "build"),),
    ),
)
