"""Tools to put load on: each answers at once, or takes the time it is told."""

from __future__ import annotations


async def echo(city: str, days: int = 1) -> dict[str, object]:
    """Give the arguments back."""
    return {"city": city, "days": days}
