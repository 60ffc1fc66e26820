"""The caller's W3C trace context, if opentelemetry-api is installed. The client makes no spans of its own."""

from __future__ import annotations

from collections.abc import Callable

Inject = Callable[[], dict[str, str]]


def injector() -> Inject:
    """A function that tells the current context as `traceparent` and `tracestate`; empty when there is
    none.
    """
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return dict
    propagator = TraceContextTextMapPropagator()

    def inject() -> dict[str, str]:
        carrier: dict[str, str] = {}
        propagator.inject(carrier)
        return carrier

    return inject
