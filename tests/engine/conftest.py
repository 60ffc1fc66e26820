"""The engine on a virtual loop: a test is an async story, after which nothing may be left."""

from __future__ import annotations

import inspect

import pytest

from tests.support.engine_rig import Rig
from tests.support.virtual_loop import VirtualTimeLoop


@pytest.fixture
def rig(virtual_loop: VirtualTimeLoop) -> Rig:
    """A fresh engine on the test's virtual loop."""
    return Rig(virtual_loop)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on its rig's loop, let everything end, and check that every account is even."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    rig = pyfuncitem.funcargs["rig"]
    assert isinstance(rig, Rig)
    names = pyfuncitem._fixtureinfo.argnames
    rig.loop.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    rig.loop.run_until_idle()
    rig.assert_clean()
    return True
