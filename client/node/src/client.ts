// Calls tools through a Lineside service.
//
// Meant to be read and copied: one connection, one call, one error type. Retrying is the service's work; this client
// repeats only what the wire lost, and only under an idempotency key.

import { setTimeout as pause } from "node:timers/promises";

import { clone, create, type DescMessage, type DescMethodUnary, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { status as codes } from "@grpc/grpc-js";
import { context } from "@opentelemetry/api";

import { duration } from "./call.js";
import { Connection, type ConnectOptions, type RpcOptions } from "./connection.js";
import { bare, LinesideError } from "./errors.js";
import {
  DispatchRequestSchema, DispatchService, type ToolAnswer, type ToolCall, ToolCallSchema,
} from "./gen/lineside/v1/dispatch_pb.js";
import { ErrorKind, Outcome } from "./gen/lineside/v1/errors_pb.js";

/** The time of a call that states none; the service's own default too. */
export const DEFAULT_TIMEOUT_MS = 60_000;
/** With less left the service would start no attempt. */
export const MIN_TIME_LEFT_MS = 5;
const REPLY_MARGIN_MS = 20; // a call ends this long, or a tenth, before its RPC: the typed error comes first

/** One connection to a service; it serves any number of calls at once and connects at its first. */
export class Client {
  readonly #connection: Connection;

  /** target: `host:port`, or any target of gRPC's. */
  constructor(target: string, options: ConnectOptions = {}) {
    this.#connection = new Connection(target, options);
  }

  /** Ends the connection. */
  close(): void {
    this.#connection.close();
  }

  /**
   * Runs one tool call and waits for its answer. The earlier of `timeoutMs` and the call's own time bounds waiting,
   * attempts and back-off together; aborting the signal gives the call up. A tool that ran and said no is an answer
   * with `toolError` set. Rejects with a LinesideError.
   *
   * With an idempotency key a call whose connection was lost is sent again within its time: the service runs it once.
   */
  async dispatch(call: ToolCall, options: RpcOptions = {}): Promise<ToolAnswer> {
    const wire = clone(ToolCallSchema, call);
    const deadline = performance.now() + timeOf(call, options.timeoutMs);
    const active = options.context ?? context.active();
    let isOpen = false; // an earlier sending was lost and may have run
    for (let resends = 0; ; resends++) {
      const timeoutMs = deadline - performance.now();
      wire.callTimeout = duration(Math.max(1, timeoutMs - Math.min(REPLY_MARGIN_MS, timeoutMs / 10)));
      try {
        const request = create(DispatchRequestSchema, { call: wire });
        const response = await this.unary(DispatchService.method.dispatch, request, { ...options, timeoutMs, context: active });
        return response.answer!;
      } catch (error) {
        if (!(error instanceof LinesideError)) throw error;
        const failure: LinesideError = isOpen ? error.sinceLost() : error;
        const waitMs = call.idempotencyKey === undefined ? undefined : resendPause(failure, resends);
        if (waitMs === undefined || !(await wait(waitMs, deadline, options.signal))) throw failure;
        isOpen ||= failure.outcome === Outcome.UNKNOWN;
      }
    }
  }

  /** Any other method of the service, by its descriptor, such as `CallService.method.getCall`. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>, request: MessageInitShape<I>, options: RpcOptions = {},
  ): Promise<MessageShape<O>> {
    if (options.signal?.aborted) {
      const cancelled = bare(codes.CANCELLED, "cancelled before it was sent");
      throw new LinesideError(cancelled, { outcome: Outcome.NOT_RUN, cause: options.signal.reason });
    }
    return this.#connection.unary(method, create(method.input, request), { timeoutMs: DEFAULT_TIMEOUT_MS, ...options });
  }
}

/** The time a call has: the earlier of its own and its caller's. */
export function timeOf(call: ToolCall, timeoutMs: number | undefined): number {
  const own = call.callTimeout && durationMs(call.callTimeout);
  return own === undefined ? (timeoutMs ?? DEFAULT_TIMEOUT_MS) : Math.min(own, timeoutMs ?? own);
}

/** Between two sendings: 50 ms doubled each time up to 2 s, times 0.5 to 1. */
export function backoffMs(resends: number): number {
  return Math.min(2_000, 50 * 2 ** resends) * (0.5 + Math.random() / 2);
}

/** When a keyed call may be sent again: the connection was lost, or the service is unavailable and gave a pushback. */
function resendPause(failure: LinesideError, resends: number): number | undefined {
  const pushbackMs = failure.pushbackMs;
  if (failure.isLost && pushbackMs === undefined) return backoffMs(resends);
  if (pushbackMs === undefined || pushbackMs < 0) return undefined;
  if (!failure.isLost && failure.kind !== ErrorKind.UNAVAILABLE) return undefined;
  // A service that says "at once" over and over would be asked in a tight loop.
  return resends > 0 ? Math.max(pushbackMs, backoffMs(resends)) : pushbackMs;
}

/** Sleeps, unless there would be no time for another attempt or the caller gives up; whether it slept. */
export async function wait(ms: number, deadline: number, signal?: AbortSignal): Promise<boolean> {
  if (performance.now() + ms + MIN_TIME_LEFT_MS > deadline) return false;
  await pause(ms, undefined, { signal }).catch(() => undefined); // it rejects only when aborted
  return !signal?.aborted;
}
