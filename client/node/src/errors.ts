// How a call ended that has no answer.

import { type DescMessage, fromBinary, type MessageShape } from "@bufbuild/protobuf";
import { anyUnpack, durationMs } from "@bufbuild/protobuf/wkt";
import { type Metadata, type ServiceError, status as codes } from "@grpc/grpc-js";

import { RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { type Status, StatusSchema } from "./gen/google/rpc/status_pb.js";
import { type DispatchError, DispatchErrorSchema, ErrorKind, Outcome } from "./gen/lineside/v1/errors_pb.js";

/** What gRPC says when there was no connection to send on. If it words it otherwise, the outcome reads UNKNOWN. */
const NEVER_SENT = ["No connection established", "Name resolution failed"];
const REFUSED_AT_THE_DOOR = [codes.UNAUTHENTICATED, codes.PERMISSION_DENIED, codes.UNIMPLEMENTED];

/** The one error of this client. */
export class LinesideError extends Error {
  override readonly name = "LinesideError";
  /** gRPC's code. */
  readonly code: codes;
  /** UNSPECIFIED when the error was made by gRPC or something between: a lost connection, a deadline of this side. */
  readonly kind: ErrorKind;
  /** Whether the tool took effect: NOT_RUN, DONE, UNKNOWN or IN_PROGRESS. Look here before sending anything again. */
  readonly outcome: Outcome;
  /** Attempts that the service started. */
  readonly attempts: number;
  /** The earliest time, from now, at which a repeat can help; undefined when nobody knows. */
  readonly retryDelayMs: number | undefined;
  /** The service's own account: call id, trace id, what a plan should do next. Undefined without one. */
  readonly dispatch: DispatchError | undefined;
  /** What the service says about sending again; negative: never. */
  readonly pushbackMs: number | undefined;
  /** The whole status; `detail` reads its details. */
  readonly status: Status;

  constructor(status: Status, known: { outcome?: Outcome; pushbackMs?: number | undefined; cause?: unknown } = {}) {
    super(status.message, { cause: known.cause });
    this.status = status;
    this.code = status.code;
    this.pushbackMs = known.pushbackMs;
    this.dispatch = this.detail(DispatchErrorSchema);
    this.kind = this.dispatch?.kind ?? ErrorKind.UNSPECIFIED;
    this.attempts = this.dispatch?.attempts ?? 0;
    this.outcome = known.outcome ?? this.dispatch?.outcome ?? outcomeOf(status);
    const retry = this.detail(RetryInfoSchema)?.retryDelay;
    this.retryDelayMs = retry && durationMs(retry);
  }

  /** A detail by its type, such as BadRequestSchema, QuotaFailureSchema, ErrorInfoSchema; undefined without one. */
  detail<T extends DescMessage>(type: T): MessageShape<T> | undefined {
    for (const packed of this.status.details) {
      const found = anyUnpack(packed, type);
      if (found) return found;
    }
    return undefined;
  }

  /** Whether the connection broke, or never came to be: nobody of the service said anything. */
  get isLost(): boolean {
    return this.code === codes.UNAVAILABLE && !this.dispatch;
  }

  /**
   * Whether it is a CANCELLED without a word why: gRPC turned the call away before the service saw it, or a stopping
   * service let it drop; or this side cancelled, which its signal knows.
   */
  get isDropped(): boolean {
    return this.code === codes.CANCELLED && !this.dispatch;
  }

  /** The same error with another outcome: for what is known only on this side of the wire. */
  withOutcome(outcome: Outcome): LinesideError {
    return new LinesideError(this.status, { outcome, pushbackMs: this.pushbackMs, cause: this.cause });
  }

  /** The error as it reads when an earlier sending was lost on its way, its outcome open. */
  sinceLost(): LinesideError {
    const isOfAnExecution = Boolean(this.dispatch?.callId);
    return isOfAnExecution || this.outcome !== Outcome.NOT_RUN ? this : this.withOutcome(Outcome.UNKNOWN);
  }
}

/** The error of a failed RPC: the trailers' details where the service gave some, gRPC's own words else. */
export function fromRpc(failed: ServiceError): LinesideError {
  return new LinesideError(detailed(failed) ?? bare(failed.code, failed.details), {
    pushbackMs: pushbackMs(failed.metadata),
    cause: failed,
  });
}

/** A status that nobody but gRPC, or this client, has said. */
export function bare(code: codes, message: string): Status {
  return { $typeName: "google.rpc.Status", code, message, details: [] };
}

/** A number in a trailer; undefined without one. */
export function trailer(trailers: Metadata, name: string): number | undefined {
  const [value] = trailers.get(name);
  return value === undefined ? undefined : Number(value);
}

function detailed(failed: ServiceError): Status | undefined {
  const [packed] = failed.metadata.get("grpc-status-details-bin");
  if (!(packed instanceof Buffer)) return undefined;
  try {
    return fromBinary(StatusSchema, packed);
  } catch {
    return undefined; // of something in between; then only the code speaks
  }
}

function pushbackMs(trailers: Metadata): number | undefined {
  const said = trailer(trailers, "grpc-retry-pushback-ms");
  return Number.isNaN(said) ? -1 : said; // gRFC A6: a value that cannot be read means "do not"
}

/** What a bare status leaves known: a request that was never sent or was refused before it was read did not run. */
function outcomeOf(status: Status): Outcome {
  const isUnsent =
    status.code === codes.UNAVAILABLE && NEVER_SENT.some((start) => status.message.startsWith(start));
  return isUnsent || REFUSED_AT_THE_DOOR.includes(status.code) ? Outcome.NOT_RUN : Outcome.UNKNOWN;
}
