"""Logs: one JSON line per event on stderr with the trace it belongs to; lines for people on a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog
from opentelemetry import trace
from structlog.typing import Processor

SERVICE_NAME: Final = "lineside"

_CHATTY = ("grpc", "asyncio", "aiohttp.access")
"""Libraries whose info lines say nothing to an operator."""


def set_up_logs(
    *, level: str, json_lines: bool | None = None, stream: TextIO | None = None, service: str = SERVICE_NAME
) -> None:
    """Send every log of this process, the libraries' too, to `stream` (stderr when None).

    json_lines None: JSON unless the stream is a terminal. Values of arguments and results are never logged by
    the service; tracebacks are, without the values of local variables.
    """
    stream = stream or sys.stderr
    as_json = json_lines if json_lines is not None else not stream.isatty()
    shared = _shared(service if as_json else "")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_formatter(shared, stream, as_json=as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
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
        last += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        plain = structlog.dev.plain_traceback  # the default shows local variables: arguments among them
        last.append(structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain))
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.PositionalArgumentsFormatter()], processors=last
    )


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
