"""What really happened in the outside world, as the fakes saw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Effect:
    """One effect: the idempotency key it belongs to, the tool, the attempt's number, virtual seconds."""

    key: str
    tool: str
    attempt: int
    at_s: float


class EffectLog:
    """An append-only log of effects in memory.

    `now` gives the time in seconds; `record`, if given, gets each effect as a line (a virtual loop's `record`
    makes effects part of its trace).
    """

    def __init__(self, now: Callable[[], float], *, record: Callable[[str], None] | None = None) -> None:
        self._now = now
        self._record = record
        self._effects: list[Effect] = []
        self._counts: Counter[str] = Counter()

    def append(self, key: str, tool: str, attempt: int) -> Effect:
        """Write down that the effect of this attempt took place now."""
        effect = Effect(key, tool, attempt, self._now())
        self._effects.append(effect)
        self._counts[key] += 1
        if self._record is not None:
            self._record(f"effect {key} {tool} {attempt}")
        return effect

    def count(self, key: str) -> int:
        """How many effects this key has had."""
        return self._counts[key]

    def of(self, key: str) -> list[Effect]:
        """The effects of this key, oldest first."""
        return [effect for effect in self._effects if effect.key == key]

    def __iter__(self) -> Iterator[Effect]:
        return iter(self._effects)

    def __len__(self) -> int:
        return len(self._effects)

    def assert_at_most_once(self, non_idempotent_keys: Iterable[str]) -> None:
        """Raise AssertionError, listing the effects, if a key has had more than one."""
        self._assert_counts(non_idempotent_keys, (0, 1), "at most one effect")

    def assert_exactly_once(self, acknowledged_keys: Iterable[str]) -> None:
        """Raise AssertionError unless each key, for which a caller was told OK, has had one effect."""
        self._assert_counts(acknowledged_keys, (1,), "exactly one effect")

    def _assert_counts(self, keys: Iterable[str], allowed: tuple[int, ...], promise: str) -> None:
        broken = [key for key in keys if self._counts[key] not in allowed]
        if broken:
            found = "; ".join(f"{key!r} had {self.of(key)}" for key in broken)
            raise AssertionError(f"{promise} per key: {found}")
