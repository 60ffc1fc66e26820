"""The services that the contract's scenarios are run against, and what the scenarios' tools ask of the test.

direct   a service of its own for each run
relay    the same one behind a relay that cuts every connection when `cut` asks for it
drain    a second service, behind a relay of its own; once it drains, new connections go to a third
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lineside import AsyncClient, CallTimeout
from lineside.v1.tools_pb2 import ListToolsRequest
from lineside.v1.tools_pb2_grpc import ToolServiceStub
from tests.support.certificates import Authority
from tests.support.cut_proxy import CutProxy, cut_proxy
from tests.support.process import COMMAND, START_S, ServiceProcess, service

HOME = Path(__file__).with_name("home")
TOKENS = {
    "all": ("acme", ("call", "read", "settle")),
    "limited": ("acme", ("call",)),
    "other": ("other", ("call", "read", "settle")),
}
REFUSALS = 3
"""Calls that the draining service refuses before what keeps it up ends."""
WAITING = 64
"""As many calls wait for one tool."""


def token(name: str) -> str:
    """A token of the suite; known, and of no use anywhere else."""
    return f"ls_contract_{name}"


def config(directory: Path) -> Path:
    """The config file beside its tools, in a directory of its own."""
    directory.mkdir()
    shutil.copy(HOME / "contract_tools.py", directory)
    text = (HOME / "lineside.toml").read_text()
    for name, (tenant, scopes) in TOKENS.items():
        digest = hashlib.sha256(token(name).encode()).hexdigest()
        text += f'\n[[tokens]]\ntenant = "{tenant}"\nsha256 = "{digest}"\nscopes = {json.dumps(scopes)}\n'
    file = directory / "lineside.toml"
    file.write_text(text)
    return file


async def until(look: Callable[[], Awaitable[float]], value: float) -> None:
    """Return once a look sees at least the value (TimeoutError after 20 s)."""
    async with asyncio.timeout(20):
        while await look() < value:
            pass  # each look lets the service have its turn


async def refusals(served: ServiceProcess) -> float:
    """Calls that a service refused as unavailable."""
    samples = (await served.metrics()).items()
    return sum(
        n for name, n in samples if name.startswith("dispatch_calls_total") and 'kind="unavailable"' in name
    )


@dataclass
class House:
    """The services of one run, while they are up. addresses: of the runner's LINESIDE_ADDRESSES."""

    direct: ServiceProcess
    leaving: ServiceProcess
    relay: CutProxy
    moving: CutProxy
    next_address: str
    _held: list[asyncio.Future[Any]] = field(default_factory=list)
    _going: asyncio.Future[tuple[int, float]] | None = None
    _letting_go: asyncio.Future[None] | None = None
    _drained: asyncio.Event = field(default_factory=asyncio.Event)
    _let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Its own callers, besides the runner."""
        self._own = self.client()
        self._own_leaving = AsyncClient(self.leaving.address, token=token("all"))

    @property
    def addresses(self) -> Mapping[str, str]:
        """By the names that scenarios use."""
        return {"direct": self.direct.address, "relay": self.relay.target, "drain": self.moving.target}

    def client(self) -> AsyncClient:
        """The test's own caller of the first service."""
        return AsyncClient(self.direct.address, token=token("all"))

    async def close(self) -> None:
        """The test's own callers go; the service that drained has gone, exit code 0."""
        self._let_go.set()
        left = [*self._held, *([self._letting_go] if self._letting_go else [])]
        for task in left:
            task.cancel()  # what is still held, where a scenario broke off
        await asyncio.gather(*left, return_exceptions=True)
        if self._going is not None:
            code, _ = await self._going
            assert code == 0
        await self._own.close()
        await self._own_leaving.close()

    async def prepared(self, run: str) -> Mapping[str, str]:
        """What only a service can name: a finished call, an unknown one, a page's token."""
        async with self.client() as client:
            done = await client.dispatch("book", {"seat": f"before {run}"}, idempotency_key=f"before {run}")
            lost = {"seat": f"lost {run}", "seconds": 30}
            with contextlib.suppress(CallTimeout):
                await client.dispatch("book_hastily", lost, idempotency_key=f"lost {run}")
            calls = {
                "done": await client.get_call(done.call_id),
                "unknown": await client.get_call(tool="book_hastily", idempotency_key=f"lost {run}"),
            }
        tools: Any = ToolServiceStub(self.direct.channel())
        metadata = (("authorization", f"Bearer {token('all')}"),)
        page = await tools.ListTools(ListToolsRequest(page_size=2), metadata=metadata)
        ids = {f"{name}.id": call.call_id for name, call in calls.items()}
        etags = {f"{name}.etag": call.etag for name, call in calls.items()}
        return {**ids, **etags, "page": page.next_page_token}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One question of a tool."""
        try:
            asked = json.loads(await reader.readline())
            doings: Mapping[str, Callable[..., Awaitable[Any]]] = {
                "cut": self._cut,
                "fill": self._fill,
                "filled": self._filled,
                "drain": self._drain,
                "until_drained": self._until_drained,
                "hold": self._hold,
                "settle": self._settle,
            }
            said = await doings[asked.pop("what")](**asked)
            writer.write(json.dumps(said).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            pass  # the tool was given up
        finally:
            writer.close()

    async def _cut(self) -> str:
        self.relay.cut()
        return "cut"

    async def _fill(self) -> dict[str, int]:
        """Have one call run in `narrow`, and as many wait as may."""
        for _ in range(1 + WAITING):
            self._held.append(asyncio.ensure_future(self._own.dispatch("narrow", {})))
        await until(lambda: self.direct.metric("dispatch_slots_waiting", "narrow"), WAITING)
        return {"waiting": WAITING}

    async def _filled(self) -> list[str]:
        """What became of them, once released."""
        answers = await asyncio.gather(*self._held)
        self._held.clear()
        return sorted({answer.result for answer in answers})

    async def _drain(self) -> str:
        """The service that asks goes; it stays up, draining, until it has refused so many calls."""
        self._held.append(asyncio.ensure_future(self._own_leaving.dispatch("hold", {})))
        await until(lambda: self.leaving.metric("dispatch_slots_running", "hold"), 1)
        self.moving.upstream = self.next_address
        self._going = asyncio.ensure_future(self.leaving.terminated())
        while await self.leaving.is_serving():
            pass  # each look lets the service have its turn
        self._letting_go = asyncio.ensure_future(self._let_go_after_refusals())
        self._drained.set()
        return "draining"

    async def _let_go_after_refusals(self) -> None:
        await until(lambda: refusals(self.leaving), REFUSALS)
        self._let_go.set()

    async def _until_drained(self) -> str:
        await self._drained.wait()
        return "drained"

    async def _hold(self) -> str:
        await self._let_go.wait()
        return "let go"

    async def _settle(self, key: str, tool: str, done: Any, not_run: bool) -> str:
        async with self.client() as client:
            record = await client.get_call(tool=tool, idempotency_key=key)
            settlement: dict[str, Any] = {"not_run": True} if not_run else {"done": done}
            settled = await client.settle_call(record.call_id, record.etag, reason="looked", **settlement)
            return settled.state.name if settled.state else ""


@contextlib.asynccontextmanager
async def house(directory: Path) -> AsyncIterator[House]:
    """All of it, until the block ends; each service has a directory, and so a store, of its own."""
    socket = directory / "contract.sock"
    async with contextlib.AsyncExitStack() as stack:

        async def started(name: str) -> ServiceProcess:
            env = (f"CONTRACT_SOCKET={socket}", f"CONTRACT_NAME={name}")
            return await stack.enter_async_context(service(config(directory / name), env=env))

        direct, leaving, following = [await started(name) for name in ("direct", "leaving", "following")]
        relay = await stack.enter_async_context(cut_proxy(direct.address))
        moving = await stack.enter_async_context(cut_proxy(leaving.address))
        found = House(direct, leaving, relay, moving, following.address)
        server = await asyncio.start_unix_server(found.serve, socket)
        stack.callback(server.close)
        try:
            yield found
        finally:
            await found.close()


@contextlib.asynccontextmanager
async def over_tls(directory: Path) -> AsyncIterator[tuple[str, Path]]:
    """A service of its own over TLS, until the block ends: its address, and the PEM file of who to trust."""
    authority, file = Authority(), config(directory)
    pair = authority.server()
    pems = {"ca": authority.certificate, "cert": pair.certificate, "key": pair.key}
    paths = {name: directory / f"{name}.pem" for name in pems}
    for name, pem in pems.items():
        paths[name].write_bytes(pem)
    process = await asyncio.create_subprocess_exec(
        *("env", f"LINESIDE__SERVER__TLS_CERT={paths['cert']}", f"LINESIDE__SERVER__TLS_KEY={paths['key']}"),
        *(COMMAND, "serve", "--config", str(file)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"SERVING on (\S+):", line)
        assert found is not None, line
        yield found[1], paths["ca"]
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ran(
    command: Sequence[str], file: Path, directory: Path, environment: Mapping[str, str], timeout_s: float
) -> tuple[list[dict[str, Any]], str]:
    """Run a runner to its end; what it printed for each scenario, and its stderr if it failed."""
    process = await asyncio.create_subprocess_exec(
        "env", *(f"{name}={value}" for name, value in environment.items()), *command, str(file),
        cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [json.loads(line) for line in out.splitlines() if line.strip()]
    return (
        lines,
        "" if process.returncode == 0 else f"exit {process.returncode}: {err.decode(errors='replace')}",
    )
