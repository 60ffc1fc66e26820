from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import pydantic
import pytest
import structlog

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.errors import ErrorKind, Outcome
from lineside_service.core.tool import ToolSpec
from lineside_service.engine.attempt import NO_PHASES, EffectLatch, NoPhases
from lineside_service.ports import AttemptRequest
from lineside_service.tools import ToolContext, ToolError, TransientError
from lineside_service.tools.hints import read_function
from lineside_service.tools.python import MAX_MESSAGE, PythonTool
from lineside_service.tools.threads import Threads

CANARY = "canary-5f2c"


def _tool(function: Callable[..., Any], log: Any = None, **settings: Any) -> PythonTool:
    schema = msgspec.json.encode(read_function(function).schema)
    return PythonTool(ToolSpec(name="ferry", input_schema=schema, **settings), function, Threads(), log)


def _request(latch: EffectLatch | NoPhases, **arguments: Any) -> AttemptRequest:
    return AttemptRequest(
        call_id="call-1",
        tool="ferry",
        tenant="acme",
        number=2,
        arguments=arguments,
        key="k",
        tell_downstream_key=lambda: "d" * 64,
        deadline=asyncio.get_running_loop().time() + 30,
        deadline_wall_s=0.0,
        effects=latch,
    )


async def _run(tool: PythonTool, **arguments: Any) -> AttemptEnd:
    return await tool.run(_request(EffectLatch() if tool.spec.phases else NO_PHASES, **arguments))


@pytest.mark.asyncio
async def test_async_and_sync_functions_answer_alike() -> None:
    """A result becomes JSON text, outcome DONE, whichever way the function is written."""

    async def awaited(city: str, times: int = 2) -> list[str]:
        return [city] * times

    def blocking(city: str, times: int = 2) -> list[str]:
        return [city] * times

    for function in (awaited, blocking):
        end = await _run(_tool(function), city="Ely")
        assert end == AttemptEnd(kind=None, outcome=Outcome.DONE, result=b'["Ely","Ely"]', local=True)


@pytest.mark.asyncio
async def test_the_context_tells_the_call_and_the_time_left() -> None:
    """A ToolContext parameter gets the attempt's facts, in a thread too."""
    seen: list[ToolContext] = []

    def blocking(city: str, ctx: ToolContext) -> float:
        seen.append(ctx)
        return ctx.deadline_s()

    end = await _run(_tool(blocking), city="Ely")
    (ctx,) = seen
    assert 0 < json.loads(end.result or b"0") <= 30
    assert (ctx.call_id, ctx.attempt, ctx.tenant, ctx.idempotency_key) == ("call-1", 2, "acme", "k")
    assert ctx.downstream_key == "d" * 64


@pytest.mark.asyncio
async def test_the_contexts_logger_knows_the_call() -> None:
    """What a tool logs carries tool, call id and attempt."""

    async def talk(ctx: ToolContext) -> None:
        ctx.logger.info("hello", size=3)

    with structlog.testing.capture_logs() as logs:
        await _run(_tool(talk))
    assert logs == [
        {"event": "hello", "log_level": "info", "size": 3, "tool": "ferry", "call_id": "call-1", "attempt": 2}
    ]


@dataclass
class Seat:
    row: int


@pytest.mark.asyncio
async def test_arguments_arrive_in_the_hinted_types() -> None:
    """Objects are built, and 3.0 is the int 3 (R103)."""

    async def sit(seat: Seat, count: int) -> list[str]:
        return [type(seat).__name__, type(seat.row).__name__, type(count).__name__]

    end = await _run(_tool(sit), seat={"row": 3.0}, count=3.0)
    assert end.result == b'["Seat","int","int"]'


class Booking(pydantic.BaseModel):
    """A seat that somebody may have."""

    row: int

    @pydantic.field_validator("row")
    @classmethod
    def _exists(cls, row: int) -> int:
        if row == 13:
            raise ValueError("there is no such row")
        return row


@pytest.mark.asyncio
async def test_an_argument_that_only_the_type_refuses_is_a_schema_refusal() -> None:
    """What a hinted type cannot take ends before the function starts, without the value."""

    async def sit(count: int) -> None:
        raise AssertionError

    end = await _run(_tool(sit), count=1e300)
    assert (end.kind, end.outcome) == (ErrorKind.SCHEMA, Outcome.NOT_RUN)
    assert end.message.startswith("/count: ")
    assert [violation.field for violation in end.violations] == ["/count"]


