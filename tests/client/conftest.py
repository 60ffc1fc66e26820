"""The scripted service, once for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.client.scripted_service import ScriptedTools, serving


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[tuple[ScriptedTools, str]]:
    """The tools of a scripted service and the target that reaches it."""
    async with serving() as served:
        yield served
