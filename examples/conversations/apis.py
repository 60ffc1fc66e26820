"""The tools: one async function for each public method, found by name as the service config's targets say.

`conversations.apis:travel__book_flight` is the tool `travel.book_flight`. Functions are made when they are
first asked for; the first call of any of them reads the corpus.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from conversations.catalogue import APIS, FUNCTION_SEPARATOR, Api
from conversations.corpus import load_corpus, public_methods
from conversations.execution import Answer
from conversations.host import FailedBefore, Host, Inquiry
from lineside_service.tools import ToolContext, ToolError, TransientError

__all__ = ["effect", "reconcile", "set_faults", "state", "state_digest"]

Tool = Callable[..., Awaitable[Any]]


@functools.cache
def __getattr__(name: str) -> Tool:
    prefix, separator, method = name.partition(FUNCTION_SEPARATOR)
    if separator:
        for api in APIS:
            if api.prefix == prefix and method in public_methods(api):
                return _method_tool(api, method)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _method_tool(api: Api, method: str) -> Tool:
    async def tool(ctx: ToolContext, conversation: str, **arguments: Any) -> Any:
        try:
            answer = await _host().call(api, method, conversation, arguments, _Attempt(ctx))
        except FailedBefore as failure:
            raise TransientError(str(failure)) from failure
        return _given_back(answer)

    tool.__name__ = tool.__qualname__ = f"{api.prefix}{FUNCTION_SEPARATOR}{method}"
    return tool


async def reconcile(tool: str, call_id: str, downstream_key: str) -> dict[str, Any]:
    """Tell the service what became of a call whose outcome it does not know."""
    del tool, call_id  # the downstream key alone names the call
    return _told(_host().inquire(downstream_key))


async def effect(key: str) -> dict[str, Any]:
    """Tell a person the same, by the call's idempotency key."""
    return _told(_host().inquire_by_key(key))


async def state(conversation: str) -> Any:
    """Give a conversation's whole state."""
    try:
        return await _host().state(conversation)
    except KeyError:
        raise ToolError(f"no conversation is called {conversation}") from None


async def state_digest(conversation: str) -> dict[str, Any]:
    """Give the digest of a conversation's state, and how often each of its calls took effect."""
    try:
        return await _host().state_digest(conversation)
    except KeyError:
        raise ToolError(f"no conversation is called {conversation}") from None


async def set_faults(seed: int | None) -> dict[str, Any]:
    """Choose the faults that calls meet from now on; null switches them off."""
    _host().fault_seed = seed
    return {"fault_seed": seed}


@dataclass(frozen=True)
class _Attempt:
    ctx: ToolContext

    @property
    def key(self) -> str | None:
        return self.ctx.idempotency_key

    @property
    def downstream_key(self) -> str:
        return self.ctx.downstream_key

    def begin_effect(self) -> None:
        self.ctx.begin_effect()


@functools.cache
def _host() -> Host:
    return Host(load_corpus())


def _given_back(answer: Answer) -> Any:
    if answer.tool_error:
        raise ToolError(str(answer.result["error"]), answer.result)
    return answer.result


def _told(inquiry: Inquiry) -> dict[str, Any]:
    told: dict[str, Any] = {"state": inquiry.state}
    if inquiry.answer is not None:
        told["tool_error" if inquiry.answer.tool_error else "result"] = inquiry.answer.result
    return told
