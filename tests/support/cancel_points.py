"""Cancellation at every await of a task, one run of the scenario for each."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from lineside_service.engine.eager import SPARE
from tests.support.task_names import qualname, waiting_at
from tests.support.virtual_loop import Deadlock, Livelock, VirtualTimeLoop

T = TypeVar("T")

When = Literal["waiting", "woken"]
"""When the cancel comes: while the await still waits, or after its result is there but before it is taken.

The second is the one that loses results, permits and slots."""


@dataclass(frozen=True, kw_only=True)
class Ending(Generic[T]):
    """How one run ended: `value` or `error`; `cut_at` is the await that was cancelled, None if none was."""

    value: T | None
    error: BaseException | None
    cut_at: str | None
    loop: VirtualTimeLoop


def for_each_await(
    make_coro: Callable[[VirtualTimeLoop], Coroutine[Any, Any, T]],
    *,
    target: str | None = None,
    when: When = "waiting",
    seed: int = 0,
    shuffle: bool = True,
    max_runs: int = 10_000,
) -> Iterator[tuple[int, Ending[T]]]:
    """Run a scenario again and again, cancelling at its 1st, 2nd, ... suspension, until one run is not cut.

    Each run has a fresh loop with the same seed; `make_coro` builds fresh state. `target` is the qualified
    name, or its end, of the coroutines whose tasks are to be cancelled (``Road.attempt``); by default the
    scenario's own. Yields (k, ending), the uncut run included; the loop is open while the test looks at it,
    and closing it fails if tasks are left. A deadlock or a failed assertion inside the scenario is raised,
    not yielded, with the await noted. Raises LookupError if no task of that coroutine was ever started, and
    AssertionError if `max_runs` runs were not enough.
    """
    for k in range(1, max_runs + 1):
        with VirtualTimeLoop(seed, shuffle=shuffle) as loop:
            cut = _Cut(k, target, when)
            loop.wrap_coroutine = cut.wrap
            value, error = None, None
            try:
                value = loop.run(make_coro(loop))
            except (Exception, asyncio.CancelledError) as failure:
                if cut.at is None:
                    raise
                if isinstance(failure, (Deadlock, Livelock, AssertionError)):
                    failure.add_note(f"cancelled at await {k}: {cut.at} ({when})")
                    raise
                error = failure
            if not cut.wrapped:
                raise LookupError(f"no task runs a coroutine named {target!r}")
            yield k, Ending(value=value, error=error, cut_at=cut.at, loop=loop)
            if cut.at is None:
                return
    raise AssertionError(f"still being cut after {max_runs} runs")


class _Cut:
    """Counts the suspensions of the chosen tasks and cancels at the k-th."""

    def __init__(self, k: int, target: str | None, when: When) -> None:
        self.when = when
        self.at: str | None = None
        self.wrapped = 0
        self._k = k
        self._target = target
        self._suspensions = itertools.count(1)

    def wrap(self, coro: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        if qualname(coro) == SPARE:  # what it will drive is not known yet
            return _Watched(coro, self)
        if not self._is_chosen(coro):
            return coro
        self.wrapped += 1
        return _Watched(coro, self)

    def _is_chosen(self, coro: Coroutine[Any, Any, Any]) -> bool:
        if self._target is None:
            return not self.wrapped
        return f".{qualname(coro)}".endswith(f".{self._target}")

    def is_due(self, watched: _Watched) -> bool:
        coro = watched.inner
        if watched.was_spare:
            if self._target is None or not self._is_chosen(coro):
                return False
            self.wrapped += 1
        if next(self._suspensions) != self._k:
            return False
        self.at = waiting_at(coro)
        return True


class _Watched(Coroutine[Any, Any, Any]):
    """A coroutine that cancels the task driving it when its cut falls due."""

    def __init__(self, inner: Coroutine[Any, Any, Any], cut: _Cut) -> None:
        self.__qualname__ = qualname(inner)
        self.inner = inner
        self.was_spare = qualname(inner) == SPARE
        self._cut = cut
        self._cancel_on_wake = False

    def send(self, value: Any) -> Any:
        return self._step(self.inner.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self.inner.throw, *error)

    def close(self) -> None:
        self.inner.close()

    def __await__(self) -> Any:
        return self.inner.__await__()

    @property
    def cr_frame(self) -> Any:
        return getattr(self.inner, "cr_frame", None)

    @property
    def cr_await(self) -> Any:
        return getattr(self.inner, "cr_await", None)

    def _step(self, resume: Callable[..., Any], *given: Any) -> Any:
        if self._cancel_on_wake:
            self._cancel_on_wake = False
            _cancel_current()
            # A bare yield hands control back; the task's next step throws into the same await. As in asyncio
            # itself, the cancellation takes the place of what was given, result or error.
            return None
        awaited = resume(*given)
        self.__qualname__ = qualname(self.inner)
        if self._cut.is_due(self):
            if self._cut.when == "woken":
                self._cancel_on_wake = True
            else:
                # The task is running, so this takes hold as soon as it waits for `awaited`.
                _cancel_current()
        return awaited


def _cancel_current() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
