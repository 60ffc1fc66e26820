"""The engine on a virtual loop; every test ends with a loop that has nothing left."""

from __future__ import annotations

import pytest

from tests.support.engine_rig import Rig
from tests.support.virtual_loop import VirtualTimeLoop


@pytest.fixture
def rig(virtual_loop: VirtualTimeLoop) -> Rig:
    """A fresh engine on the test's virtual loop."""
    return Rig(virtual_loop)
