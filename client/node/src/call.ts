// Making a call, and reading its answer.

import { create } from "@bufbuild/protobuf";
import { type Duration, durationFromMs } from "@bufbuild/protobuf/wkt";
import type { Context } from "@opentelemetry/api";

import { type ToolAnswer, type ToolCall, ToolCallSchema, TraceContextSchema } from "./gen/lineside/v1/dispatch_pb.js";
import { traceOf } from "./trace.js";

/** What a call may say beside its arguments; every other field can be set on the ToolCall directly. */
export interface CallFields {
  /** Makes repeating the call harmless: while its record is kept, the service runs it once and answers again. */
  key?: string;
  /** Bounds the whole call, waiting and retries included. */
  timeoutMs?: number;
  /** Bounds one attempt; it can only shorten the tool's own. */
  attemptTimeoutMs?: number;
  /** Makes the call part of this context's trace, for calls of a batch that come from several; they share its own else. */
  context?: Context;
}

/**
 * Makes a call of a tool. Arguments go as JSON text; so does the result come back. A Uint8Array is taken for such text
 * and sent as it is: for integers beyond 2^53 and numbers that no double holds.
 */
export function toolCall(tool: string, args: object | Uint8Array = {}, fields: CallFields = {}): ToolCall {
  const text = args instanceof Uint8Array ? args : new TextEncoder().encode(JSON.stringify(args));
  const call = create(ToolCallSchema, { tool, argumentForm: { case: "argumentsJson", value: text } });
  if (fields.key !== undefined) call.idempotencyKey = fields.key;
  if (fields.timeoutMs !== undefined) call.callTimeout = duration(fields.timeoutMs);
  if (fields.attemptTimeoutMs !== undefined) call.attemptTimeout = duration(fields.attemptTimeoutMs);
  const trace = fields.context && traceOf(fields.context);
  if (trace) call.traceContext = create(TraceContextSchema, trace);
  return call;
}

/** The result of an answer to a call that `toolCall` made, parsed. `resultText` has what a double would not hold. */
export function result<T = unknown>(answer: ToolAnswer): T {
  return JSON.parse(resultText(answer)) as T;
}

/** The result's JSON text, exactly as the service sent it; `null` where there is none (only validated). */
export function resultText(answer: ToolAnswer): string {
  const form = answer.resultForm;
  return form.case === "resultJson" ? new TextDecoder().decode(form.value) : "null";
}

/** A Duration of so many milliseconds, to the microsecond. */
export function duration(ms: number): Duration {
  const whole = durationFromMs(Math.floor(ms));
  whole.nanos += Math.floor((ms % 1) * 1000) * 1000;
  return whole;
}
