// Many calls on one stream, with back-pressure both ways, that goes on over another stream after a break.

import { setImmediate as turn } from "node:timers/promises";

import { type ClientDuplexStream, type ServiceError, status as codes } from "@grpc/grpc-js";

import { onAbort } from "./connection.js";
import { bare, fromRpc, LinesideError, trailer } from "./errors.js";
import type { DispatchBatchRequest, DispatchBatchResponse, ToolCall } from "./gen/lineside/v1/dispatch_pb.js";
import { type BatchResult, mayResume, Outbox, type StreamEnd } from "./outbox.js";
import { backoffMs, wait } from "./resend.js";

/** Streams in a row without an answer before it gives up: with the pauses about 12 to 20 s. */
const MAX_RECONNECTS = 12;

type Stream = ClientDuplexStream<DispatchBatchRequest, DispatchBatchResponse>;
export type Calls = Iterable<ToolCall> | AsyncIterable<ToolCall>;

/** Runs the batch; `Client.batch` says what it promises. open: a new stream, with what is left of `deadline`. */
export async function* runBatch(
  calls: Calls, open: () => Stream, deadline: number, signal: AbortSignal | undefined,
): AsyncGenerator<BatchResult, void, undefined> {
  const outbox = new Outbox();
  const wake = new Wake();
  const source = new Source(calls, outbox, wake);
  try {
    for (let fruitless = 0; ; fruitless++) {
      const opened = new OpenStream(open(), wake, signal);
      try {
        yield* serve(opened, source, outbox, wake);
      } finally {
        opened.close();
      }
      if (source.isDone && outbox.isDone) break;
      if (opened.hasAnswered) fruitless = 0;
      const end = opened.end!;
      outbox.broke(end);
      yield* taken(outbox.results);
      const pauseMs = Math.max(end.error.pushbackMs ?? 0, backoffMs(fruitless));
      const isOver = signal?.aborted || !mayResume(end) || fruitless >= MAX_RECONNECTS;
      if (!isOver && (await wait(pauseMs, deadline, signal))) continue;
      const areAllRead = source.isDone;
      source.close();
      outbox.giveUp(end);
      yield* taken(outbox.results);
      if (!areAllRead) throw end.error;
      break;
    }
    if (source.failure) throw source.failure.error;
  } finally {
    source.close();
  }
}

/** Serves one stream until it ends or everything is answered; takes nothing off it while the caller does not ask. */
async function* serve(
  opened: OpenStream, source: Source, outbox: Outbox, wake: Wake,
): AsyncGenerator<BatchResult, void, undefined> {
  outbox.opened();
  for (;;) {
    source.pull();
    opened.send(outbox);
    if (source.isDone && outbox.isSent) opened.halfClose(); // the service answers what it has and ends the stream
    for (let response; (response = opened.read()); ) {
      outbox.hear(response);
      yield* taken(outbox.results);
    }
    yield* taken(outbox.results); // of calls that were refused here
    if (opened.end) return;
    source.pull(); // answers have made room
    await wake.wait();
    await turn(); // calls that are ready at the same time share a frame
  }
}

function* taken(results: BatchResult[]): Generator<BatchResult, void, undefined> {
  for (let result; (result = results.shift()); ) yield result;
}

/** One bell for everything that can happen; rung while nobody waits, it is heard by the next who does. */
class Wake {
  #isRung = false;
  #heard: (() => void) | undefined;

  readonly ring = (): void => {
    this.#isRung = true;
    this.#heard?.();
  };

  async wait(): Promise<void> {
    if (!this.#isRung) await new Promise<void>((resolve) => (this.#heard = resolve));
    this.#isRung = false;
  }
}

/** The caller's calls, read only while there is room for them. */
class Source {
  isDone = false;
  /** What the caller's iterable threw; it counts as its end, and is thrown after the results. */
  failure: { error: unknown } | undefined;
  #isPulling = false;
  readonly #iterator: Iterator<ToolCall> | AsyncIterator<ToolCall>;

  constructor(calls: Calls, private readonly outbox: Outbox, private readonly wake: Wake) {
    this.#iterator = Symbol.asyncIterator in calls ? calls[Symbol.asyncIterator]() : calls[Symbol.iterator]();
  }

  /** Goes on reading until the outbox is full, beside everything else. */
  pull(): void {
    if (this.#isPulling || this.isDone || !this.outbox.hasRoom) return;
    this.#isPulling = true;
    void this.#read().finally(() => {
      this.#isPulling = false;
      this.pull(); // room that was made while the last look at it was under way
    });
  }

  /** Tells the iterable that nothing more is read; it may be waiting for its own next call, so nobody waits for it. */
  close(): void {
    if (this.isDone) return;
    this.isDone = true;
    void Promise.resolve(this.#iterator.return?.()).catch(() => undefined);
  }

  async #read(): Promise<void> {
    try {
      while (this.outbox.hasRoom && !this.isDone) {
        const next = await this.#iterator.next();
        if (this.isDone) return; // closed meanwhile
        if (next.done) this.isDone = true;
        else this.outbox.add(next.value);
        this.wake.ring();
      }
    } catch (error) {
      this.failure = { error };
      this.isDone = true;
      this.wake.ring();
    }
  }
}

/** One stream of gRPC's, as state to look at: what can be written, what was heard, how it ended. */
class OpenStream {
  end: StreamEnd | undefined;
  hasAnswered = false;
  #canWrite = true;
  #isHalfClosed = false;
  readonly #forget: () => void;

  constructor(private readonly stream: Stream, wake: Wake, signal: AbortSignal | undefined) {
    stream.on("readable", wake.ring);
    stream.on("drain", () => {
      this.#canWrite = true;
      wake.ring();
    });
    // grpc-js drops what came in behind a failure and was not read: those calls count as unanswered.
    stream.on("error", (failed: ServiceError) => {
      this.end ??= { error: fromRpc(failed), accepted: trailer(failed.metadata, "lineside-frames-accepted") };
      wake.ring();
    });
    stream.on("end", () => {
      const early = bare(codes.INTERNAL, "the stream ended before every call was answered"); // something in between may do that
      this.end ??= { error: new LinesideError(early) };
      wake.ring();
    });
    this.#forget = onAbort(signal, () => stream.cancel());
    if (signal?.aborted) stream.cancel();
  }

  /** Writes frames for as long as the transport takes them. */
  send(outbox: Outbox): void {
    while (this.#canWrite && !this.end) {
      const frame = outbox.nextFrame();
      if (!frame) return;
      this.#canWrite = this.stream.write(frame);
    }
  }

  halfClose(): void {
    if (this.#isHalfClosed) return;
    this.#isHalfClosed = true;
    this.stream.end();
  }

  /** The next response that has arrived; null when there is none. */
  read(): DispatchBatchResponse | null {
    const response = this.stream.read() as DispatchBatchResponse | null;
    this.hasAnswered ||= response !== null;
    return response;
  }

  close(): void {
    this.#forget();
    if (!this.end) this.stream.cancel();
  }
}
