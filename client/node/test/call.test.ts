// One call: answers, keys, typed errors, deadline, cancellation, lost connections.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import {
  BadRequestSchema, Client, Code, ErrorInfoSchema, ErrorKind, LinesideError, Outcome, PreconditionFailureSchema, ResourceInfoSchema,
  result, resultText, Source, type ToolCall, toolCall,
} from "../src/index.js";
import { Relay, Service } from "./service.js";

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

/** The error that a call ends in. */
async function failed(ended: Promise<unknown>): Promise<LinesideError> {
  const error = await ended.then(() => undefined, (error: unknown) => error);
  assert.ok(error instanceof LinesideError, `not a LinesideError: ${String(error)}`);
  return error;
}

test("big numbers stay exact", async () => {
  const text = '{"value": [9007199254740993, 1e2, null, "\u00e9"]}';
  const answer = await client.dispatch(toolCall("echo", new TextEncoder().encode(text)), { timeoutMs: 10_000 });
  assert.equal(resultText(answer), '[9007199254740993,100.0,null,"\u00e9"]');
  assert.deepEqual([answer.source, answer.attempts], [Source.EXECUTED, 1]);
});

test("a key is run once", async () => {
  const call = toolCall("book", { seat: "1A" }, { key: "trip-1" });
  const [first, again] = [await client.dispatch(call), await client.dispatch(call)];
  assert.deepEqual(result(again), { effects: 1 });
  assert.equal(again.callId, first.callId);
  assert.equal(again.source, Source.REPLAYED);
});

test("errors are typed", async (t) => {
  await client.dispatch(toolCall("book", { seat: "2B" }, { key: "trip-2" }));
  const cases: [string, ToolCall, Code, ErrorKind, Outcome, (error: LinesideError) => void][] = [
    ["arguments", toolCall("book", { seat: 7 }), Code.INVALID_ARGUMENT, ErrorKind.SCHEMA, Outcome.NOT_RUN,
      (error) => assert.equal(error.detail(BadRequestSchema)?.fieldViolations[0]?.field, "/seat")],
    ["tool", toolCall("bok", {}), Code.NOT_FOUND, ErrorKind.NOT_FOUND, Outcome.NOT_RUN,
      (error) => assert.equal(error.detail(ResourceInfoSchema)?.resourceName, "bok")],
    ["key", toolCall("book", { seat: "2C" }, { key: "trip-2" }), Code.FAILED_PRECONDITION, ErrorKind.KEY_REUSED, Outcome.NOT_RUN,
      (error) => assert.equal(error.detail(PreconditionFailureSchema)?.violations.length, 1)],
    ["time", toolCall("hang", {}, { timeoutMs: 0 }), Code.INVALID_ARGUMENT, ErrorKind.SCHEMA, Outcome.NOT_RUN,
      (error) => assert.match(error.message, /call_timeout/)],
    ["timeout", toolCall("hang", {}, { timeoutMs: 300 }), Code.DEADLINE_EXCEEDED, ErrorKind.TIMEOUT, Outcome.UNKNOWN,
      (error) => assert.equal(error.attempts, 1)],
  ];
  for (const [name, call, code, kind, outcome, check] of cases) {
    await t.test(name, async () => {
      const error = await failed(client.dispatch(call, { timeoutMs: 10_000 }));
      assert.deepEqual([error.code, error.kind, error.outcome], [code, kind, outcome], error.message);
      assert.equal(error.detail(ErrorInfoSchema)?.domain, "lineside");
      check(error);
    });
  }
});

test("a tool that says no is an answer", async () => {
  const answer = await client.dispatch(toolCall("refuse", { why: "sold out" }));
  assert.ok(answer.toolError);
  assert.match(resultText(answer), /sold out/);
});

test("aborting gives the call up", async () => {
  const error = await failed(client.dispatch(toolCall("hang", {}), { signal: AbortSignal.timeout(100) }));
  assert.equal(error.code, Code.CANCELLED);
  const unsent = await failed(client.dispatch(toolCall("hang", {}), { signal: AbortSignal.abort() }));
  assert.deepEqual([unsent.code, unsent.outcome], [Code.CANCELLED, Outcome.NOT_RUN]);
});

test("one signal is for as many calls as there are", async (t) => {
  const warnings: Error[] = [];
  const note = (warning: Error) => warnings.push(warning);
  process.on("warning", note);
  t.after(() => process.off("warning", note));
  const signal = AbortSignal.timeout(500);
  const ended = await Promise.all(Array.from({ length: 30 }, () => failed(client.dispatch(toolCall("hang", {}), { signal }))));
  assert.ok(ended.every((error) => error.code === Code.CANCELLED));
  assert.deepEqual(warnings, []);
});

test("a lost answer is asked for again under its key", async (t) => {
  const relay = await Relay.start(service.address, 1);
  const through = new Client(relay.address);
  t.after(() => (through.close(), relay.stop()));
  const answer = await through.dispatch(toolCall("book", { seat: "3C" }, { key: "trip-3" }), { timeoutMs: 20_000 });
  assert.deepEqual([result(answer), relay.cuts], [{ effects: 1 }, 1]);
});

test("a lost answer without a key is unknown, and never asked for again", async (t) => {
  const relay = await Relay.start(service.address, 1);
  const through = new Client(relay.address);
  t.after(() => (through.close(), relay.stop()));
  const error = await failed(through.dispatch(toolCall("book", { seat: "4D" }), { timeoutMs: 10_000 }));
  assert.deepEqual([error.isLost, error.outcome, relay.cuts], [true, Outcome.UNKNOWN, 1]);
  assert.deepEqual(result(await client.dispatch(toolCall("book", { seat: "4D" }))), { effects: 2 }); // the first, and this
});

test("a service that was never reached has run nothing", async () => {
  const nobody = new Client("127.0.0.1:1");
  const error = await failed(nobody.dispatch(toolCall("book", { seat: "5E" }), { timeoutMs: 5_000 }));
  assert.deepEqual([error.isLost, error.outcome], [true, Outcome.NOT_RUN], error.message);
  nobody.close();
});
