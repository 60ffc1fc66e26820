"""Names for tasks, callbacks and the places where they wait: the same in every run, never an address."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable
from typing import Any


def qualname(subject: object) -> str:
    """The qualified name of a callable or coroutine, or else of its type."""
    while isinstance(subject, functools.partial):
        subject = subject.func
    return str(getattr(subject, "__qualname__", type(subject).__qualname__))


def label(handle: asyncio.Handle) -> str:
    """The task that a callback steps, or else the callback's own name."""
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    return owner.get_name() if isinstance(owner, asyncio.Task) else qualname(callback)


def waiting_at(coro: Any) -> str:
    """Where a suspended coroutine stands, outermost first: ``Road.run:41 > Event.wait:213``."""
    steps = []
    while (frame := getattr(coro, "cr_frame", None)) is not None:
        steps.append(f"{qualname(coro)}:{frame.f_lineno}")
        coro = coro.cr_await
    return " > ".join(steps) or "its start"


def listed(tasks: Iterable[asyncio.Task[Any]]) -> str:
    """Pending tasks, each with the place where it waits."""
    return "pending tasks: " + "; ".join(
        f"{task.get_name()} at {waiting_at(task.get_coro())}" for task in tasks
    )
