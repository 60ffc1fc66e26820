"""Build the pinned tools that tests and measurements use, into build/bin, each only when missing.

What Debian packages is installed instead, by root; everybody else has it on PATH or goes without.

    NAME...     those; none named: all of them
    --list      print the names

A tool is built anew when its pin changes: build/bin/NAME.pin says what is there. Exits 1 if one failed to
build, and says so of a tool whose language is not installed. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "bin"


@dataclass(frozen=True, slots=True)
class Published:
    """A Go command of somebody else's, at a version."""

    package: str
    version: str

    @property
    def pin(self) -> str:
        """What the built file is the build of."""
        return f"{self.package}@{self.version}"

    def build(self, name: str) -> int:
        """Build it as build/bin/NAME; returns the exit code."""
        del name  # `go install` names it after its package
        environment = {**os.environ, "GOBIN": str(BIN)}  # noqa: TID251 - handed on to go
        return subprocess.run(["go", "install", self.pin], env=environment, check=False).returncode


@dataclass(frozen=True, slots=True)
class Own:
    """A Go command of this repository; pinned by its go.sum.

    module: where its go.mod is. reads: modules of this repository that it is built with.
    """

    module: str
    package: str = "."
    reads: tuple[str, ...] = ()

    @property
    def pin(self) -> str:
        """What the built file is the build of: a hash over the module's sources."""
        digest = sha256()
        for module in (self.module, *self.reads):
            for file in sorted((ROOT / module).rglob("*")):
                if file.suffix in {".go", ".mod", ".sum"}:
                    digest.update(file.read_bytes())
        return digest.hexdigest()

    def build(self, name: str) -> int:
        """Build it as build/bin/NAME; returns the exit code."""
        command = ["go", "build", "-trimpath", "-buildvcs=false", "-o", str(BIN / name), self.package]
        return subprocess.run(command, cwd=ROOT / self.module, check=False).returncode


@dataclass(frozen=True, slots=True)
class Debian:
    """Commands of a package of Debian's, taken as they are where they are found on PATH."""

    package: str
    commands: tuple[str, ...]

    @property
    def is_there(self) -> bool:
        """Whether every command is found."""
        return all(shutil.which(command) for command in self.commands)

    def install(self) -> bool:
        """Install it, as root where there is apt-get; whether it is there now. It is not started."""
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            return False
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # noqa: TID251 - handed on
        for step in (["update"], ["install", "--yes", "--no-install-recommends", self.package]):
            subprocess.run(["apt-get", "--quiet=2", *step], env=quiet, check=False)
        return self.is_there


TOOLS: dict[str, Published | Own | Debian] = {
    "jaeger": Own("tests/trace/jaeger", "github.com/jaegertracing/jaeger/cmd/jaeger"),  # 5 min the first time
    "loaddriver": Own("tests/load/driver"),
    "tracecaller": Own("tests/trace/caller", reads=("client/go",)),
    "protoc-gen-go": Published("google.golang.org/protobuf/cmd/protoc-gen-go", "v1.36.11"),
    "protoc-gen-go-grpc": Published("google.golang.org/grpc/cmd/protoc-gen-go-grpc", "v1.6.1"),
    "ghz": Published("github.com/bojand/ghz/cmd/ghz", "v0.121.0"),
    "grpcurl": Published("github.com/fullstorydev/grpcurl/cmd/grpcurl", "v1.9.4"),
    "prometheus": Debian("prometheus", ("prometheus", "promtool")),
}


def ensure(name: str) -> bool:
    """Build a tool unless it is there as pinned; whether it is there now. Waits for who builds it already."""
    BIN.mkdir(parents=True, exist_ok=True)
    with (BIN / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tool = TOOLS[name]
        return _installed(name, tool) if isinstance(tool, Debian) else _built(name, tool)


def _installed(name: str, tool: Debian) -> bool:
    if tool.is_there or tool.install():
        return True
    print(f"{name}: not on PATH; Debian's package `{tool.package}` has it", file=sys.stderr)
    return False


def _built(name: str, tool: Published | Own) -> bool:
    stamp = BIN / f"{name}.pin"
    if (BIN / name).exists() and stamp.exists() and stamp.read_text() == tool.pin:
        return True
    if shutil.which("go") is None:
        print(f"{name}: not built, there is no `go` on PATH", file=sys.stderr)
        return False
    print(f"building {name}", flush=True)
    if tool.build(name):
        print(f"{name}: the build failed", file=sys.stderr)
        return False
    stamp.write_text(tool.pin)
    return True


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--list"]:
            print("\n".join(TOOLS))
        case names:
            built = [ensure(name) for name in names or TOOLS]  # the others too when one fails
            sys.exit(not all(built))
