// Calls tools through a Lineside service.
//
// Meant to be read and copied: one connection, one call, one error type. Retrying is the service's work; this client
// repeats only what the wire lost, and only under an idempotency key.

import { clone, create, type DescMessage, type DescMethodUnary, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";
import { status as codes } from "@grpc/grpc-js";
import { context } from "@opentelemetry/api";

import { type Calls, runBatch } from "./batch.js";
import { duration } from "./call.js";
import { Connection, type ConnectOptions, type RpcOptions } from "./connection.js";
import { bare, LinesideError } from "./errors.js";
import {
  DispatchRequestSchema, DispatchService, type ToolAnswer, type ToolCall, ToolCallSchema,
} from "./gen/lineside/v1/dispatch_pb.js";
import { Outcome } from "./gen/lineside/v1/errors_pb.js";
import type { BatchResult } from "./outbox.js";
import { deadlinesOf, DEFAULT_TIMEOUT_MS, resendPause, timeLeft, timeOf, wait } from "./resend.js";

/** One connection to a service; it serves any number of calls at once and connects at its first. */
export class Client {
  /** For streams and other RPCs by the generated descriptors. */
  readonly connection: Connection;

  /** target: `host:port`, or any target of gRPC's. */
  constructor(target: string, options: ConnectOptions = {}) {
    this.connection = new Connection(target, options);
  }

  /** Ends the connection. */
  close(): void {
    this.connection.close();
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
    const deadlines = deadlinesOf(call, options.timeoutMs, performance.now());
    const active = options.context ?? context.active();
    let isOpen = false; // an earlier sending was lost and may have run
    for (let resends = 0; ; resends++) {
      const now = performance.now();
      const leftMs = timeLeft(deadlines, now);
      if (!call.callTimeout || leftMs < timeOf(call)) wire.callTimeout = duration(leftMs); // zero is for the service to refuse
      const rpc = { ...options, timeoutMs: deadlines.rpc - now, context: active };
      try {
        const request = create(DispatchRequestSchema, { call: wire });
        const response = await this.unary(DispatchService.method.dispatch, request, rpc);
        return response.answer!; // always set, says the contract
      } catch (error) {
        if (!(error instanceof LinesideError)) throw error;
        const failure: LinesideError = isOpen ? error.sinceLost() : error;
        const waitMs = call.idempotencyKey === undefined ? undefined : resendPause(failure, resends);
        if (waitMs === undefined || !(await wait(waitMs, deadlines.work, options.signal))) throw failure;
        isOpen ||= failure.outcome === Outcome.UNKNOWN;
      }
    }
  }

  /**
   * Runs calls over one stream and gives their results as they finish, each call's exactly once. It takes calls only
   * while fewer than 256 are unanswered, and reads no answers while the caller does not ask for the next result. It ends
   * once `calls` has ended and everything is answered, or when the loop over it is left: what is under way is cancelled.
   *
   * When the stream breaks it goes on over another one: calls in frames that the service did not take are sent again,
   * and so are those with a key; a keyless call that the service may have begun ends with outcome UNKNOWN. If it gives
   * up before all calls were read, those that were have their results, and it throws. `timeoutMs` is for all of it.
   */
  batch(calls: Calls, options: RpcOptions = {}): AsyncGenerator<BatchResult, void, undefined> {
    const active = options.context ?? context.active();
    const deadline = performance.now() + (options.timeoutMs ?? Infinity);
    const open = () => {
      const left = deadline === Infinity ? {} : { timeoutMs: deadline - performance.now() };
      return this.connection.stream(DispatchService.method.dispatchBatch, { ...options, ...left, context: active });
    };
    return runBatch(calls, open, deadline, options.signal);
  }

  /** Any other method of the service, by its descriptor, such as `CallService.method.getCall`. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>, request: MessageInitShape<I>, options: RpcOptions = {},
  ): Promise<MessageShape<O>> {
    if (options.signal?.aborted) {
      const cancelled = bare(codes.CANCELLED, "cancelled before it was sent");
      throw new LinesideError(cancelled, { outcome: Outcome.NOT_RUN, cause: options.signal.reason });
    }
    return this.connection.unary(method, create(method.input, request), { timeoutMs: DEFAULT_TIMEOUT_MS, ...options });
  }
}
