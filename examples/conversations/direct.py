"""Direct execution: every conversation run in process, call after call, with nothing in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from conversations.corpus import Conversation
from conversations.execution import Answer, Instances
from conversations.state import digest

__all__ = ["FinalState", "run_directly"]


@dataclass(frozen=True, kw_only=True)
class FinalState:
    """How a conversation ended: its canonical state, that state's digest, each call's answer by key."""

    conversation: str
    state: Any
    digest: str
    answers: dict[str, Answer]


def run_directly(conversations: Iterable[Conversation]) -> Iterator[FinalState]:
    """Run each conversation on fresh instances and yield its final state."""
    for conversation in conversations:
        instances = Instances(conversation)
        answers = {
            call.key: instances.run(call.api, call.method, call.arguments) for call in conversation.calls
        }
        state = instances.state()
        yield FinalState(conversation=conversation.id, state=state, digest=digest(state), answers=answers)
