"""The Java client: its own tests against a real service, its copy of the service config, its README."""

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
JAVA = ROOT / "client" / "java"
BUILD_S = 600.0
"""What Maven takes at most, on two cores, with everything still to fetch."""
PROGRAM = """
import io.lineside.client.*;
import io.lineside.v1.*;
import java.util.Map;

class Readme {{
    public static void main(String[] arguments) {{
        {snippet}
    }}
}}
"""
"""What stands around the README's lines."""
JAVA_COMMAND = ("java", "-cp", "target/classes:target/test-classes:target/lib/*")


@pytest.fixture(scope="module", autouse=True)
def _toolchain() -> None:
    need("javac", "the Java client")
    need("mvn", "the Java client")


def _run(command: Sequence[str], directory: Path) -> str:
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert ran.returncode == 0, f"{' '.join(command)}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def test_its_service_config_is_the_published_one() -> None:
    """One policy for every language: retries for reads, none for Dispatch."""
    published = ROOT / "client" / "python" / "lineside" / "service_config.json"
    own = JAVA / "src" / "main" / "resources" / "io" / "lineside" / "client" / "service_config.json"
    assert own.read_bytes() == published.read_bytes()


@pytest.mark.timeout(2 * BUILD_S)
def test_its_own_tests_pass() -> None:
    """Against a real service: typed errors, keys, lost connections, batches, traces, TLS."""
    _run([sys.executable, "scripts/java_client.py", "test"], ROOT)


@pytest.mark.asyncio
@pytest.mark.timeout(2 * BUILD_S)
async def test_the_readmes_call_and_its_quickstart_work(tmp_path: Path) -> None:
    """Both as they stand, on what `make run` serves; the quickstart says it twice, and is answered twice."""
    found = re.search(r"^```java\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    _run([sys.executable, "scripts/java_client.py", "build"], ROOT)
    for name in ("tools.py", "lineside.toml"):
        shutil.copy(ROOT / "examples" / "quickstart" / name, tmp_path)
    async with service(
        tmp_path / "lineside.toml", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"
    ) as up:
        program = tmp_path / "Readme.java"
        program.write_text(PROGRAM.format(snippet=found[1].replace("127.0.0.1:50051", up.address)))
        said = await asyncio.to_thread(_run, [*JAVA_COMMAND, str(program)], JAVA)
        assert said.endswith(" SOURCE_EXECUTED 1\n")
        quickstart = [*JAVA_COMMAND, "io.lineside.examples.Quickstart", up.address]
        said = await asyncio.to_thread(_run, quickstart, JAVA)
        assert [line.split()[0] for line in said.splitlines()] == ["SOURCE_EXECUTED", "SOURCE_REPLAYED"]
