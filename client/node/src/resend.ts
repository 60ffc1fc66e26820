// When a call may be sent again by this client, and how much time there is for it.

import { setTimeout as pause } from "node:timers/promises";

import { durationMs } from "@bufbuild/protobuf/wkt";

import type { LinesideError } from "./errors.js";
import type { ToolCall } from "./gen/lineside/v1/dispatch_pb.js";
import { ErrorKind } from "./gen/lineside/v1/errors_pb.js";

/** The time of a call that states none; the service's own default too. */
export const DEFAULT_TIMEOUT_MS = 60_000;
/** With less left the service would start no attempt. */
export const MIN_TIME_LEFT_MS = 5;
const REPLY_MARGIN_MS = 20; // or a tenth: the service's own
const REPLY_MARGIN_MAX_MS = 1_000; // where only the call says its time, an answer may be so late

/** The time that a call says it has, or that the service gives it. */
export function timeOf(call: ToolCall): number {
  return call.callTimeout ? Math.max(0, durationMs(call.callTimeout)) : DEFAULT_TIMEOUT_MS;
}

/** Until when: the call may run and be sent again (`work`), this side waits for an answer (`rpc`). */
export function deadlinesOf(call: ToolCall, timeoutMs: number | undefined, now: number): { work: number; rpc: number } {
  const rpc = now + (timeoutMs ?? timeOf(call) + (call.callTimeout ? REPLY_MARGIN_MAX_MS : 0));
  return { work: call.callTimeout ? Math.min(rpc, now + timeOf(call)) : rpc, rpc };
}

/** What is left for a call that is sent now: it ends a margin before its RPC, so that the typed error comes first. */
export function timeLeft({ work, rpc }: { work: number; rpc: number }, now: number): number {
  const margin = Math.min(REPLY_MARGIN_MS, (rpc - now) / 10);
  return Math.max(1, Math.min(work, rpc - margin) - now);
}

/** Between two sendings: 50 ms doubled each time up to 2 s, times 0.5 to 1. */
export function backoffMs(resends: number): number {
  return Math.min(2_000, 50 * 2 ** resends) * (0.5 + Math.random() / 2);
}

/**
 * When a keyed call that nobody cancelled may be sent again: the connection was lost, the call was dropped, or the
 * service is unavailable and gave a pushback.
 */
export function resendPause(failure: LinesideError, resends: number): number | undefined {
  const pushbackMs = failure.pushbackMs;
  if ((failure.isLost || failure.isDropped) && pushbackMs === undefined) return backoffMs(resends);
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