@pytest.mark.asyncio
async def test_what_a_model_refuses_is_named_by_its_place() -> None:
    """The pointer leads into the argument, as that of a schema's breach does."""

    async def sit(seats: list[Booking]) -> None:
        raise AssertionError

    end = await _run(_tool(sit), seats=[{"row": 1}, {"row": 13}])
    assert [(v.field, v.rule) for v in end.violations] == [("/seats/1/row", "UNUSABLE")]


@pytest.mark.asyncio
async def test_a_transient_error_did_not_happen_and_may_say_when() -> None:
    """TransientError is NOT_RUN and carries the wait; only a usable wait is taken."""

    async def busy(wait: float | None) -> None:
        raise TransientError("try later", retry_after_s=wait)

    end = await _run(_tool(busy), wait=1.5)
    assert (end.kind, end.outcome, end.message) == (ErrorKind.TRANSIENT, Outcome.NOT_RUN, "try later")
    assert end.retry_after_s == 1.5


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (0, 0.0),
        (3, 3.0),
        (1e9, 86400.0),
        pytest.param(10**400, 86400.0, id="an int beyond a float"),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        (None, None),
        ("5", None),
        (True, None),
    ],
)
def test_only_a_finite_wait_from_zero_is_taken(said: Any, taken: float | None) -> None:
    """A tool cannot make the road wait for ever, or backwards."""
    assert TransientError(retry_after_s=said).retry_after_s == taken


@pytest.mark.asyncio
async def test_a_tool_error_is_an_answer() -> None:
    """ToolError ran and said no: a result with message and data, no failure."""

    def refuse(data: Any) -> None:
        raise ToolError("no such berth", data)

    end = await _run(_tool(refuse), data={"berth": 9})
    assert (end.kind, end.outcome, end.tool_error) == (None, Outcome.DONE, True)
    assert end.result == b'{"message":"no such berth","data":{"berth":9}}'
    assert (await _run(_tool(refuse), data=None)).result == b'{"message":"no such berth"}'


async def _cancel_inner() -> None:
    inner = asyncio.ensure_future(asyncio.sleep(3600))
    await asyncio.sleep(0)
    inner.cancel()
    await inner


def _raiser(error: BaseException) -> Callable[[], Any]:
    async def fail() -> None:
        raise error

    return fail


def _sync_raiser(error: BaseException) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "function",
    [
        _raiser(ValueError(CANARY)),
        _raiser(TimeoutError()),
        _raiser(asyncio.CancelledError("x")),
        _raiser(SystemExit(1)),
        _raiser(KeyboardInterrupt()),
        _raiser(GeneratorExit()),
        _raiser(ExceptionGroup("g", [TransientError()])),
        _raiser(ValueError("é" * 200_000)),
        _raiser(ValueError("\ud800\x00\n")),
        _sync_raiser(ValueError(CANARY)),
        _sync_raiser(TimeoutError()),
        _sync_raiser(asyncio.CancelledError()),
        _sync_raiser(SystemExit(1)),
        _sync_raiser(KeyboardInterrupt()),
        _sync_raiser(GeneratorExit()),
        _sync_raiser(StopIteration()),
        _cancel_inner,
    ],
)
async def test_any_other_exception_is_internal_with_an_opaque_text(function: Callable[[], Any]) -> None:
    """A tool's own timeout, cancel or exit is its failure: outcome unknown, no text of it (R001, R018)."""
    end = await _run(_tool(function, structlog.get_logger()))
    assert (end.kind, end.outcome, end.local) == (ErrorKind.INTERNAL, Outcome.UNKNOWN, True)
    assert end.message == "the tool failed; see the service's log for call call-1"


class _Order(pydantic.BaseModel):
    """Its validator ends the process, as it thinks."""

    seats: int

    @pydantic.field_validator("seats")
    @classmethod
    def check(cls, _: int) -> NoReturn:
        """Raise what no validator should."""
        raise KeyboardInterrupt


