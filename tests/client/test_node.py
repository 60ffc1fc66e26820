"""The Node client: its own tests against a real service, its lock, its copy of the service config."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.toolchain import need

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "client" / "node"
BUILD_S = 300.0
"""What installing its packages and compiling it takes at most, with an empty cache."""


def _run(command: Sequence[str], directory: Path) -> str:
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert ran.returncode == 0, f"{' '.join(command)}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def test_its_service_config_is_the_published_one() -> None:
    """One policy for every language: retries for reads, none for Dispatch."""
    published = ROOT / "client" / "python" / "lineside" / "service_config.json"
    assert (NODE / "service_config.json").read_bytes() == published.read_bytes()


def test_its_lock_has_a_hash_for_every_package_and_no_address() -> None:
    """It installs what was looked at, from wherever the reader's registry is."""
    packages = json.loads((NODE / "package-lock.json").read_text())["packages"]
    installed = {name: package for name, package in packages.items() if name}
    assert [name for name, package in installed.items() if "integrity" not in package] == []
    assert [name for name, package in installed.items() if "resolved" in package] == []


@pytest.mark.timeout(2 * BUILD_S)
def test_its_own_tests_pass() -> None:
    """Against a real service: typed errors, keys, lost connections, batches, traces; it compiles strictly."""
    need("node", "the Node client")
    need("npm", "the Node client")
    _run(["make", "--no-print-directory", "client/node/dist/.built"], ROOT)
    assert "# fail 0" in _run(["npm", "test", "--silent"], NODE)
