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

/** The time a call has: the earlier of its own and its caller's. */
export function timeOf(call: ToolCall, timeoutMs: number | undefined): number {
  const own = call.callTimeout && durationMs(call.callTimeout);
  return own === undefined ? (timeoutMs ?? DEFAULT_TIMEOUT_MS) : Math.min(own, timeoutMs ?? own);
}

/** Between two sendings: 50 ms doubled each time up to 2 s, times 0.5 to 1. */
export function backoffMs(resends: number): number {
  return Math.min(2_000, 50 * 2 ** resends) * (0.5 + Math.random() / 2);
}

/** When a keyed call may be sent again: the connection was lost, or the service is unavailable and gave a pushback. */
export function resendPause(failure: LinesideError, resends: number): number | undefined {
  const pushbackMs = failure.pushbackMs;
  if (failure.isLost && pushbackMs === undefined) return backoffMs(resends);
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
