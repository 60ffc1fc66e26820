"""Five small tools of a travel desk: what a tool can be, and what the service does for it.

A tool is a function. Its type hints make the schema that arguments are checked against; what it returns is
the result, as JSON. Plain functions run on a thread of their own, `async` ones on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Literal

from msgspec import Meta

from lineside_service.tools import ToolContext, ToolError, TransientError

EUROS = {"EUR": 1.0, "USD": 0.92, "JPY": 0.0062}

_bookings: dict[str, dict[str, Any]] = {}
"""The airline's book, by downstream key: this process plays the airline too."""


def convert(amount: float, frm: Literal["EUR", "USD", "JPY"], to: Literal["EUR", "USD", "JPY"]) -> float:
    """Convert an amount of money; a plain function without any effect."""
    return round(amount * EUROS[frm] / EUROS[to], 2)


async def search_flights(ctx: ToolContext, origin: str, destination: str) -> list[dict[str, Any]]:
    """Find flights. The first attempt of every call fails, to show that callers never notice.

    TransientError means: this did not take effect, try again.
    """
    if ctx.attempt == 1:
        raise TransientError("the timetable is being reloaded")
    if origin == destination:
        raise ToolError("origin and destination are the same", {"origin": origin})  # an answer, not a failure
    return [{"flight": "LS 101", "from": origin, "to": destination, "price_eur": 129.0}]


async def book_flight(
    ctx: ToolContext, flight: str, passenger: str, hang_s: Annotated[float, Meta(ge=0, le=60)] = 0
) -> dict[str, Any]:
    """Book a seat: it takes effect once and cannot be taken back.

    `hang_s` over the tool's timeout plays the worst case: booked, but the answer never came. The call ends as
    `timeout` with outcome UNKNOWN, nothing is repeated, and `booking_status` is asked what really happened.
    """
    booking = {"booking": f"B{len(_bookings) + 1:04}", "flight": flight, "passenger": passenger}
    _bookings[ctx.downstream_key] = booking
    await asyncio.sleep(hang_s)
    return booking


async def booking_status(tool: str, call_id: str, downstream_key: str) -> dict[str, Any]:
    """Tell the service what became of a call of `tool`; it asks by itself when the outcome is unknown."""
    del tool, call_id  # the downstream key is enough: it is the same on every attempt of a call
    booking = _bookings.get(downstream_key)
    if booking is None:
        return {"state": "unknown"}  # this book is gone with the process; a real one could say "not_run"
    return {"state": "done", "result": booking}


def report(seconds: Annotated[float, Meta(ge=0, le=600)] = 1) -> str:
    """Write a report, slowly, in a plain function that nothing can interrupt.

    Past its timeout the attempt is given up all the same; its thread goes on and is counted as abandoned. The
    tool is safe, so it is tried again, three times in all: a caller with time for them is answered after
    about 10 s. Four abandoned threads, twice `concurrency`, block the tool until one of them ends.
    """
    time.sleep(seconds)
    return f"finished after {seconds} s"
