"""What the stories share: fresh names, and what the service saw under one."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from typing import Any, TypeVar, overload

import lineside

_E = TypeVar("_E", bound=lineside.LinesideError)


def new_name() -> str:
    """A name that no other story uses."""
    return uuid.uuid4().hex


async def seen(client: lineside.AsyncClient, name: str) -> dict[str, Any]:
    """What the service saw under a name. Keyed, for a story may cut the connection meanwhile."""
    told: dict[str, Any] = (await client.dispatch("seen", {"name": name}, idempotency_key=new_name())).result
    return told


async def arrived(client: lineside.AsyncClient, name: str, count: int) -> None:
    """Returns once so many calls have arrived under a name."""
    while (await seen(client, name))["arrivals"] < count:
        pass


@overload
async def failure(call: Awaitable[object]) -> lineside.DispatchError: ...
@overload
async def failure(call: Awaitable[object], of: type[_E]) -> _E: ...
async def failure(
    call: Awaitable[object], of: type[lineside.LinesideError] = lineside.DispatchError
) -> lineside.LinesideError:
    """The error that a call ends with."""
    try:
        await call
    except of as error:
        return error
    raise AssertionError("no error")
