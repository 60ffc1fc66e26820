"""The corpus and the schemas, read once."""

from __future__ import annotations

import pytest

from conversations.corpus import Call, Conversation, load_corpus
from conversations.schemas import ToolSchema, tool_schemas


@pytest.fixture(scope="session")
def corpus() -> dict[str, Conversation]:
    """All conversations, by id."""
    return load_corpus()


@pytest.fixture(scope="session")
def calls(corpus: dict[str, Conversation]) -> list[Call]:
    """All calls, in order."""
    return [call for conversation in corpus.values() for call in conversation.calls]


@pytest.fixture(scope="session")
def schemas() -> dict[str, ToolSchema]:
    """All schemas, by tool name."""
    return tool_schemas()
