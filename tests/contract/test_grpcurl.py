"""The contract by reflection: what grpcurl lists, describes and calls, with no proto file at hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.authored import scenarios
from tests.contract.by_reflection import Grpcurl, can_be_run
from tests.contract.house import house, over_tls, token
from tests.contract.languages import ROOT
from tests.contract.test_contract import BUILD_S, faults, names
from tests.support.toolchain import need

SERVICES = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    *(f"lineside.v1.{name}Service" for name in ("Call", "Dispatch", "Quota", "Run", "Tool", "Work")),
}
pytestmark = pytest.mark.timeout(BUILD_S + 120)


@pytest.fixture(scope="module", autouse=True)
def _grpcurl() -> None:
    """As pinned; built where it is not there yet."""
    built = subprocess.run(
        [sys.executable, "scripts/toolchains.py", "grpcurl"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if built.returncode:
        need("go", "grpcurl, by the contract")
        pytest.fail(built.stderr)


@pytest.mark.asyncio
async def test_what_there_is_can_be_listed_and_described(tmp_path: Path) -> None:
    """Every service, every method of ours, and the messages that they take and give; over TLS."""
    async with over_tls(tmp_path / "tls") as (address, ca):
        caller = Grpcurl(address, token("all"), ca)
        assert set((await caller.told("list")).split()) == SERVICES
        own = sorted(name for name in SERVICES if name.startswith("lineside"))
        for name in own:
            methods = [line.rpartition(".")[2] for line in (await caller.told("list", name)).split()]
            described = await caller.told("describe", name)
            assert methods
            assert all(f"rpc {method} (" in described for method in methods)
        assert "( stream .lineside.v1.DispatchBatchRequest )" in await caller.told("describe", own[1])
        assert "bytes arguments_json = 3" in await caller.told("describe", "lineside.v1.ToolCall")
        assert "rpc Dispatch (" in await caller.told("describe", "lineside.v1.DispatchService.Dispatch")
        assert "ServerReflectionInfo" in await caller.told("describe", "grpc.reflection.v1.ServerReflection")


@pytest.mark.asyncio
async def test_plain_scenarios_are_answered_as_every_client_gets_them(tmp_path: Path) -> None:
    """Those made of single calls alone: the same answers, details field by field."""
    words = names()
    async with house(tmp_path) as served:
        words |= await served.prepared(words["run"])
        chosen = [scenario for scenario in scenarios(words, by_stub=True) if can_be_run(scenario)]
        assert len(chosen) >= 40
        told = await Grpcurl(served.addresses["direct"], token("all")).all_answers(chosen)
    found = list(faults(chosen, told))
    assert not found, "\n".join(found)
