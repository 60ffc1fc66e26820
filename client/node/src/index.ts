// Everything that a program needs.

export { status as Code } from "@grpc/grpc-js";

export { type CallFields, result, resultText, toolCall } from "./call.js";
export { Client } from "./client.js";
export type { ConnectOptions, RpcOptions } from "./connection.js";
export { LinesideError } from "./errors.js";
export type { BatchResult } from "./outbox.js";
export * from "./gen/google/rpc/error_details_pb.js";
export * from "./gen/lineside/v1/calls_pb.js";
export * from "./gen/lineside/v1/dispatch_pb.js";
export * from "./gen/lineside/v1/errors_pb.js";
export * from "./gen/lineside/v1/tools_pb.js";
