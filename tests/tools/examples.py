"""Targets for load_target: importable, one of each sort."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator


async def fetch(city: str) -> str:
    """Fetch a city."""
    return city


def slow(city: str) -> str:
    """Fetch a city slowly."""
    return city


class Desk:
    """An object with a method."""

    async def ask(self, city: str) -> str:
        """Ask about a city."""
        return city


desk = Desk()
number = 3
loads: list[str] = []
loads.append("once")


async def many() -> AsyncIterator[int]:
    """Yield, which no tool does."""
    yield 1


def some() -> Iterator[int]:
    """Yield, which no tool does."""
    yield 1
