"""One contract, whatever the language: each client's runner gets what scenarios.json says it must get."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contract.authored import Scenario, scenarios, written
from tests.contract.house import TOKENS, house, over_tls, ran, token
from tests.contract.languages import LANGUAGES, ROOT, Language
from tests.contract.matching import mismatches
from tests.contract.rude import rudeness, until_quiet
from tests.support.toolchain import need

BUILD_S = 600
"""What a runner's build takes at most, with nothing built before."""
RUN_S = 120.0
"""A run takes seconds; more than this is a hang, on any machine."""


def names() -> dict[str, str]:
    """What scenarios call by name: a word that only this run has, and the tokens."""
    return {"run": uuid.uuid4().hex[:12], **{f"token.{name}": token(name) for name in TOKENS}}


def faults(chosen: Sequence[Scenario], told: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Everything that a runner got and should not have, or should have and did not."""
    answers = {one["id"]: one["answers"] for one in told}
    for scenario in chosen:
        got = answers.get(scenario.id)
        if got is None:
            yield f"{scenario.id}: not run"
            continue
        for step, want in enumerate(scenario.wants):
            said = got[step] if step < len(got) else None
            for fault in mismatches(want, said, got[:step]):
                yield f"{scenario.id}, step {step}, {fault}"


@pytest.fixture(params=LANGUAGES, ids=lambda language: language.name, scope="module")
def language(request: pytest.FixtureRequest) -> Language:
    """Each language whose toolchain is there, its runner built."""
    chosen: Language = request.param
    for tool in chosen.needs:
        need(tool, f"the client in {chosen.name}")
    for command in chosen.build:
        directory = ROOT / chosen.directory
        built = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=BUILD_S, check=False
        )
        assert built.returncode == 0, f"{' '.join(command)}:\n{built.stdout}{built.stderr}"
    return chosen


@pytest.mark.asyncio
@pytest.mark.timeout(BUILD_S + RUN_S + 60)
async def test_every_scenario(language: Language, tmp_path: Path) -> None:
    """Every step of every scenario is answered as the file says; then callers without manners do no harm, and
    nothing waits or is kept that should not.
    """
    words = names()
    async with house(tmp_path) as served:
        words |= await served.prepared(words["run"])
        await check(language, scenarios(words), served.addresses, tmp_path)
        await rudeness(served, words["run"])
        await until_quiet(served)


@pytest.mark.asyncio
@pytest.mark.timeout(BUILD_S + RUN_S + 60)
async def test_some_over_tls(language: Language, tmp_path: Path) -> None:
    """The same over TLS, for a caller that is told whom to trust."""
    chosen = [scenario for scenario in scenarios(names()) if scenario.tls]
    async with over_tls(tmp_path / "tls") as (address, ca):
        await check(language, chosen, {"direct": address}, tmp_path, LINESIDE_CA=str(ca))


async def check(
    language: Language,
    chosen: Sequence[Scenario],
    addresses: Mapping[str, str],
    directory: Path,
    **environment: str,
) -> None:
    """Have a language's runner run them, and compare (AssertionError with every difference)."""
    environment |= {"LINESIDE_ADDRESSES": json.dumps(addresses), "LINESIDE_TOKEN": token("all")}
    file = written(chosen, directory / "scenarios.json")
    assert "${" not in file.read_text(), "a name that stands for nothing"
    told, failed = await ran(language.run, file, ROOT / language.directory, environment, RUN_S)
    found = list(faults(chosen, told))
    assert not failed, failed
    assert not found, "\n".join(found)
