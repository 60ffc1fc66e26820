"""One measured number over its rounds, as the benches print and write it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass(slots=True)
class Figure:
    """One measured number over its rounds."""

    name: str
    unit: str
    rounds: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The median round."""
        return statistics.median(self.rounds)

    def as_json(self) -> dict[str, object]:
        """The form of build/bench.json."""
        return {
            "name": self.name,
            "value": round(self.value, 3),
            "unit": self.unit,
            "spread": [round(min(self.rounds), 3), round(max(self.rounds), 3)],
        }
