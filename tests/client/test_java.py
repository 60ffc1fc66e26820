"""The Java client: its own tests against a real service, its copy of the service config."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.toolchain import need

ROOT = Path(__file__).resolve().parents[2]
JAVA = ROOT / "client" / "java"
BUILD_S = 600.0
"""What Maven takes at most, on two cores, with everything still to fetch."""


@pytest.fixture(scope="module", autouse=True)
def _toolchain() -> None:
    need("javac", "the Java client")
    need("mvn", "the Java client")


def test_its_service_config_is_the_published_one() -> None:
    """One policy for every language: retries for reads, none for Dispatch."""
    published = ROOT / "client" / "python" / "lineside" / "service_config.json"
    own = JAVA / "src" / "main" / "resources" / "io" / "lineside" / "client" / "service_config.json"
    assert own.read_bytes() == published.read_bytes()


@pytest.mark.timeout(2 * BUILD_S)
def test_its_own_tests_pass() -> None:
    """Against a real service: typed errors, keys, lost connections, batches, traces, TLS."""
    command = [sys.executable, "scripts/java_client.py", "test"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"