@pytest.mark.asyncio
async def test_a_validator_that_raises_anything_is_a_failure_before_the_call() -> None:
    """It is the author's code; the function was not called, so nothing ran."""
    ran: list[object] = []

    def buy(order: _Order) -> None:
        ran.append(order)

    end = await _run(_tool(buy), order={"seats": 1})
    assert (end.kind, end.outcome, ran) == (ErrorKind.INTERNAL, Outcome.NOT_RUN, [])


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [ValueError, RecursionError, SystemExit, KeyboardInterrupt])
async def test_a_result_that_raises_while_it_is_written_has_run(error: type[BaseException]) -> None:
    """Whatever a result's own code raises: it ran, and what it answered cannot be used."""

    class Cursed:
        def model_dump(self, **_: object) -> object:
            raise error

    end = await _run(_tool(lambda: [Cursed()]))
    assert (end.kind, end.outcome) == (ErrorKind.BAD_OUTPUT, Outcome.DONE)


class _Busy(TransientError):
    """Has an __init__ of its own, as exceptions of applications do."""

    def __init__(self, code: int) -> None:
        self.code = code


class _SoldOut(ToolError):
    """Likewise."""

    def __init__(self, seats: int) -> None:
        self.seats = seats


@pytest.mark.asyncio
async def test_subclasses_with_their_own_init_mean_the_same() -> None:
    """TransientError stays "did not take effect", ToolError stays an answer, without super().__init__."""
    end = await _run(_tool(_raiser(_Busy(503))))
    assert (end.kind, end.outcome, end.retry_after_s) == (ErrorKind.TRANSIENT, Outcome.NOT_RUN, None)
    end = await _run(_tool(_raiser(_SoldOut(0))))
    assert (end.kind, end.tool_error, end.result) == (None, True, b'{"message":""}')


@pytest.mark.asyncio
@pytest.mark.parametrize("said", ["soon", math.nan, -1, [1]])
async def test_a_wait_that_is_no_number_of_seconds_is_no_hint(said: Any) -> None:
    """Also when it was set on the error afterwards."""
    error = TransientError("busy")
    error.retry_after_s = said
    end = await _run(_tool(_raiser(error)))
    assert (end.kind, end.retry_after_s) == (ErrorKind.TRANSIENT, None)


@pytest.mark.asyncio
async def test_the_log_has_the_cause_but_no_value() -> None:
    """The operator sees types and frames; messages and arguments, which may be secret, stay out (R111)."""

    def inner(card: str) -> None:
        raise KeyError(card)

    async def pay(card: str) -> None:
        try:
            inner(card)
        except KeyError as error:
            raise ValueError(f"bad card {card}") from error

    with structlog.testing.capture_logs() as logs:
        await _run(_tool(pay), card=CANARY)
    (entry,) = logs
    assert entry["error_type"] == "ValueError <- KeyError"
    assert "in pay" in entry["traceback"]
    assert CANARY not in repr(logs)


@pytest.mark.asyncio
@pytest.mark.parametrize("message", ["🚂\n\x00", "\ud800", "é" * 200_000])
async def test_an_authors_message_is_valid_bounded_text(message: str) -> None:
    """Messages that reach the caller are UTF-8, cut on a character boundary and marked (R005, R006)."""
    for error in (TransientError(message), ToolError(message)):
        end = await _run(_tool(_raiser(error)))
        text = end.message if end.kind else json.loads(end.result or b"")["message"]
        assert text.encode()
        assert len(text) <= MAX_MESSAGE
        assert (len(message) <= MAX_MESSAGE) or text.endswith("…")


@pytest.mark.asyncio
async def test_phases_tell_whether_the_effect_began() -> None:
    """With phases, a failure before begin_effect did not run; after it, nobody knows."""

    async def pay(begin: bool, ctx: ToolContext) -> None:
        if begin:
            ctx.begin_effect()
        raise ValueError

    tool = _tool(pay, phases=True)
    assert (await _run(tool, begin=False)).outcome is Outcome.NOT_RUN
    assert (await _run(tool, begin=True)).outcome is Outcome.UNKNOWN


@pytest.mark.asyncio
async def test_begin_effect_needs_declared_phases() -> None:
    """A tool that does not declare phases cannot claim them."""

    async def pay(ctx: ToolContext) -> None:
        ctx.begin_effect()

    end = await _run(_tool(pay))
    assert (end.kind, end.outcome) == (ErrorKind.INTERNAL, Outcome.UNKNOWN)


