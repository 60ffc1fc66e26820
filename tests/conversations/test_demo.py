from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conversations.corpus import CALLS, CONVERSATIONS
from conversations.demo import Outcome, run_demo


def _assert_as_direct(outcome: Outcome) -> dict[str, Any]:
    """Every state and answer as without a service, every effect there exactly once, nothing left open."""
    summary = outcome.summary
    assert outcome.differences == []
    assert summary["unequal_answers"] == []
    assert (summary["states_equal"], summary["answers_equal"]) == (CONVERSATIONS, CALLS)
    assert summary["effects_once"] == summary["final_calls"] > CALLS / 2
    assert summary["second_effects"] == 0
    assert summary["left_unknown"] == 0
    assert outcome.as_promised
    return summary


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_without_faults_each_call_is_one_attempt(tmp_path: Path) -> None:
    """A service of its own on SQLite, all conversations, nobody misbehaves: nothing is retried or refused."""
    summary = _assert_as_direct(await run_demo(tmp_path, seed=None))
    assert (summary["executed"], summary["joined"], summary["replayed"]) == (CALLS, 0, 0)
    assert (summary["attempts"], summary["retries"]) == (CALLS, 0)
    assert summary["refusals"] == {}


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_with_faults_conversations_end_as_if_there_were_none(tmp_path: Path) -> None:
    """Tools fail and hang, callers repeat themselves, outcomes get lost: the ends are those of direct runs.

    The seed fixes the faults; a busy machine may add timeouts, so counts that it can move have bounds only.
    """
    outcome = await run_demo(tmp_path, seed=1)
    summary = _assert_as_direct(outcome)
    assert summary["refusals"]["schema (not_run)"] == 42
    assert summary["retries"] > 100
    assert min(summary[name] for name in ("joined", "sent_again_after_not_run", "sent_again_as_safe")) > 0
    assert summary["replayed"] > 80
    assert summary["unknown"] == sum(summary["settled_by"].values()) > 20
    assert {"reconcile", "person"} <= set(summary["settled_by"])
    assert outcome.record is not None
    assert len(outcome.record.attempts) > 1
