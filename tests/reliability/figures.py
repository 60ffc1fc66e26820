"""The figures that the reliability tests measure: gathered over a run, shown as a table, written as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Combine = Callable[[Sequence[float]], float]
"""How several measurements become one figure: max, min, sum, statistics.median."""


@dataclass(slots=True)
class Figure:
    """One measured number. target: what it must reach, as the table shows it; combine: over its samples."""

    name: str
    unit: str
    target: str
    combine: Combine
    samples: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The figure over all samples."""
        return self.combine(self.samples)

    def as_json(self) -> dict[str, object]:
        """The form of build/figures.json: that of build/bench.json, with the target."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "spread": [round(min(self.samples), 4), round(max(self.samples), 4)],
            "target": self.target,
        }


class Figures:
    """All figures of one run, by name, in the order in which they came."""

    def __init__(self) -> None:
        self._figures: dict[str, Figure] = {}

    def note(self, name: str, value: float, unit: str, *, target: str = "", combine: Combine = max) -> None:
        """Take one sample of a figure."""
        self._figures.setdefault(name, Figure(name, unit, target, combine)).samples.append(value)

    def table(self) -> list[str]:
        """One line per figure."""
        if not self._figures:
            return ["no figure was measured"]
        width = max(len(name) for name in self._figures)
        return [
            f"{one.name:<{width}} {one.value:>12,.4g} {one.unit:<8} {one.target:<12}"
            + (
                f" [{min(one.samples):,.4g} - {max(one.samples):,.4g}] of {len(one.samples)}"
                if len(one.samples) > 1
                else ""
            )
            for one in self._figures.values()
        ]

    def write(self, file: Path) -> None:
        """Write them all, in the order of the table."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([one.as_json() for one in self._figures.values()], indent=1) + "\n")
