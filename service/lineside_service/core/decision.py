"""The record that every decision of core returns beside its choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """Why something was chosen: the choice, a reason token and the numbers that were compared.

    choice: lower_snake token; reason: UPPER_SNAKE token; numbers: name with unit -> value
    (`retry_after_s`, `left_s`, `attempts`). Kept on the call, its span and GetCall.
    """

    choice: str
    reason: str
    numbers: Mapping[str, float]
