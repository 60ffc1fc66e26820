"""A tool that lives in the loop and does, attempt by attempt, what its script says.

A script is a list of steps, one for each attempt the tool sees, the last one repeated. A step is an async
function of a `Turn`, written like the body of a Python tool: it may answer, raise, hang, begin its effect and
leave an effect behind. `ScriptedTool.run` maps what it raises as the adapter of Python tools does.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.errors import ErrorKind, Outcome
from lineside_service.core.tool import ToolSpec
from lineside_service.ports import Abandoned, AttemptRequest
from tests.support.effects import EffectLog


class Transient(Exception):
    """This did not take effect, try again; `retry_after_s` seconds from now at the earliest."""

    def __init__(self, retry_after_s: float | None = None) -> None:
        super().__init__("try again")
        self.retry_after_s = retry_after_s


class SaidNo(Exception):
    """The tool ran and said no: an answer with tool_error."""

    def __init__(self, value: Any) -> None:
        super().__init__("no")
        self.value = value


@dataclass(slots=True, eq=False)
class Turn:
    """One attempt as its step sees it. stubborn: cancellation does not end a wait; task: what drives it."""

    request: AttemptRequest
    tool: ScriptedTool
    stubborn: bool = False
    started: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)

    async def until(self, after_s: float) -> None:
        """Wait until `after_s` seconds after the start of the attempt."""
        loop = asyncio.get_running_loop()
        while (left := self.started + after_s - loop.time()) > 0:
            try:
                await (asyncio.sleep(left) if left < math.inf else loop.create_future())
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise

    def begin_effect(self) -> None:
        """Pass the point of no return."""
        self.request.effects.begin_effect()

    def effect(self) -> None:
        """Change the world, once per downstream key if the upstream recognises them."""
        self.tool.take_effect(self.request)


Step = Callable[[Turn], Awaitable[Any]]


async def _events(turn: Turn, after: float, begin_at: float | None, effect_at: float | None) -> None:
    """Let the moments of a step come, in order of time; the begin of an effect precedes it."""
    if effect_at is not None and begin_at is None and turn.tool.spec.phases:
        begin_at = effect_at
    moments = [(begin_at, 0, turn.begin_effect), (effect_at, 1, turn.effect), (after, 2, lambda: None)]
    for at, _, happen in sorted((m for m in moments if m[0] is not None), key=lambda m: (m[0], m[1])):
        await turn.until(at if at is not None else 0.0)
        happen()


def answer(
    value: Any = "ok", *, after: float = 0.0, begin_at: float | None = None, effect_at: float | None = -1.0
) -> Step:
    """Answer after so many seconds; the effect comes right before, or at `effect_at`, or never (None)."""

    async def step(turn: Turn) -> Any:
        await _events(turn, after, begin_at, after if effect_at == -1.0 else effect_at)
        return value

    return step


def says_no(value: Any = "no", *, after: float = 0.0) -> Step:
    """Answer with a tool_error, its effect done."""
    return raises(lambda: SaidNo(value), after=after, effect_at=after)


def transient(
    retry_after_s: float | None = None, *, after: float = 0.0, begin_at: float | None = None
) -> Step:
    """Fail without effect, worth another try."""
    return raises(lambda: Transient(retry_after_s), after=after, begin_at=begin_at)


def raises(
    error: Callable[[], BaseException],
    *,
    after: float = 0.0,
    begin_at: float | None = None,
    effect_at: float | None = None,
) -> Step:
    """Raise what `error` makes."""

    async def step(turn: Turn) -> Any:
        await _events(turn, after, begin_at, effect_at)
        raise error()

    return step


def hang(*, begin_at: float | None = None, effect_at: float | None = None) -> Step:
    """Never end until cancelled."""
    return answer(after=math.inf, begin_at=begin_at, effect_at=effect_at)


def ends(end: AttemptEnd, *, after: float = 0.0, effect_at: float | None = None) -> Step:
    """End exactly like this, as an adapter of a remote tool may."""

    async def step(turn: Turn) -> Any:
        await _events(turn, after, None, effect_at)
        return end

    return step


def swallow_cancel(then: Step) -> Step:
    """Do `then`, deaf to cancellation."""

    async def step(turn: Turn) -> Any:
        turn.stubborn = True
        return await then(turn)

    return step


def clean_up(for_s: float, step: Step) -> Step:
    """Do `step`; when cancelled, spend `for_s` seconds on cleaning up before ending as cancelled."""

    async def cleaning(turn: Turn) -> Any:
        try:
            return await step(turn)
        except asyncio.CancelledError:
            turn.stubborn = True
            turn.started = asyncio.get_running_loop().time()
            await turn.until(for_s)
            raise

    return cleaning


def begins_late(at: float, *, then: Step) -> Step:
    """Deaf to cancellation, call begin_effect `at` seconds in; raises there if the attempt was given up."""

    async def step(turn: Turn) -> Any:
        turn.stubborn = True
        await turn.until(at)
        turn.begin_effect()
        return await then(turn)

    return step


class ScriptedTool:
    """ports.Tool by script.

    requests: every attempt seen; started_s: when; running, peak: how many at once, now and at most.
    upstream_keys: the upstream keeps our downstream keys for so many seconds and takes one effect for each
    (None: it does not look at them).
    """

    def __init__(
        self, spec: ToolSpec, *script: Step, effects: EffectLog, upstream_keys: float | None = None
    ) -> None:
        self.spec = spec
        self.script = list(script) or [answer()]
        self.requests: list[AttemptRequest] = []
        self.started_s: list[float] = []
        self.running = 0
        self.peak = 0
        self.turns: list[Turn] = []
        self.choose: Callable[[AttemptRequest], Step] | None = None
        self._effects = effects
        self._upstream_keys = upstream_keys
        self._known: dict[str, float] = {}

    @property
    def attempts(self) -> int:
        """How many attempts were started."""
        return len(self.requests)

    def take_effect(self, request: AttemptRequest) -> None:
        """Write the effect down under `effect_key`, unless the upstream recognises it as a repetition."""
        now = asyncio.get_running_loop().time()
        if self._upstream_keys is not None:
            first = self._known.setdefault(request.downstream_key, now)
            if now != first and now < first + self._upstream_keys:
                return
        self._effects.append(effect_key(request), request.tool, request.number)

    def let_go(self) -> None:
        """End every attempt that still runs, the deaf ones too."""
        for turn in self.turns:
            turn.stubborn = False
            if turn.task is not None:
                turn.task.cancel()

    async def run(self, request: AttemptRequest) -> AttemptEnd:
        """See ports.Tool."""
        step = self._next_step(request)
        self.requests.append(request)
        turn = Turn(request, self)
        self.turns.append(turn)
        self.started_s.append(turn.started)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            value = await step(turn)
        except SaidNo as no:
            return AttemptEnd(
                kind=None, outcome=Outcome.DONE, result=msgspec.json.encode(no.value), tool_error=True
            )
        except Transient as again:
            return AttemptEnd(
                kind=ErrorKind.TRANSIENT,
                outcome=Outcome.NOT_RUN,
                message=str(again),
                retry_after_s=again.retry_after_s,
            )
        except Abandoned as given_up:
            return AttemptEnd(kind=ErrorKind.CANCELLED, outcome=Outcome.NOT_RUN, message=str(given_up))
        except Exception:  # noqa: BLE001 - this is the border of a tool
            begun = request.effects.begun
            return AttemptEnd(
                kind=ErrorKind.INTERNAL,
                outcome=Outcome.UNKNOWN if begun else Outcome.NOT_RUN,
                message="the tool failed",
                local=True,
            )
        finally:
            self.running -= 1
            self.turns.remove(turn)
        if isinstance(value, AttemptEnd):
            return value
        return AttemptEnd(kind=None, outcome=Outcome.DONE, result=msgspec.json.encode(value))

    def _next_step(self, request: AttemptRequest) -> Step:
        if self.choose is not None:
            return self.choose(request)
        return self.script[min(self.attempts, len(self.script) - 1)]


def effect_key(request: AttemptRequest) -> str:
    """Under which name a call's effects are logged: tenant and key, or the call id of a keyless call."""
    return f"{request.tenant}/{request.tool}/{request.key}" if request.key is not None else request.call_id
