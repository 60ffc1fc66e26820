"""The page of the Python client is run as it stands: each snippet, and what its comments say."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.pages import ROOT
from tests.support.process import COMMAND, service

PAGE = (ROOT / "docs" / "client.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PLAIN, SECURE = "127.0.0.1:50051", "lineside.example:50051"
TOKEN = "a-token-of-the-page"
_SAID = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)
_FREE = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")


async def holds(snippet: str, directory: Path) -> None:
    """Run it as a program; what stands behind its prints is what they print, in that order."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        snippet,
        cwd=directory,
        env={"LINESIDE_TOKEN": TOKEN},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    told, wrong = await program.communicate()
    assert program.returncode == 0, wrong.decode()
    lines = iter(told.decode().splitlines())
    for said in _SAID.findall(snippet):
        assert said in lines, f"{said!r} was not printed (in its turn) by:\n{snippet}\nbut:\n{told.decode()}"


def quickstart(directory: Path, more: str = "") -> Path:
    """The quickstart's tools in a directory of their own; nobody but a person settles what is unknown."""
    example = ROOT / "examples" / "quickstart"
    shutil.copy(example / "tools.py", directory)
    config = re.sub(r"^reconcile = .*\n", "", (example / "lineside.toml").read_text(), flags=re.MULTILINE)
    (directory / "lineside.toml").write_text(config.replace("[server]\n", f"[server]\n{more}"))
    return directory / "lineside.toml"


@pytest.mark.asyncio
async def test_the_clients_page_runs_against_the_quickstart(tmp_path: Path) -> None:
    """Every snippet that calls the service on this machine works and prints what the page says."""
    snippets = [snippet for snippet in SNIPPETS if PLAIN in snippet]
    assert len(snippets) == len(SNIPPETS) - 1
    async with service(quickstart(tmp_path), *_FREE) as running:
        for snippet in snippets:
            await holds(snippet.replace(PLAIN, running.address), tmp_path)


@pytest.mark.asyncio
async def test_the_clients_page_runs_over_tls(tmp_path: Path) -> None:
    """The snippet with an authority and a token is let in by a service that wants both."""
    authority = Authority()
    server = authority.server()
    for name, text in (("ca", authority.certificate), ("cert", server.certificate), ("key", server.key)):
        (tmp_path / f"{name}.pem").write_bytes(text)
    config = quickstart(tmp_path, 'tls_cert = "cert.pem"\ntls_key = "key.pem"\n')
    with config.open("a") as file:
        file.write(
            f'\n[[tokens]]\ntenant = "acme"\nsha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"\n'
        )
    (snippet,) = (snippet for snippet in SNIPPETS if SECURE in snippet)
    served = await asyncio.create_subprocess_exec(
        *(COMMAND, "serve", "--config", str(config), *_FREE),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert served.stdout is not None
    try:
        line = re.search(r"SERVING on (\S+):", (await served.stdout.readline()).decode())
        assert line is not None
        await holds(snippet.replace(SECURE, line[1]), tmp_path)
    finally:
        served.terminate()
        await served.wait()
