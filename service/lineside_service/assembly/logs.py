"""Logs: one JSON line per event on stderr with the trace it belongs to; lines for people on a terminal."""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog
from opentelemetry import trace
from structlog.typing import ExcInfo, Processor

SERVICE_NAME: Final = "lineside"

_CHATTY = ("grpc", "asyncio", "aiohttp.access")
"""Libraries whose info lines say nothing to an operator."""

_REPR_BEGINS: Final = re.compile(r"\n|<|\((?!\))")
_MAX_FRAMES: Final = 30
_MAX_LINKS: Final = 5


def set_up_logs(
    *, level: str, json_lines: bool | None = None, stream: TextIO | None = None, service: str = SERVICE_NAME
) -> None:
    """Send every log of this process, the libraries' too, to `stream` (stderr when None).

    json_lines None: JSON unless the stream is a terminal. Values of arguments and results are never logged by
    the service. Exceptions are, by type and place: their texts quote what they were given. That holds also
    for those that nobody caught, in a task, a callback or a thread that a tool started.
    """
    stream = stream or sys.stderr
    as_json = json_lines if json_lines is not None else not stream.isatty()
    shared = _shared(service if as_json else "")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(shared, stream, as_json=as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    logging.getLogger("asyncio").addFilter(_without_values)
    threading.excepthook = _thread_died
    sys.unraisablehook = _nobody_to_raise_to
    set_log_level(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def set_log_level(level: str) -> None:
    """Change the level of a running process: debug, info, warning or error."""
    logging.getLogger().setLevel(level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


def get_log(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a part of the service; its name is the `logger` of the line."""
    return structlog.stdlib.get_logger(name)


def _shared(service: str) -> list[Processor]:
    """What every line goes through, ours and the libraries'."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace,
        *([_Named(service)] if service else []),
    ]


def _formatter(shared: list[Processor], stream: TextIO, *, as_json: bool) -> logging.Formatter:
    last: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_json:
        shown = structlog.processors.ExceptionRenderer(types_and_places)
        last += [shown, structlog.processors.JSONRenderer(default=str)]
    else:
        last.append(_frames_below)
        last.append(structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_write_shown))
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()], processors=last
    )


def types_and_places(exc_info: ExcInfo) -> str:
    """An exception and what led to it, oldest first, as a traceback without any text of theirs."""
    links: list[BaseException] = [exc_info[1]]
    while len(links) < _MAX_LINKS:
        last = links[-1]
        before = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if before is None:
            break
        links.append(before)
    return "\nled to\n".join(
        "".join(traceback.format_tb(link.__traceback__)[-_MAX_FRAMES:])
        + f"{type(link).__module__}.{type(link).__qualname__}".removeprefix("builtins.")
        for link in reversed(links)
    )


def _frames_below(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Give the frames that an event tells lines of their own, for people."""
    if isinstance(frames := event.pop("traceback", None), str):
        event["stack"] = frames.rstrip()
    return event


def _write_shown(stream: TextIO, exc_info: ExcInfo) -> None:
    stream.write("\n" + types_and_places(exc_info))


def _without_values(record: logging.LogRecord) -> bool:
    """Cut asyncio's words about an exception where reprs begin: of arguments, or of what raised it."""
    record.msg, record.args = _REPR_BEGINS.split(record.getMessage(), 1)[0].rstrip(), ()
    return True


def _thread_died(hook: threading.ExceptHookArgs) -> None:
    error = hook.exc_value
    if error is None or isinstance(error, SystemExit):
        return
    name = hook.thread.name if hook.thread is not None else ""
    get_log("lineside.service").error("thread.died", thread=name, exc_info=error)


def _nobody_to_raise_to(hook: Any) -> None:
    """What Python meets in a destructor or in the collector."""
    get_log("lineside.service").error("exception.ignored", exc_info=hook.exc_value)


class _Named:
    """Adds `service.name`, as OpenTelemetry's log data model calls it."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __call__(
        self, _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event["service.name"] = self._service
        return event


def _add_trace(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The ids of the span that is current where the line is written, for the jump from a log to its trace."""
    context = trace.get_current_span().get_span_context()
    if context.is_valid and "trace_id" not in event:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
        event["trace_flags"] = f"{context.trace_flags:02x}"
    return event
