// Does what a file of scenarios says, through the client, and prints what it got: tests/contract/README.md.
//
//     node dist/contract/runner.js FILE

import { readFileSync } from "node:fs";

import { create, fromJson, type JsonValue } from "@bufbuild/protobuf";
import type { ServiceError } from "@grpc/grpc-js";
import { ROOT_CONTEXT, trace } from "@opentelemetry/api";

import {
  Client, Code, DispatchBatchRequestSchema, type DispatchBatchResponse, DispatchService, LinesideError, type RpcOptions, ToolAnswerSchema,
  type ToolCall, ToolCallSchema,
} from "../src/index.js";
import { type Batch, ended, hear, ofBatch, ofResult } from "./answers.js";
import { methodOf, registry } from "./methods.js";

interface Step {
  dispatch?: JsonValue;
  batch?: JsonValue[];
  frames?: JsonValue[][];
  unary?: { method: string; request: JsonValue };
  parallel?: Step[];
  timeout_s?: number;
  cancel_after_s?: number;
  metadata?: Record<string, string>;
  parent?: string;
}

interface Scenario {
  id: string;
  via?: string;
  token?: string;
  steps: Step[];
}

/** One client for each address and token, made when first needed. */
class Clients {
  readonly #made = new Map<string, Client>();
  readonly #addresses = JSON.parse(process.env["LINESIDE_ADDRESSES"]!) as Record<string, string>;
  readonly #ca = process.env["LINESIDE_CA"];

  of({ via = "direct", token = process.env["LINESIDE_TOKEN"] }: Scenario): Client {
    const name = JSON.stringify([via, token]);
    let client = this.#made.get(name);
    if (!client) {
      const tls = this.#ca ? { tls: { ca: readFileSync(this.#ca) } } : {};
      client = new Client(this.#addresses[via]!, token === undefined ? tls : { token, ...tls });
      this.#made.set(name, client);
    }
    return client;
  }

  close(): void {
    for (const client of this.#made.values()) client.close();
  }
}

function run(client: Client, step: Step): Promise<unknown> {
  const options = optionsOf(step);
  if (step.dispatch) return ended(ToolAnswerSchema, client.dispatch(toolCall(step.dispatch), options), true);
  if (step.batch) return batch(client, step.batch.map(toolCall), options);
  if (step.frames) return frames(client, step.frames.map((frame) => frame.map(toolCall)), options);
  if (step.parallel) return Promise.all(step.parallel.map((one) => run(client, one)));
  if (!step.unary) throw new Error("no such step");
  const method = methodOf(step.unary.method);
  return ended(method.output, client.unary(method, fromJson(method.input, step.unary.request, { registry }), options), false);
}

function optionsOf(step: Step): RpcOptions {
  const options: RpcOptions = {};
  if (step.timeout_s !== undefined) options.timeoutMs = step.timeout_s * 1000;
  if (step.cancel_after_s !== undefined) options.signal = AbortSignal.timeout(step.cancel_after_s * 1000);
  if (step.metadata) options.metadata = step.metadata;
  if (step.parent) {
    const [, traceId, spanId, flags] = step.parent.split("-") as [string, string, string, string];
    options.context = trace.setSpanContext(ROOT_CONTEXT, { traceId, spanId, traceFlags: parseInt(flags, 16), isRemote: true });
  }
  return options;
}

function toolCall(text: JsonValue): ToolCall {
  return fromJson(ToolCallSchema, text, { registry });
}

/** All calls on one stream, by the client's own function. */
async function batch(client: Client, calls: ToolCall[], options: RpcOptions): Promise<Batch> {
  const told = ofBatch();
  try {
    for await (const result of client.batch(calls, options)) told.items.push(ofResult(result));
  } catch (error) {
    if (!(error instanceof LinesideError)) throw error;
    Object.assign(told, { code: Code[error.code], message: error.message });
  }
  return told;
}

/** These frames by the stub, as they are, then half-close. */
async function frames(client: Client, frames: ToolCall[][], options: RpcOptions): Promise<Batch> {
  const told = ofBatch();
  const stream = client.connection.stream(DispatchService.method.dispatchBatch, options);
  options.signal?.addEventListener("abort", () => stream.cancel());
  stream.on("data", (response: DispatchBatchResponse) => hear(told, response));
  stream.on("error", (error: ServiceError) => Object.assign(told, { code: Code[error.code], message: error.details }));
  const isOver = new Promise((resolve) => stream.on("status", resolve));
  for (const calls of frames) stream.write(create(DispatchBatchRequestSchema, { calls })); // a few, so all at once
  stream.end();
  await isOver;
  return told;
}

const clients = new Clients();
try {
  const { scenarios } = JSON.parse(readFileSync(process.argv[2]!, "utf8")) as { scenarios: Scenario[] };
  for (const scenario of scenarios) {
    const answers: unknown[] = [];
    for (const step of scenario.steps) answers.push(await run(clients.of(scenario), step));
    console.log(JSON.stringify({ id: scenario.id, answers }));
  }
} finally {
  clients.close();
}
