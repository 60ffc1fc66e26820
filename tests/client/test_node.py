"""The Node client: its own tests against a real service, its lock, its copy of the service config."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.process import service
from tests.support.toolchain import need

ROOT = Path(__file__).resolve().parents[2]
NODE = ROOT / "client" / "node"
BUILD_S = 300.0
"""What installing its packages and compiling it takes at most, with an empty cache."""

MUTUAL = """
[server]
listen = "127.0.0.1:0"
tls_cert = "server.pem"
tls_key = "server.key"
client_ca = "ca.pem"
[admin]
listen = "127.0.0.1:0"
[store]
kind = "memory"
[tools.echo]
target = "tools:echo"
effect = "safe"
[[certificates]]
san = "planner.example"
tenant = "travel"
"""
ASKS = """
import { readFileSync as pem } from "node:fs";
import { Client, toolCall, resultText } from "./dist/src/index.js";
const [address, home] = process.argv.slice(1);
const own = { cert: pem(`${home}/caller.pem`), key: pem(`${home}/caller.key`) };
for (const more of [own, {}]) {
  const client = new Client(address, { tls: { ca: pem(`${home}/ca.pem`), ...more } });
  const call = client.dispatch(toolCall("echo", { value: 1 }), { timeoutMs: 10_000 });
  console.log(await call.then(resultText, (error) => error.isLost));
  client.close();
}
"""
"""Calls with the caller's own certificate, then without one."""
IMPORTS = """
import { Client, ErrorKind, LinesideError, Outcome, result, Source, toolCall } from "./dist/src/index.js";
"""


def _run(command: Sequence[str], directory: Path) -> str:
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert ran.returncode == 0, f"{' '.join(command)}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def _build() -> None:
    need("node", "the Node client")
    need("npm", "the Node client")
    _run(["make", "--no-print-directory", "client/node/dist/.built"], ROOT)


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
    _build()
    assert "# fail 0" in _run(["npm", "test", "--silent"], NODE)


@pytest.mark.asyncio
@pytest.mark.timeout(2 * BUILD_S)
async def test_the_readmes_call_and_its_quickstart_work(tmp_path: Path) -> None:
    """Both as they stand, on what `make run` serves; the quickstart says it twice, and is answered twice."""
    _build()
    found = re.search(r"^```ts\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    for name in ("tools.py", "lineside.toml"):
        shutil.copy(ROOT / "examples" / "quickstart" / name, tmp_path)
    async with service(
        tmp_path / "lineside.toml", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"
    ) as up:
        program = IMPORTS + found[1].replace("127.0.0.1:50051", up.address) + "client.close();"
        said = await asyncio.to_thread(_run, ["node", "--input-type=module", "-e", program], NODE)
        assert said.endswith(" EXECUTED 1\n")
        said = await asyncio.to_thread(_run, ["node", "dist/examples/quickstart.js", up.address], NODE)
        assert [line.split()[0] for line in said.splitlines()] == ["EXECUTED", "REPLAYED"]


@pytest.mark.timeout(2 * BUILD_S)
def test_its_certificate_says_who_calls(tmp_path: Path) -> None:
    """mTLS: with the caller's certificate it is let in, without one the handshake fails."""
    _build()
    authority = Authority()
    for name, pair in (("server", authority.server()), ("caller", authority.caller("planner.example"))):
        (tmp_path / f"{name}.pem").write_bytes(pair.certificate)
        (tmp_path / f"{name}.key").write_bytes(pair.key)
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    (tmp_path / "lineside.toml").write_text(MUTUAL)
    shutil.copy(NODE / "testdata" / "tools.py", tmp_path)
    serve = [str(Path(sys.executable).parent / "lineside-service"), "serve", "--config", "lineside.toml"]
    with subprocess.Popen(serve, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            found = re.search(r"SERVING on (\S+):", line := service.stdout.readline())
            assert found is not None, line
            told = _run(["node", "--input-type=module", "-e", ASKS, found[1], str(tmp_path)], NODE)
        finally:
            service.terminate()
    assert told.split() == ["1", "true"]
