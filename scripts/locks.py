"""Make the hash-pinned lock files in requirements/, or check that each still fits its inputs.

    make      resolve anew (needs the package index)
    check     compare the digest in each lock's first line with its inputs (needs nothing)

A lock carries versions and hashes only: no index lines, so a mirror or a proxy serves it as well.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
PROJECTS = ("pyproject.toml", "service/pyproject.toml")
SETTINGS = (
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-annotate",
    "--no-header",
    "--quiet",
)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """One lock file: its name in requirements/, the inputs beside its .in file, and uv's extra arguments."""

    name: str
    projects: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The hand-written list of requirements."""
        return ROOT / "requirements" / f"{self.name}.in"

    @property
    def path(self) -> Path:
        """The lock file itself."""
        return ROOT / "requirements" / f"{self.name}.txt"

    def header(self) -> str:
        """First line of the lock: a digest over everything that decides what the lock must hold."""
        digest = hashlib.sha256(self.source.read_bytes())
        for project in self.projects:
            table = tomllib.loads((ROOT / project).read_text())["project"]
            wanted = (table["requires-python"], table["dependencies"], table["optional-dependencies"])
            digest.update(repr(wanted).encode())
        digest.update(repr((SETTINGS, self.arguments)).encode())
        return f"# made by `make lock`; inputs sha256 {digest.hexdigest()}"


LOCKS = (
    Lock(name="uv"),
    Lock(
        name="dev",
        projects=PROJECTS,
        arguments=("--extra=cli", "--extra=otel", "--no-emit-package=lineside"),
    ),
    Lock(name="proto"),
    Lock(name="client-min"),
    Lock(name="corpus", arguments=("--no-deps",)),
)


def make(lock: Lock) -> None:
    """Resolve one lock anew at the newest versions its inputs allow."""
    print(f"locking {lock.path.relative_to(ROOT)}", flush=True)
    inputs = [str(lock.source.relative_to(ROOT)), *lock.projects]
    command = [str(UV), "pip", "compile", "--upgrade", *SETTINGS, *lock.arguments, *inputs]
    resolved = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lock.path.write_text(f"{lock.header()}\n{resolved}")


def check() -> None:
    """Exit 1 with the names of the locks whose inputs changed since they were made."""
    stale = [lock.name for lock in LOCKS if lock.path.read_text().partition("\n")[0] != lock.header()]
    if stale:
        sys.exit(f"locks older than their inputs, run `make lock`: {', '.join(stale)}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make"]:
            for each in LOCKS:
                make(each)
        case ["check"]:
            check()
        case _:
            sys.exit(__doc__)
