// Batches: each call once, back-pressure, going on after lost connections, leaving and aborting.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { type BatchResult, Client, Code, ErrorKind, LinesideError, Outcome, result, resultText, type ToolCall, toolCall } from "../src/index.js";
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

async function all(results: AsyncIterable<BatchResult>): Promise<BatchResult[]> {
  const told: BatchResult[] = [];
  for await (const one of results) told.push(one);
  return told.sort((one, other) => one.position - other.position);
}

function bookings(prefix: string, count: number, key?: string): ToolCall[] {
  return Array.from({ length: count }, (_, number) =>
    toolCall("book", { seat: `${prefix}-${number}` }, key === undefined ? {} : { key: `${key}-${number}`, timeoutMs: 30_000 }));
}

test("each call is answered once", async () => {
  async function* calls() {
    for (let number = 0; number < 1000; number++) yield toolCall(number % 100 === 7 ? "no_such_tool" : "echo", { value: number });
  }
  const told = await all(client.batch(calls(), { timeoutMs: 60_000 }));
  assert.deepEqual(told.map((one) => one.position), Array.from({ length: 1000 }, (_, number) => number));
  for (const { position, answer, error } of told) {
    if (position % 100 === 7) assert.equal(error?.kind, ErrorKind.NOT_FOUND);
    else assert.equal(answer && resultText(answer), String(position), error?.message);
  }
});

test("a window that is answered all at once makes room for the next", async () => {
  const calls = Array.from({ length: 1000 }, () => toolCall("book", { seat: "window" }, { key: "window", timeoutMs: 30_000 }));
  const told = await all(client.batch(calls, { timeoutMs: 60_000 })); // they join one work, and end together
  assert.equal(told.filter((one) => one.answer).length, 1000);
});

test("calls are taken only as results are read", async () => {
  let taken = 0;
  let isClosed = false;
  function* calls() {
    try {
      for (; ; taken++) yield toolCall("echo", { value: "x".repeat(1000) });
    } finally {
      isClosed = true;
    }
  }
  let read = 0;
  for await (const { error } of client.batch(calls(), { timeoutMs: 60_000 })) {
    assert.equal(error, undefined);
    if (++read === 10) break; // leaving the loop ends the stream
  }
  assert.ok(taken <= 2 * 256 + read, `${taken} calls were taken for ${read} results`);
  assert.ok(isClosed);
});

test("a batch goes on after lost connections, keyed calls once each", async (t) => {
  const relay = await Relay.start(service.address, 2);
  const through = new Client(relay.address);
  t.after(() => (through.close(), relay.stop()));
  const told = await all(through.batch(bookings("keyed", 40, "batch"), { timeoutMs: 60_000 }));
  assert.deepEqual(told.map((one) => one.answer && result(one.answer)), Array.from({ length: 40 }, () => ({ effects: 1 })));
  assert.equal(relay.cuts, 2);
});

test("what a lost connection leaves open is unknown without a key, and is not sent again", async (t) => {
  const relay = await Relay.start(service.address, 1);
  const through = new Client(relay.address);
  t.after(() => (through.close(), relay.stop()));
  const told = await all(through.batch(bookings("keyless", 3), { timeoutMs: 60_000 }));
  assert.deepEqual(told.map((one) => one.error?.outcome), [Outcome.UNKNOWN, Outcome.UNKNOWN, Outcome.UNKNOWN]);
  const again = await all(client.batch(bookings("keyless", 3)));
  assert.deepEqual(again.map((one) => one.answer && result(one.answer)), [{ effects: 2 }, { effects: 2 }, { effects: 2 }]);
});

test("aborting ends what is under way", async () => {
  const told: BatchResult[] = [];
  async function* calls() {
    yield toolCall("hang", {});
    await new Promise(() => undefined); // never another one
  }
  const batch = client.batch(calls(), { signal: AbortSignal.timeout(500) });
  await assert.rejects(async () => {
    for await (const one of batch) told.push(one);
  }, (error: LinesideError) => error.code === Code.CANCELLED);
  assert.deepEqual(told.map((one) => one.error?.outcome), [Outcome.UNKNOWN]);
});

test("giving up leaves no call without its result", async () => {
  const nobody = new Client("127.0.0.1:1");
  let taken = 0;
  async function* calls() {
    for (; ; taken++) yield toolCall("book", {});
  }
  const told: BatchResult[] = [];
  await assert.rejects(async () => {
    for await (const one of nobody.batch(calls(), { timeoutMs: 1_000 })) told.push(one);
  }, LinesideError);
  assert.ok(told.length > 0 && taken - told.length <= 1, `${told.length} results for ${taken} calls`);
  assert.ok(told.every((one) => one.error?.outcome === Outcome.NOT_RUN));
  nobody.close();
});

test("what the calls throw is thrown after their results", async () => {
  function* calls() {
    yield toolCall("echo", { value: 1 });
    throw new RangeError("no more rows");
  }
  const told: BatchResult[] = [];
  await assert.rejects(async () => {
    for await (const one of client.batch(calls())) told.push(one);
  }, RangeError);
  assert.equal(told.length, 1);
});

test("a call that no frame can take is refused here, the others run", async () => {
  const told = await all(client.batch([toolCall("echo", { value: "x".repeat(5 << 20) }), toolCall("echo", { value: 1 })]));
  assert.deepEqual([told[0]?.error?.outcome, told[1]?.error], [Outcome.NOT_RUN, undefined]);
});

test("calls without room for all in one frame all run", async () => {
  const told = await all(client.batch(Array.from({ length: 8 }, () => toolCall("echo", { value: "x".repeat(1 << 20) })), { timeoutMs: 60_000 }));
  assert.deepEqual(told.filter((one) => one.error), []);
});
