"""Running one method on a conversation's own instances: the part that knows neither a service nor a loop."""

from __future__ import annotations

import copy
import decimal
import importlib
import inspect
import math
import numbers
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from conversations.catalogue import Api
from conversations.corpus import Conversation, api_class
from conversations.state import canonical_state

__all__ = ["Answer", "Instances"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a call gave: a JSON value, and whether the API said no (`tool_error`)."""

    result: Any
    tool_error: bool = False


class Instances:
    """The API instances of one conversation, built from its initial configuration as the benchmark does."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self._by_prefix: dict[str, Any] = {}
        for api in conversation.apis:
            instance = api_class(api)()
            if not api.stateless:
                configuration = conversation.initial_config.get(api.class_name, {})
                instance._load_scenario(copy.deepcopy(configuration), long_context=False)  # noqa: SLF001 - its way in
            self._by_prefix[api.prefix] = instance

    def run(self, api: Api, method: str, arguments: Mapping[str, Any]) -> Answer:
        """Run one method to its end in one step, and copy its result.

        Every failure of the API is an answer with `tool_error`: an `{"error": ...}` result, an exception, an
        API that the conversation does not have.
        """
        instance = self._by_prefix.get(api.prefix)
        if instance is None:
            return _refusal(f"{self.conversation.id} has no {api.prefix} API")
        bound_method = getattr(instance, method)
        try:
            with _own_precision():
                result = _as_json(bound_method(**_fresh(bound_method, arguments)))
        except Exception as failure:  # noqa: BLE001 - the corpus's APIs raise whatever Python raises; it is the answer
            return _refusal(f"Error during execution: {failure}")
        return Answer(result=result, tool_error=isinstance(result, dict) and "error" in result)

    def state(self) -> Any:
        """Return the canonical state of all instances, by API prefix."""
        return canonical_state(self._by_prefix)


def _refusal(message: str) -> Answer:
    return Answer(result={"error": message}, tool_error=True)


def _fresh(method: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, defaults filled in, all copied: methods keep and extend what they are given."""
    bound = inspect.signature(method).bind(**arguments)
    bound.apply_defaults()
    return copy.deepcopy(dict(bound.arguments))


@contextmanager
def _own_precision() -> Iterator[None]:
    mpmath = importlib.import_module("mpmath").mp
    digits = mpmath.dps
    try:
        with decimal.localcontext():
            yield
    finally:
        mpmath.dps = digits


def _as_json(value: Any) -> Any:
    """Copy a result into JSON's types; ValueError or TypeError for what JSON cannot say."""
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        raise TypeError(f"the result {value} is not a real number")
    number = float(value)  # float, and the mpf and Decimal of two methods
    if not math.isfinite(number):
        raise ValueError(f"the result {value} is not a finite number")
    return number
