// The caller's W3C trace context, by hand: a propagator would be the SDK's, and might not be there or not of W3C's kind.

import { type Context, context, trace } from "@opentelemetry/api";

/** The headers of the span that a context holds, of the active one if nothing is said; undefined where there is none. */
export function traceOf(held: Context = context.active()): { traceparent: string; tracestate: string } | undefined {
  const span = trace.getSpanContext(held);
  if (!span || !trace.isSpanContextValid(span)) return undefined;
  const flags = span.traceFlags.toString(16).padStart(2, "0");
  return { traceparent: `00-${span.traceId}-${span.spanId}-${flags}`, tracestate: span.traceState?.serialize() ?? "" };
}
