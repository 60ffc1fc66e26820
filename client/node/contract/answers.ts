// What a runner prints: proto3 JSON with the proto's field names.

import { type DescMessage, type JsonValue, type MessageShape, toJson } from "@bufbuild/protobuf";

import { StatusSchema } from "../src/gen/google/rpc/status_pb.js";
import {
  type BatchItem, type BatchResult, Code, type DispatchBatchResponse, ErrorKindSchema, LinesideError, OutcomeSchema, ToolAnswerSchema,
} from "../src/index.js";
import { registry } from "./methods.js";

type Json = Record<string, JsonValue>;

/** How a batch went. */
export interface Batch {
  code: string;
  message: string;
  items: Json[];
  frame_errors: Json[];
}

export function asJson<T extends DescMessage>(type: T, message: MessageShape<T>): JsonValue {
  return toJson(type, message, { registry, useProtoFieldName: true });
}

/** How it ended. reads: what the client's own error says of the call goes with it. */
export async function ended<T extends DescMessage>(type: T, work: Promise<MessageShape<T>>, reads: boolean): Promise<Json> {
  try {
    return { code: "OK", response: asJson(type, await work) };
  } catch (error) {
    if (!(error instanceof LinesideError)) throw error;
    return reads ? failedCall(error) : failed(error);
  }
}

export function ofBatch(): Batch {
  return { code: "OK", message: "", items: [], frame_errors: [] };
}

/** An item as the client's own batch told it. */
export function ofResult({ call, answer, error }: BatchResult): Json {
  return { item_id: call.itemId, ...(answer ? { response: asJson(ToolAnswerSchema, answer) } : { error: failedCall(error) }) };
}

/** Takes in what the service wrote on a stream of the runner's own. */
export function hear(batch: Batch, { items, frameError }: DispatchBatchResponse): void {
  batch.items.push(...items.map(ofItem));
  if (frameError?.status) {
    batch.frame_errors.push({ frame: Number(frameError.frame), error: failedCall(new LinesideError(frameError.status)) });
  }
}

function ofItem({ itemId, outcome }: BatchItem): Json {
  if (outcome.case === "answer") return { item_id: itemId, response: asJson(ToolAnswerSchema, outcome.value) };
  return { item_id: itemId, error: failedCall(new LinesideError(outcome.value!)) };
}

/** What the status says. */
function failed(error: LinesideError): Json {
  const { details = [] } = asJson(StatusSchema, error.status) as { details?: JsonValue };
  const pushback = error.pushbackMs === undefined ? {} : { pushback_ms: error.pushbackMs };
  return { code: Code[error.code]!, message: error.message, details, ...pushback };
}

/** That, and what the client's own error says. */
function failedCall(error: LinesideError): Json {
  const told: Json = failed(error);
  if (error.kind) told["kind"] = ErrorKindSchema.value[error.kind]!.name;
  if (error.outcome) told["outcome"] = OutcomeSchema.value[error.outcome]!.name;
  if (error.dispatch) told["attempts"] = error.attempts;
  return told;
}
