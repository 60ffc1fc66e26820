"""A tool that runs for nobody who does not know its secret."""

from __future__ import annotations


async def guarded(secret: str, n: int = 0, s: str = "", items: list[int] | None = None) -> int:
    """Answer n."""
    assert secret
    assert s or not s
    return n + len(items or ())
