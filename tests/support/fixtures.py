"""Fixtures for every test, loaded by the top conftest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.virtual_loop import VirtualTimeLoop


@pytest.fixture
def virtual_loop(request: pytest.FixtureRequest) -> Iterator[VirtualTimeLoop]:
    """A virtual-time loop that must be clean at the end of the test.

    Seed 0, or the seeds of ``@pytest.mark.parametrize("virtual_loop", range(20), indirect=True)``.
    """
    loop = VirtualTimeLoop(getattr(request, "param", 0))
    yield loop
    loop.close()
