from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from conversations.catalogue import APIS, Api, effect_of
from conversations.corpus import Call, Conversation
from conversations.execution import Instances
from conversations.schemas import ToolSchema
from conversations.state import digest

_STATES_PER_API = 4
_DRAWS_PER_METHOD = 12


def _run(instances: Instances, call: Call) -> bool:
    """Run a call and tell whether it changed any attribute."""
    before = digest(instances.state())
    instances.run(call.api, call.method, call.arguments)
    return digest(instances.state()) != before


def test_no_safe_call_of_the_corpus_changes_anything(corpus: dict[str, Conversation]) -> None:
    """No attribute and no random generator moves in any of the corpus's calls to safe tools."""
    changed, seen = [], 0
    for conversation in corpus.values():
        instances = Instances(conversation)
        for call in conversation.calls:
            moved = _run(instances, call)
            if effect_of(call.api, call.method) == "safe":
                seen += 1
                changed += [call.key] if moved else []
    assert changed == []
    assert seen > 300


@pytest.mark.parametrize(
    "tool", ["files.cd", "travel.get_flight_cost", "vehicle.get_outside_temperature_from_google"]
)
def test_calls_that_only_look_read_only_change_state(corpus: dict[str, Conversation], tool: str) -> None:
    """Moving about, price look-ups and readings drawn by chance leave traces, so they are final."""
    for conversation in corpus.values():
        instances = Instances(conversation)
        for call in conversation.calls:
            if _run(instances, call) and call.tool == tool:
                assert effect_of(call.api, call.method) == "final"
                return
    pytest.fail(f"no call of {tool} changed its conversation")


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.prefix)
def test_no_generated_call_of_a_safe_tool_changes_anything(
    api: Api, corpus: dict[str, Conversation], calls: list[Call], schemas: dict[str, ToolSchema]
) -> None:
    """Arguments drawn from the schemas and the corpus's own values move nothing, at the start or the end."""
    chance = random.Random(api.prefix)
    seen = sorted({str(value) for call in calls for value in call.arguments.values()})
    for instances in _states(api, corpus):
        before = digest(instances.state())
        for method in sorted(api.read_only):
            schema = next(s for s in schemas.values() if s.api is api and s.method == method).input_schema
            for _ in range(_DRAWS_PER_METHOD):
                arguments = _drawn_arguments(schema, seen, chance)
                instances.run(api, method, arguments)
                assert digest(instances.state()) == before, (method, arguments)


def _states(api: Api, corpus: dict[str, Conversation]) -> Iterator[Instances]:
    """Yield conversations that use the API, every other one at its end, logged in wherever it can be."""
    users = [conversation for conversation in corpus.values() if api in conversation.apis]
    for position, conversation in enumerate(users[:_STATES_PER_API]):
        instances = Instances(conversation)
        if position % 2:
            for call in conversation.calls:
                instances.run(call.api, call.method, call.arguments)
            instance = instances._by_prefix[api.prefix]
            if hasattr(instance, "authenticated"):
                instance.authenticated = True
        yield instances


def _drawn_arguments(schema: dict[str, Any], seen: list[str], chance: random.Random) -> dict[str, Any]:
    return {
        name: _drawn(part, seen, chance)
        for name, part in schema["properties"].items()
        if name != "conversation" and (name in schema["required"] or chance.random() < 0.5)
    }


def _drawn(schema: dict[str, Any], seen: list[str], chance: random.Random) -> Any:
    match schema["type"]:
        case "string":
            return chance.choice(seen)
        case "integer":
            return chance.randrange(-3, 60)
        case "number":
            return chance.choice([0, -1, 2.5, 1e6, chance.uniform(-9, 9)])
        case "boolean":
            return chance.random() < 0.5
        case "array":
            return [_drawn(schema["items"], seen, chance) for _ in range(chance.randrange(4))]
        case other:
            raise AssertionError(f"no safe tool takes {other}")
