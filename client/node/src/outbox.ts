// What a batch still has to send and to hear about. No I/O: batch.ts carries out what it says.

import { clone, create, toBinary } from "@bufbuild/protobuf";
import { status as codes } from "@grpc/grpc-js";

import { duration } from "./call.js";
import { bare, LinesideError } from "./errors.js";
import {
  type DispatchBatchRequest, DispatchBatchRequestSchema, type DispatchBatchResponse, type ToolAnswer, type ToolCall, ToolCallSchema,
} from "./gen/lineside/v1/dispatch_pb.js";
import { ErrorKind, Outcome } from "./gen/lineside/v1/errors_pb.js";
import { MIN_TIME_LEFT_MS, timeOf } from "./resend.js";

/** Calls taken from the caller and not yet answered; the service takes as many. */
export const WINDOW = 256;
const MAX_FRAME_CALLS = 256;
const MAX_FRAME_BYTES = (4 << 20) - (64 << 10); // the service takes 4 MiB; the rest is room for lengths and tags
const CALL_OVERHEAD_BYTES = 24; // of a call's tag and length in its frame, and of a call_timeout set later

/** How one call of a batch ended: with an answer or with an error. position: of the call in the batch, from 0. */
export type BatchResult = { position: number; call: ToolCall } & (
  | { answer: ToolAnswer; error?: undefined }
  | { answer?: undefined; error: LinesideError }
);

/** How a stream ended. accepted: how many frames the service says it took; undefined when it did not say. */
export interface StreamEnd {
  error: LinesideError;
  accepted?: number | undefined;
}

interface Item {
  position: number;
  call: ToolCall; // the caller's
  wire: ToolCall; // as sent: with an id of ours
  bytes: number;
  deadline?: number; // set at its first sending
  frame: number; // of the present stream, from 1
  isOpen: boolean; // an earlier sending was lost and may have run
}

/** A call is queued, handed to the transport, or among the results. */
export class Outbox {
  readonly results: BatchResult[] = [];
  #queue: Item[] = [];
  readonly #handed = new Map<string, Item>();
  #frames = 0;
  #added = 0;

  /** Whether there is room for another call. */
  get hasRoom(): boolean {
    return this.#queue.length + this.#handed.size < WINDOW;
  }

  /** Whether everything that was added has been sent. */
  get isSent(): boolean {
    return this.#queue.length === 0;
  }

  /** Whether everything that was added has its result. */
  get isDone(): boolean {
    return this.isSent && this.#handed.size === 0;
  }

  add(call: ToolCall): void {
    const position = this.#added++;
    const wire = clone(ToolCallSchema, call);
    wire.itemId = String(position);
    const bytes = toBinary(ToolCallSchema, wire).length + CALL_OVERHEAD_BYTES;
    const item: Item = { position, call, wire, bytes, frame: 0, isOpen: false };
    if (bytes <= MAX_FRAME_BYTES) this.#queue.push(item);
    else this.#fail(item, unsent(codes.INVALID_ARGUMENT, `the call has ${bytes} bytes; a frame takes ${MAX_FRAME_BYTES}`));
  }

  /** A new stream was opened: frames are counted anew. */
  opened(): void {
    this.#frames = 0;
  }

  /** What goes out next; it counts as handed to the transport from here on. Undefined when nothing is queued. */
  nextFrame(): DispatchBatchRequest | undefined {
    const frame = create(DispatchBatchRequestSchema);
    let bytes = 0;
    for (let item; (item = this.#queue[0]) && frame.calls.length < MAX_FRAME_CALLS && bytes + item.bytes <= MAX_FRAME_BYTES; ) {
      this.#queue.shift();
      if (!this.#hasTime(item)) continue;
      item.frame = this.#frames + 1;
      this.#handed.set(item.wire.itemId, item);
      frame.calls.push(item.wire);
      bytes += item.bytes;
    }
    if (frame.calls.length === 0) return undefined;
    this.#frames++;
    return frame;
  }

  hear(response: DispatchBatchResponse): void {
    for (const { itemId, outcome } of response.items) {
      const item = this.#handed.get(itemId);
      if (!item) continue; // not one of ours, or answered before
      this.#handed.delete(itemId);
      if (outcome.case === "answer") this.results.push({ position: item.position, call: item.call, answer: outcome.value });
      else this.#fail(item, new LinesideError(outcome.value ?? bare(codes.INTERNAL, "an item without an outcome")));
    }
    const refused = response.frameError;
    if (!refused) return;
    for (const [id, item] of this.#handed) {
      if (BigInt(item.frame) !== refused.frame) continue;
      this.#handed.delete(id);
      this.#fail(item, new LinesideError(refused.status ?? bare(codes.INTERNAL, "a frame was refused")));
    }
  }

  /** Ends what must not be sent again, and queues the rest in its old order, first. */
  broke(end: StreamEnd): void {
    const again: Item[] = [];
    for (const item of this.#handed.values()) {
      const isTaken = took(end, item.frame);
      if (isTaken && item.call.idempotencyKey === undefined) {
        this.#fail(item, end.error.withOutcome(Outcome.UNKNOWN));
        continue;
      }
      item.isOpen ||= isTaken;
      again.push(item);
    }
    this.#handed.clear();
    this.#queue = [...again.sort((one, other) => one.position - other.position), ...this.#queue];
  }

  /** No further stream: what is queued was not taken by the last one. */
  giveUp(end: StreamEnd): void {
    for (const item of this.#queue) this.#fail(item, end.error.withOutcome(Outcome.NOT_RUN));
    this.#queue = [];
  }

  /** A call's time runs from its first sending, as the service counts it. */
  #hasTime(item: Item): boolean {
    if (item.deadline === undefined) {
      item.deadline = performance.now() + timeOf(item.call);
      return true;
    }
    const leftMs = item.deadline - performance.now();
    if (leftMs >= MIN_TIME_LEFT_MS) {
      item.wire.callTimeout = duration(leftMs);
      return true;
    }
    this.#fail(item, unsent(codes.DEADLINE_EXCEEDED, "the call's time ran out while the connection was being made again"));
    return false;
  }

  #fail(item: Item, error: LinesideError): void {
    this.results.push({ position: item.position, call: item.call, error: item.isOpen ? error.sinceLost() : error });
  }
}

/** Whether the service may have begun on a frame, counted from 1. */
function took(end: StreamEnd, frame: number): boolean {
  return end.accepted === undefined ? end.error.outcome !== Outcome.NOT_RUN : frame <= end.accepted;
}

/** Whether another stream may do better: the service drained, or the connection broke. */
export function mayResume({ error, accepted }: StreamEnd): boolean {
  const isUnavailable = error.kind === ErrorKind.UNAVAILABLE;
  if (accepted !== undefined && isUnavailable) return true;
  if (error.isLost) return error.pushbackMs === undefined || error.pushbackMs >= 0;
  if (isUnavailable) return error.pushbackMs !== undefined && error.pushbackMs >= 0;
  // Reset by a proxy in between, or ended OK before every answer was there: nobody of the service said why.
  return error.isDropped || (!error.dispatch && error.code === codes.INTERNAL);
}

function unsent(code: codes, message: string): LinesideError {
  return new LinesideError(bare(code, message), { outcome: Outcome.NOT_RUN });
}
