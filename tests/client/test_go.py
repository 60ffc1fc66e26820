"""The Go client: its own tests against a real service, its stubs, its copy of the service config."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.process import service
from tests.support.toolchain import need

ROOT = Path(__file__).resolve().parents[2]
GO = ROOT / "client" / "go"
BUILD_S = 600.0
"""What building gRPC for Go takes at most, on two cores with an empty cache."""
PROGRAM = """package main

import (
	"context"
	"fmt"
	"log"

	lineside "github.com/lineside/lineside/client/go"
)

func main() {{
	ctx := context.Background()
	{snippet}
}}
"""
"""What stands around the README's lines."""


@pytest.fixture(scope="module", autouse=True)
def _toolchain() -> None:
    need("go", "the Go client")


def _run(command: Sequence[str], directory: Path) -> str:
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert ran.returncode == 0, f"{' '.join(command)}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def test_its_service_config_is_the_published_one() -> None:
    """One policy for every language: retries for reads, none for Dispatch."""
    published = ROOT / "client" / "python" / "lineside" / "service_config.json"
    assert (GO / "service_config.json").read_bytes() == published.read_bytes()


@pytest.mark.timeout(2 * BUILD_S)
def test_its_stubs_are_what_the_protos_give() -> None:
    """Committed, as Go's users expect, and never behind the contract."""
    _run([sys.executable, "scripts/toolchains.py", "protoc-gen-go", "protoc-gen-go-grpc"], ROOT)
    _run([str(ROOT / ".venv-proto" / "bin" / "python"), "scripts/stubs.py", "check-go"], ROOT)


@pytest.mark.timeout(2 * BUILD_S)
def test_its_own_tests_pass() -> None:
    """Against a real service: typed errors, keys, lost connections, batches, traces."""
    assert not _run(["gofmt", "-l", "."], GO)
    _run(["go", "vet", "./..."], GO)
    assert "ok" in _run(["go", "test", "-count=1", "./..."], GO)


@pytest.mark.asyncio
@pytest.mark.timeout(2 * BUILD_S)
async def test_the_readmes_call_and_its_quickstart_work(tmp_path: Path) -> None:
    """Both as they stand, on what `make run` serves; the quickstart says it twice, and is answered twice."""
    found = re.search(r"^```go\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    for name in ("tools.py", "lineside.toml"):
        shutil.copy(ROOT / "examples" / "quickstart" / name, tmp_path)
    async with service(
        tmp_path / "lineside.toml", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"
    ) as up:
        snippet = found[1].replace("127.0.0.1:50051", up.address)
        (tmp_path / "readme.go").write_text(PROGRAM.format(snippet=snippet))
        said = await asyncio.to_thread(_run, ["go", "run", str(tmp_path / "readme.go")], GO)
        assert said.endswith(" SOURCE_EXECUTED 1\n")
        said = await asyncio.to_thread(_run, ["go", "run", "./examples/quickstart", up.address], GO)
        assert [line.split()[0] for line in said.splitlines()] == ["SOURCE_EXECUTED", "SOURCE_REPLAYED"]
