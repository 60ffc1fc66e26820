"""Tools that are Python functions in this process: called, and judged by how they end."""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import Callable
from types import CoroutineType
from typing import Any

import msgspec
import structlog

from lineside_service.core.attempt import AttemptEnd
from lineside_service.core.errors import ErrorKind, Outcome, Violation
from lineside_service.core.jsontext import ResultRefused, decode_result, encode_result
from lineside_service.core.schema import CompiledSchema, compile_schema
from lineside_service.core.tool import ToolSpec
from lineside_service.ports import Abandoned, AttemptRequest
from lineside_service.tools.context import ToolContext, ToolError, TransientError, usable_wait
from lineside_service.tools.convert import ArgumentUnusable
from lineside_service.tools.hints import read_function
from lineside_service.tools.target import is_async, require_usable
from lineside_service.tools.threads import NoThread, Threads

MAX_MESSAGE = 1_000
"""Characters of a tool's own message; the status that carries it ends at 4 KiB."""

_MAX_FRAMES = 30


class PythonTool:
    """One function as a tool (ports.Tool).

    spec.input_schema must fit the function's parameters, else HintsRefused (TargetRefused for what is no
    function). run_sync: threads for a function that is not async. log: a structlog logger; it gets the cause
    of an unexpected failure as type and frames, never a message or a value. output: spec.output_schema,
    compiled here if absent.
    """

    def __init__(
        self,
        spec: ToolSpec,
        function: Callable[..., Any],
        run_sync: Threads,
        log: Any = None,
        *,
        output: CompiledSchema | None = None,
    ) -> None:
        require_usable(function, spec.name)
        shape = read_function(function, msgspec.json.decode(spec.input_schema))
        self._spec = spec
        self._function = function
        self._is_async = is_async(function)
        self._threads = run_sync
        self._log = structlog.get_logger("lineside.tool") if log is None else log
        self._context_name = shape.context_name
        self._converters = tuple(shape.converters.items())
        self._accepted = shape.accepted
        self._output = output
        if output is None and spec.output_schema:
            self._output = compile_schema(spec.output_schema)

    @property
    def spec(self) -> ToolSpec:
        """The tool as registered."""
        return self._spec

    async def run(self, request: AttemptRequest) -> AttemptEnd:
        """Call the function once and say how it ended; raises CancelledError only when it is given up."""
        try:
            arguments = self._arguments(request)
        except ArgumentUnusable as error:
            return _unusable(error)
        except BaseException as error:  # noqa: BLE001 - validators of a hinted type are the author's code
            self._log_cause(request, error)
            return _end(ErrorKind.INTERNAL, Outcome.NOT_RUN, _opaque(request))
        try:
            if self._is_async:
                value = await self._function(**arguments)
            else:
                value = await self._threads.run(
                    self._spec.name, functools.partial(self._function, **arguments)
                )
        except asyncio.CancelledError as error:
            if _is_given_up():
                raise
            return self._failed(request, error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, a tool does not end the service
            return self._failed(request, error)
        return self._finished(request, value)

    def _arguments(self, request: AttemptRequest) -> dict[str, Any]:
        arguments = dict(request.arguments)
        if self._accepted is not None and not self._accepted >= arguments.keys():
            raise ArgumentUnusable("the function does not take all of these arguments")
        for name, convert in self._converters:
            if name in arguments:
                arguments[name] = _converted(name, convert, arguments[name])
        if self._context_name is not None:
            clock = asyncio.get_running_loop().time
            arguments[self._context_name] = ToolContext(request, clock, lambda: self._bound_log(request))
        return arguments

    def _finished(self, request: AttemptRequest, value: object, *, tool_error: bool = False) -> AttemptEnd:
        if isinstance(value, CoroutineType):
            value.close()  # the refusal below is enough; a warning about it would come from nowhere
        try:
            result = encode_result(value, self._spec.result_limit)
        except ResultRefused as refused:
            return _end(ErrorKind.BAD_OUTPUT, Outcome.DONE, refused.message, refused.reason)
        except BaseException as error:  # noqa: BLE001 - properties and dumps are the author's code: it ran
            self._log_cause(request, error)
            message = "the result cannot be written as JSON"
            return _end(ErrorKind.BAD_OUTPUT, Outcome.DONE, message, "RESULT_NOT_JSON")
        if self._output is not None and not tool_error:
            violations = self._output.check(decode_result(result))
            if violations:
                first = violations[0]
                message = f"the result breaks the tool's output_schema: {first.field or 'it'} {first.message}"
                return _end(ErrorKind.BAD_OUTPUT, Outcome.DONE, message, "RESULT_BREAKS_SCHEMA")
        return AttemptEnd(kind=None, outcome=Outcome.DONE, result=result, tool_error=tool_error, local=True)

    def _failed(self, request: AttemptRequest, error: BaseException) -> AttemptEnd:
        match error:
            case TransientError():
                message = _clean(error.message) or "the tool said that it may be tried again"
                wait_s = usable_wait(error.retry_after_s)
                return _end(ErrorKind.TRANSIENT, Outcome.NOT_RUN, message, retry_after_s=wait_s)
            case ToolError():
                answer = {"message": _clean(error.message)}
                full = answer if error.data is None else answer | {"data": error.data}
                return self._finished(request, full, tool_error=True)
            case Abandoned():
                message = "the attempt was given up before its effect"
                return _end(ErrorKind.TIMEOUT, Outcome.NOT_RUN, message, "ABANDONED")
            case NoThread():
                return _end(ErrorKind.UNAVAILABLE, Outcome.NOT_RUN, str(error), "NO_THREAD")
        self._log_cause(request, error)
        outcome = Outcome.UNKNOWN if request.effects.begun else Outcome.NOT_RUN
        return _end(ErrorKind.INTERNAL, outcome, _opaque(request))

    def _log_cause(self, request: AttemptRequest, error: BaseException) -> None:
        self._bound_log(request).error("tool.failed", error_type=_type_chain(error), traceback=_frames(error))

    def _bound_log(self, request: AttemptRequest) -> Any:
        return self._log.bind(tool=request.tool, call_id=request.call_id, attempt=request.number)


def _converted(name: str, convert: Callable[[Any], Any], value: object) -> object:
    try:
        return convert(value)
    except ArgumentUnusable as error:
        raise ArgumentUnusable(str(error), f"/{name}{error.field}") from None


def _is_given_up() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _end(
    kind: ErrorKind, outcome: Outcome, message: str, reason: str = "", *, retry_after_s: float | None = None
) -> AttemptEnd:
    return AttemptEnd(
        kind=kind, outcome=outcome, message=message, reason=reason, retry_after_s=retry_after_s, local=True
    )


def _unusable(error: ArgumentUnusable) -> AttemptEnd:
    """The same as a breach of the schema, found later."""
    wrong = Violation(field=error.field, message=_clean(str(error)), rule="UNUSABLE")
    end = _end(
        ErrorKind.SCHEMA,
        Outcome.NOT_RUN,
        f"{error.field}: {wrong.message}".removeprefix(": "),
        "ARGUMENT_UNUSABLE",
    )
    end.violations = (wrong,)
    return end


def _opaque(request: AttemptRequest) -> str:
    return f"the tool failed; see the service's log for call {request.call_id}"


def _clean(message: object) -> str:
    """Make an author's message valid, bounded text; it may be anything, whatever the hint says."""
    text = message if isinstance(message, str) else type(message).__name__
    text = text[: MAX_MESSAGE + 1].encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def _type_chain(error: BaseException) -> str:
    """Name the error and what caused it, outermost first."""
    names: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(names) < 5:
        names.append(f"{type(cause).__module__}.{type(cause).__qualname__}".removeprefix("builtins."))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return " <- ".join(names)


def _frames(error: BaseException) -> str:
    """Write the innermost frames: places and lines of code, no values and no message."""
    return "".join(traceback.format_tb(error.__traceback__)[-_MAX_FRAMES:])
