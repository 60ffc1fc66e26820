// How the service is reached: the trace that goes along, tokens, the published policy.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { type Context, context, ROOT_CONTEXT, trace, TraceFlags } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { BasicTracerProvider } from "@opentelemetry/sdk-trace-base";

import { CallService, Client, ErrorKind, LinesideError, ToolService, toolCall } from "../src/index.js";
import { isLoopback } from "../src/connection.js";
import { Service } from "./service.js";

let service: Service;
let client: Client;

before(async () => {
  service = await Service.start();
  client = new Client(service.address);
});
after(async () => {
  client.close();
  await service.stop();
});

test("the active trace goes along, with a batch too", async () => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  const tracer = new BasicTracerProvider().getTracer("planner");
  await tracer.startActiveSpan("turn 3", async (span) => {
    const { traceId } = span.spanContext();
    assert.equal((await client.dispatch(toolCall("echo", { value: 1 }))).traceId, traceId);
    for await (const { answer } of client.batch([toolCall("echo", { value: 1 })])) assert.equal(answer?.traceId, traceId);
    span.end();
  });
});

function remote(word: string): Context {
  const spanContext = { traceId: word.padEnd(32, "0"), spanId: "04".padEnd(16, "0"), traceFlags: TraceFlags.SAMPLED, isRemote: true };
  return trace.setSpanContext(ROOT_CONTEXT, spanContext);
}

test("a context can be handed in, and stands before a header", async () => {
  const metadata = { traceparent: `00-${"0a".repeat(16)}-${"0b".repeat(8)}-01` };
  const call = toolCall("echo", { value: 1 });
  assert.equal((await client.dispatch(call, { context: remote("0102"), metadata })).traceId, "0102".padEnd(32, "0"));
  assert.equal((await client.dispatch(call, { context: ROOT_CONTEXT, metadata })).traceId, "0a".repeat(16));
});

test("calls of a batch may come from several traces", async () => {
  const words = ["0a", "0b"];
  const calls = words.map((word) => toolCall("echo", { value: 1 }, { context: remote(word) }));
  for await (const { position, answer } of client.batch(calls)) assert.equal(answer?.traceId, words[position]!.padEnd(32, "0"));
});

test("the other services are called by their descriptors", async () => {
  const tools = await client.unary(ToolService.method.listTools, {});
  assert.deepEqual(tools.tools.map((tool) => tool.name).sort(), ["book", "echo", "hang", "refuse"]);
  await assert.rejects(client.unary(CallService.method.getCall, { lookup: { case: "callId", value: crypto.randomUUID() } }),
    (error) => error instanceof LinesideError && error.kind === ErrorKind.NOT_FOUND);
});

test("a token does not travel in plaintext to another machine", () => {
  assert.throws(() => new Client("lineside.example:50051", { token: "secret" }), /plaintext/);
  assert.throws(() => new Client("127.0.0.1:50051", { token: "two words" }), /ASCII/);
  for (const options of [{ tls: true }, { insecureToken: true }]) new Client("lineside.example:50051", { token: "secret", ...options }).close();
  for (const target of ["127.0.0.1:1", "localhost:1", "[::1]:1", "dns:///localhost:1", "unix:/run/x", "ipv4:127.0.0.1:1,127.0.0.2:1"]) {
    assert.ok(isLoopback(target), target);
  }
  for (const target of ["10.0.0.1:1", "ipv4:127.0.0.1:1,10.0.0.1:1", "localhost.example:1", "dns://127.0.0.1/lineside.example:1"]) {
    assert.ok(!isLoopback(target), target);
  }
});