@pytest.mark.asyncio
async def test_an_abandoned_attempt_stops_at_begin_effect_in_its_thread() -> None:
    """begin_effect in an attempt that was given up raises, and that end says NOT_RUN (R023)."""
    gate, effects = threading.Event(), []

    def pay(ctx: ToolContext) -> None:
        gate.wait()
        ctx.begin_effect()
        effects.append(1)

    tool, latch = _tool(pay, phases=True), EffectLatch()
    task = asyncio.create_task(tool.run(_request(latch)))
    await asyncio.sleep(0)
    assert latch.abandon() is Outcome.NOT_RUN
    task.cancel()
    gate.set()
    end = await task
    assert (end.kind, end.outcome, end.reason) == (ErrorKind.TIMEOUT, Outcome.NOT_RUN, "ABANDONED")
    assert effects == []


@pytest.mark.asyncio
async def test_a_given_up_async_tool_ends_as_cancelled() -> None:
    """When the engine cancels the attempt, CancelledError leaves run: it is no failure of the tool."""

    async def sleepy() -> None:
        await asyncio.sleep(3600)

    task = asyncio.create_task(_run(_tool(sleepy)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.asyncio
async def test_a_tool_that_uses_timeouts_of_its_own_is_judged_by_what_it_raises() -> None:
    """asyncio.timeout and a TaskGroup inside a tool leave no trace of a cancel behind."""

    async def impatient() -> None:
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(3600)
        except TimeoutError:
            raise asyncio.CancelledError from None

    end = await _run(_tool(impatient))
    assert end.kind is ErrorKind.INTERNAL


@pytest.mark.asyncio
async def test_a_late_result_of_a_given_up_thread_is_told() -> None:
    """A sync tool that ends after its attempt was given up still says how it ended (R023)."""
    gate = threading.Event()

    def slow() -> str:
        gate.wait()
        return "late"

    task = asyncio.create_task(_run(_tool(slow)))
    await asyncio.sleep(0)
    task.cancel()
    gate.set()
    assert (await task).result == b'"late"'


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "RESULT_NOT_FINITE"),
        ({1, 2}, "RESULT_NOT_JSON"),
        ({1: "a", "1": "b"}, "RESULT_NOT_JSON"),
        (asyncio.sleep, "RESULT_NOT_JSON"),
        ("\ud800", "RESULT_NOT_UNICODE"),
        ("x" * 2000, "RESULT_TOO_LARGE"),
    ],
)
async def test_an_unusable_result_is_bad_output_and_done(value: Any, reason: str) -> None:
    """The tool ran, but its answer cannot be sent: kept as DONE, never tried again."""

    async def answer() -> Any:
        return value

    end = await _run(_tool(answer, result_limit=1000))
    assert (end.kind, end.outcome, end.reason) == (ErrorKind.BAD_OUTPUT, Outcome.DONE, reason)


@pytest.mark.asyncio
async def test_a_forgotten_await_is_bad_output() -> None:
    """A plain function that returns a coroutine gives no result, and no warning without a place."""

    async def inner() -> None: ...

    def outer() -> Any:
        return inner()

    assert (await _run(_tool(outer))).kind is ErrorKind.BAD_OUTPUT


@pytest.mark.asyncio
async def test_a_result_that_breaks_the_output_schema_is_bad_output() -> None:
    """The output schema is checked on what is sent; a tool error is not held to it."""

    async def answer(value: Any, fail: bool = False) -> Any:
        if fail:
            raise ToolError("no")
        return value

    tool = _tool(answer, output_schema=b'{"properties":{"n":{"type":"integer"}},"required":["n"]}')
    assert (await _run(tool, value={"n": 1})).kind is None
    assert (await _run(tool, value=None, fail=True)).tool_error
    end = await _run(tool, value={"n": CANARY})
    assert (end.kind, end.outcome, end.reason) == (ErrorKind.BAD_OUTPUT, Outcome.DONE, "RESULT_BREAKS_SCHEMA")
    assert "/n must be integer" in end.message
    assert CANARY not in end.message
