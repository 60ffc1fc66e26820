"""What service/deploy/ asks of Prometheus, and a real Prometheus to ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.pages import ROOT
from tests.support.toolchain import need

DEPLOY = ROOT / "service" / "deploy"
RULES = tuple(DEPLOY / "prometheus" / name for name in ("recording.yml", "alerts.yml"))
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "lineside.json"
COMMANDS = ("prometheus", "promtool")
_START_S = 20.0
_INSTALL_S = 300.0
_COMPARISON = re.compile(r" (>=|<=|==|!=|>|<) ")
_VARIABLES = {
    "$__rate_interval": "1m",
    "$instance": ".*",
    "$tool": ".*",
}


def need_prometheus() -> None:
    """Install Prometheus if it is missing and can be; without it skip, or fail where all is required."""
    if all(shutil.which(command) for command in COMMANDS):
        return
    install = [sys.executable, "scripts/toolchains.py", "prometheus"]
    subprocess.run(install, cwd=ROOT, timeout=_INSTALL_S, check=False)
    for command in COMMANDS:
        need(command, "what rules and dashboard ask")


def dashboard() -> Mapping[str, Any]:
    """The dashboard's JSON."""
    parsed: Mapping[str, Any] = json.loads(DASHBOARD.read_text())
    return parsed


def dashboard_expressions() -> list[str]:
    """What its panels ask, its variables filled in as for "All"."""
    return [_filled(target["expr"]) for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def annotation_expressions() -> list[str]:
    """What its annotations ask."""
    return [_filled(one["expr"]) for one in dashboard()["annotations"]["list"]]


def variable_selectors() -> list[str]:
    """The series that its variables list the labels of."""
    found = (re.search(r"label_values\((.*), \w+\)", one["definition"]) for one in _query_variables())
    return [match[1] for match in found if match is not None]


def _query_variables() -> Iterator[Mapping[str, Any]]:
    return (one for one in dashboard()["templating"]["list"] if one["type"] == "query")


def _filled(expression: str) -> str:
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def always_answering(alert: str) -> str:
    """An alert's expression that also answers while the alert is silent: its comparisons say 0 or 1."""
    return _COMPARISON.sub(r" \1 bool ", alert)


class Prometheus:
    """The HTTP API of a server that runs."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            async with self._session.get(f"{self._url}/-/ready") as response:
                return response.status == 200
        except aiohttp.ClientConnectionError:
            return False

    async def has(self, expression: str) -> bool:
        """Whether an expression gives at least one number."""
        data = await self._get("query", query=expression)
        return any(not math.isnan(float(sample["value"][1])) for sample in data["result"])

    async def rules(self) -> Sequence[Mapping[str, Any]]:
        """Every rule that it evaluates."""
        groups = (await self._get("rules"))["groups"]
        return [rule for group in groups for rule in group["rules"]]

    async def _get(self, what: str, **parameters: str) -> Any:
        async with self._session.get(f"{self._url}/api/v1/{what}", params=parameters) as response:
            body = await response.json()
            assert body["status"] == "success", (what, parameters, body)
            return body["data"]


@contextlib.asynccontextmanager
async def prometheus(directory: Path, target: str) -> AsyncIterator[Prometheus]:
    """A server with the rules of service/deploy/ that scrapes host:port four times a second."""
    config = directory / "prometheus.json"  # JSON is YAML
    scrape = {"job_name": "lineside", "static_configs": [{"targets": [target]}]}
    every = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"}
    rules = [str(file) for file in RULES]
    config.write_text(json.dumps({"global": every, "rule_files": rules, "scrape_configs": [scrape]}))
    address = f"127.0.0.1:{_free_port()}"
    flags = (
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    )
    process = await asyncio.create_subprocess_exec("prometheus", *flags)
    try:
        async with aiohttp.ClientSession() as session:
            server, end = Prometheus(f"http://{address}", session), time.monotonic() + _START_S
            while not await server.is_ready():
                assert process.returncode is None, "prometheus has ended"
                assert time.monotonic() < end, "prometheus does not become ready"  # each look is a request
            yield server
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
