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
from tests.contract.house import TOKENS, house, ran, token
from tests.contract.languages import LANGUAGES, ROOT, Language
from tests.contract.matching import mismatches
from tests.support.toolchain import need

BUILD_S = 600
"""What a runner's build takes at most, with nothing built before."""
RUN_S = 120.0
"""A run takes seconds; more than this is a hang, on any machine."""


def names() -> Mapping[str, str]:
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


def build(language: Language) -> None:
    """Its runner, once its toolchain is there."""
    for command in language.needs:
        need(command, f"the client in {language.name}")
    for command in language.build:
        subprocess.run(command, cwd=ROOT / language.directory, check=True, timeout=BUILD_S)


@pytest.mark.asyncio
@pytest.mark.timeout(BUILD_S + RUN_S + 60)
@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
async def test_every_scenario(language: Language, tmp_path: Path) -> None:
    """Every step of every scenario is answered as the file says."""
    build(language)
    chosen = scenarios(names())
    async with house(tmp_path) as served:
        environment = {"LINESIDE_ADDRESSES": json.dumps(served.addresses), "LINESIDE_TOKEN": token("all")}
        file = written(chosen, tmp_path / "scenarios.json")
        told, failed = await ran(language.run, file, ROOT / language.directory, environment, RUN_S)
    found = list(faults(chosen, told))
    assert not failed, failed
    assert not found, "\n".join(found)
