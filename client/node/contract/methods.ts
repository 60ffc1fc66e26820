// The methods a scenario may name, by their descriptors; also one that nobody knows.

import { create, createFileRegistry, createRegistry, type DescMethodUnary } from "@bufbuild/protobuf";
import {
  EmptySchema, FieldDescriptorProto_Label, FieldDescriptorProto_Type, FileDescriptorProtoSchema,
} from "@bufbuild/protobuf/wkt";

import { file_google_rpc_error_details } from "../src/gen/google/rpc/error_details_pb.js";
import { file_lineside_v1_calls } from "../src/gen/lineside/v1/calls_pb.js";
import { file_lineside_v1_dispatch } from "../src/gen/lineside/v1/dispatch_pb.js";
import { file_lineside_v1_errors } from "../src/gen/lineside/v1/errors_pb.js";
import { file_lineside_v1_quotas } from "../src/gen/lineside/v1/quotas_pb.js";
import { file_lineside_v1_runs } from "../src/gen/lineside/v1/runs_pb.js";
import { file_lineside_v1_tools } from "../src/gen/lineside/v1/tools_pb.js";

/** grpc.health.v1, as far as a scenario asks: the client itself has no use for it. */
const health = createFileRegistry(
  create(FileDescriptorProtoSchema, {
    name: "grpc/health/v1/health.proto",
    package: "grpc.health.v1",
    syntax: "proto3",
    messageType: [
      { name: "HealthCheckRequest", field: [field("service", FieldDescriptorProto_Type.STRING)] },
      {
        name: "HealthCheckResponse",
        field: [field("status", FieldDescriptorProto_Type.ENUM, ".grpc.health.v1.HealthCheckResponse.ServingStatus")],
        enumType: [{
          name: "ServingStatus",
          value: ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"].map((name, number) => ({ name, number })),
        }],
      },
    ],
    service: [{
      name: "Health",
      method: [{ name: "Check", inputType: ".grpc.health.v1.HealthCheckRequest", outputType: ".grpc.health.v1.HealthCheckResponse" }],
    }],
  }),
  () => undefined,
);

function field(name: string, type: FieldDescriptorProto_Type, typeName = "") {
  return { name, jsonName: name, number: 1, type, typeName, label: FieldDescriptorProto_Label.OPTIONAL };
}

/** Every message that an answer may hold, in an Any too. */
export const registry = createRegistry(
  file_google_rpc_error_details, file_lineside_v1_calls, file_lineside_v1_dispatch, file_lineside_v1_errors,
  file_lineside_v1_quotas, file_lineside_v1_runs, file_lineside_v1_tools, ...health,
);

/** The method `package.Service/Method`; one that nobody knows has empty messages. */
export function methodOf(path: string): DescMethodUnary {
  const [typeName, name] = path.split("/") as [string, string];
  const known = registry.getService(typeName)?.methods.find((method) => method.name === name);
  if (known) return known as DescMethodUnary;
  return { name, parent: { typeName }, input: EmptySchema, output: EmptySchema } as unknown as DescMethodUnary;
}
