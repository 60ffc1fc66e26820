from __future__ import annotations

from pathlib import Path

import pytest

from conversations.corpus import CALLS, CONVERSATIONS
from conversations.demo import run_demo


@pytest.mark.asyncio
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [None, 1], ids=["without faults", "with faults"])
async def test_real_conversations_end_as_in_direct_execution(tmp_path: Path, seed: int | None) -> None:
    """A service of its own on SQLite, all conversations: every state and every answer as without it."""
    outcome = await run_demo(tmp_path, seed=seed)
    summary = outcome.summary
    assert outcome.differences == []
    assert summary["states_equal"] == CONVERSATIONS
    assert summary["answers_equal"] == CALLS
    assert summary["second_effects"] == 0
    assert summary["left_unknown"] == 0
    assert outcome.as_promised
    if seed is None:
        assert (summary["executed"], summary["joined"], summary["replayed"]) == (CALLS, 0, 0)
        assert summary["refusals"] == {}
    else:
        assert min(summary[name] for name in ("joined", "replayed", "retries", "unknown")) > 0
        assert {"RECONCILE", "PERSON"} <= set(summary["settled_by"])
