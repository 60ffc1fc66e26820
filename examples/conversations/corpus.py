"""The two hundred conversations and their 1,142 ground-truth calls."""

from __future__ import annotations

import ast
import importlib
import importlib.resources
import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from conversations.catalogue import APIS, Api, api_of_class, tool_name
from conversations.schemas import CONVERSATION

__all__ = ["CALLS", "CONVERSATIONS", "Call", "Conversation", "api_class", "load_corpus", "public_methods"]

CONVERSATIONS = 200
CALLS = 1142
"""The size of the published multi-turn base set."""

_DATA_FILE = "BFCL_v4_multi_turn_base.json"
_CODE_PACKAGE = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One ground-truth call: the `index`-th of its conversation's `turn`, both from 0.

    `arguments` are by name, as the caller wrote them: no defaults, no conversation.
    """

    conversation: str
    turn: int
    index: int
    api: Api
    method: str
    arguments: dict[str, Any]

    @property
    def tool(self) -> str:
        """The name of the tool to call."""
        return tool_name(self.api, self.method)

    @property
    def key(self) -> str:
        """The call's idempotency key, e.g. `multi_turn_base_17:3:1`."""
        return f"{self.conversation}:{self.turn}:{self.index}"

    @cached_property
    def wire_arguments(self) -> dict[str, Any]:
        """The arguments as they are sent, the conversation included."""
        return {CONVERSATION: self.conversation, **self.arguments}


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One conversation: the APIs it uses, in the corpus's order, how they begin, and its calls in order."""

    id: str
    apis: tuple[Api, ...]
    initial_config: dict[str, Any]
    calls: tuple[Call, ...]


def load_corpus() -> dict[str, Conversation]:
    """Read all conversations, by id, in the corpus's order; ValueError if a call cannot be read."""
    data = importlib.resources.files("bfcl_eval") / "data"
    answers = {row["id"]: row["ground_truth"] for row in _rows(data / "possible_answer" / _DATA_FILE)}
    methods = {api.prefix: public_methods(api) for api in APIS}
    corpus = {}
    for row in _rows(data / _DATA_FILE):
        apis = tuple(api_of_class(name) for name in row["involved_classes"])
        # As the benchmark does: where two APIs share a method's name, the one named last has it.
        owners = {name: (api, signature) for api in apis for name, signature in methods[api.prefix].items()}
        calls = tuple(
            _parse(text, conversation=row["id"], turn=turn, index=index, owners=owners)
            for turn, texts in enumerate(answers[row["id"]])
            for index, text in enumerate(texts)
        )
        corpus[row["id"]] = Conversation(
            id=row["id"], apis=apis, initial_config=row["initial_config"], calls=calls
        )
    return corpus


def api_class(api: Api) -> type:
    """Import and return the class of an API."""
    found: type = getattr(importlib.import_module(f"{_CODE_PACKAGE}.{api.module}"), api.class_name)
    return found


def public_methods(api: Api) -> dict[str, inspect.Signature]:
    """Return the signatures of an API's public methods, `self` left out, by name."""
    signatures = {}
    for name, method in inspect.getmembers(api_class(api), inspect.isfunction):
        if not name.startswith("_"):
            signature = inspect.signature(method)
            signatures[name] = signature.replace(parameters=list(signature.parameters.values())[1:])
    return signatures


def _rows(path: Any) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def _parse(
    text: str, *, conversation: str, turn: int, index: int, owners: dict[str, tuple[Api, inspect.Signature]]
) -> Call:
    node = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{conversation} turn {turn}: not a call: {text}")  # noqa: TRY004 - it is the text
    api, signature = owners[node.func.id]
    bound = signature.bind(
        *(ast.literal_eval(value) for value in node.args),
        **{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords},
    )
    return Call(
        conversation=conversation,
        turn=turn,
        index=index,
        api=api,
        method=node.func.id,
        arguments=dict(bound.arguments),
    )
