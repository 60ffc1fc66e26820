// Calls a tool of `make run`, twice under one key: one seat is booked.

import { Client, LinesideError, Next, Outcome, resultText, Source, toolCall } from "../src/index.js";

const client = new Client(process.argv[2] ?? "127.0.0.1:50051");
const call = toolCall("book_flight", { flight: "LS 101", passenger: "Ada" }, { key: "trip-node", timeoutMs: 10_000 });
try {
  for (let sent = 0; sent < 2; sent++) {
    const answer = await client.dispatch(call);
    console.log(Source[answer.source], resultText(answer));
  }
} catch (error) {
  if (!(error instanceof LinesideError)) throw error;
  console.error(error.message, Outcome[error.outcome], error.dispatch?.next.map((next) => Next[next]));
  process.exitCode = 1;
} finally {
  client.close();
}
