"""Ten times the load that a tool can take, in an open loop, for half a minute."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.load.overload import flooded, overloaded
from tests.load.sides import ROOT
from tests.support.toolchain import need


@pytest.fixture
def driver() -> None:
    """The driver is there, built if need be; without Go these tests are not run, and say so."""
    need("go", "the overload")
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "toolchains.py", "loaddriver"], check=True, timeout=600
    )


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_ten_times_the_load_is_shed_early_and_leaves_no_trace(driver: None, tmp_path: Path) -> None:
    """Work goes on at the tool's rate, the rest is refused at once with a hint, control calls are answered,
    and after the end the service is normal at once.
    """
    outcome = await overloaded(tmp_path, 30)
    assert outcome.codes.keys() == {"OK", "ResourceExhausted"}
    assert outcome.hintless == 0
    assert not outcome.failed_probes
    assert outcome.value("goodput_ratio") >= 0.85
    assert outcome.value("admitted_p99_ratio") <= 3
    assert outcome.value("memory_mib") <= 200
    assert outcome.value("recovery_s") <= 5


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_a_flood_that_no_processor_can_carry_leaves_the_goodput_alone(
    driver: None, tmp_path: Path
) -> None:
    """Work goes on at its rate, what is too much is turned away, memory is bounded, and after the end all is
    normal.
    """
    outcome = await flooded(tmp_path, 10)
    assert outcome.codes.keys() <= {"OK", "ResourceExhausted", "Canceled", "DeadlineExceeded"}
    assert outcome.codes["Canceled"] > outcome.codes.get("DeadlineExceeded", 0)
    assert outcome.value("flood.goodput_ratio") >= 0.5
    assert outcome.value("flood.memory_mib") <= 200
    assert outcome.value("flood.recovery_s") <= 5
