"""A tool that runs for nobody who does not know its secret."""

from __future__ import annotations


async def guarded(secret: str, n: int = 0, s: str = "", items: list[int] | None = None) -> int:
    """Answer the sum of all sizes."""
    return n + len(secret) + len(s) + len(items or ())
