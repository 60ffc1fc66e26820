"""One check for the numbers of a rule: inside the bound, or an error that names both."""

from __future__ import annotations


def require_between(field: str, value: float, low: float, high: float) -> None:
    """Raise ValueError naming `field` and its bound unless low <= value <= high (NaN never is)."""
    if not low <= value <= high:
        raise ValueError(f"{field} = {value!r}: must be between {low:g} and {high:g}")
