from __future__ import annotations

import pytest

from tests.support.scripted_tool import answer
from tests.support.serving import serving


@pytest.mark.asyncio
async def test_a_call_is_answered() -> None:
    """A call with JSON arguments gets its result as JSON."""
    async with serving() as served:
        served.add("echo", answer({"a": 1}))
        reply = await served.dispatch("echo")
        assert reply.answer.result_json == b'{"a":1}'
