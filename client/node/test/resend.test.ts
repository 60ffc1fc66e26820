// What is sent again and what never is, against a server that does what no real one should.

import assert from "node:assert/strict";
import { once } from "node:events";
import { constants, createServer, type Http2Server, type ServerHttp2Stream } from "node:http2";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";

import { create, toBinary } from "@bufbuild/protobuf";

import { Client, Code, DispatchResponseSchema, LinesideError, Outcome, ToolService, toolCall } from "../src/index.js";

type Behave = (stream: ServerHttp2Stream) => void;

/** A client of a server that takes each request whole and then behaves so; `requests` counts them. */
async function against(t: TestContext, ...behaviours: Behave[]) {
  const server: Http2Server = createServer();
  const seen = { requests: 0 };
  server.on("stream", (stream) => {
    const behave = behaviours[Math.min(seen.requests++, behaviours.length - 1)]!;
    stream.on("error", () => undefined); // broken on purpose
    stream.resume().on("end", () => behave(stream));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = new Client(`127.0.0.1:${(server.address() as AddressInfo).port}`);
  t.after(() => (client.close(), server.close()));
  return { client, seen };
}

const HEADERS = { ":status": 200, "content-type": "application/grpc" };

function status(code: number, trailers: Record<string, string> = {}): Behave {
  return (stream) => stream.respond({ ...HEADERS, "grpc-status": String(code), ...trailers }, { endStream: true });
}

const answer: Behave = (stream) => {
  const message = toBinary(DispatchResponseSchema, create(DispatchResponseSchema, { answer: {} }));
  const prefix = Buffer.alloc(5);
  prefix.writeUInt32BE(message.length, 1);
  stream.respond(HEADERS, { waitForTrailers: true });
  stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
  stream.end(Buffer.concat([prefix, message]));
};

const breaks: [string, Behave][] = [
  ["the connection goes", (stream) => stream.session!.destroy()],
  ["the stream is cancelled", (stream) => stream.close(constants.NGHTTP2_CANCEL)],
  ["the server has a fault", (stream) => stream.session!.goaway(constants.NGHTTP2_INTERNAL_ERROR, stream.id)],
  ["the server is flooded", (stream) => stream.session!.goaway(constants.NGHTTP2_ENHANCE_YOUR_CALM, stream.id)],
  ["unavailable, come again at once", status(Code.UNAVAILABLE, { "grpc-retry-pushback-ms": "0" })],
  ["unavailable", status(Code.UNAVAILABLE)],
  ["dropped without a word", status(Code.CANCELLED)],
];
for (const [name, breaking] of breaks) {
  test(`without a key nothing is sent again: ${name}`, async (t) => {
    const { client, seen } = await against(t, breaking, answer);
    await assert.rejects(client.dispatch(toolCall("book", {}), { timeoutMs: 5_000 }), (error: LinesideError) => {
      return error instanceof LinesideError && error.outcome === Outcome.UNKNOWN;
    });
    assert.equal(seen.requests, 1);
  });
}

for (const [name, breaking] of breaks.filter(([name]) => !name.startsWith("the s") || name.endsWith("cancelled"))) {
  test(`under a key it is sent again: ${name}`, async (t) => {
    const { client, seen } = await against(t, breaking, answer);
    await client.dispatch(toolCall("book", {}, { key: "k" }), { timeoutMs: 5_000 });
    assert.equal(seen.requests, 2);
  });
}

test("a server that says never is not asked again, nor one whose word cannot be read", async (t) => {
  for (const pushback of ["-1", "soon"]) {
    const { client, seen } = await against(t, status(Code.UNAVAILABLE, { "grpc-retry-pushback-ms": pushback }));
    await assert.rejects(client.dispatch(toolCall("book", {}, { key: "k" }), { timeoutMs: 5_000 }), LinesideError);
    assert.equal(seen.requests, 1);
  }
});

test("sending again ends with the call's time, and the outcome stays open", async (t) => {
  const { client, seen } = await against(t, status(Code.UNAVAILABLE), status(Code.UNAUTHENTICATED));
  const ended = client.dispatch(toolCall("book", {}, { key: "k", timeoutMs: 2_000 }));
  await assert.rejects(ended, (error: LinesideError) => error.code === Code.UNAUTHENTICATED && error.outcome === Outcome.UNKNOWN);
  assert.equal(seen.requests, 2);
  const lost = await against(t, status(Code.UNAVAILABLE));
  await assert.rejects(lost.client.dispatch(toolCall("book", {}, { key: "k" }), { timeoutMs: 2_000 }), LinesideError);
  assert.ok(lost.seen.requests > 1 && lost.seen.requests < 12, `${lost.seen.requests} requests`);
});

test("a request that the server says it never looked at is sent again, as gRPC has it", async (t) => {
  const { client, seen } = await against(t, (stream) => stream.close(constants.NGHTTP2_REFUSED_STREAM), answer);
  await client.dispatch(toolCall("book", {}), { timeoutMs: 5_000 });
  assert.equal(seen.requests, 2);
});

test("reads are retried by gRPC, as the published policy says", async (t) => {
  const { client, seen } = await against(t, status(Code.UNAVAILABLE), answer); // any message reads as an empty answer here
  await client.unary(ToolService.method.listTools, {}, { timeoutMs: 5_000 });
  assert.equal(seen.requests, 2);
});
