// One connection to a service: address, TLS, token, the channel's options, and RPCs by the generated descriptors.

import { setMaxListeners } from "node:events";
import { readFileSync } from "node:fs";
import { BlockList, isIP } from "node:net";

import {
  type DescMessage, type DescMethodBiDiStreaming, type DescMethodUnary, fromBinary, type MessageShape, toBinary,
} from "@bufbuild/protobuf";
import {
  type CallOptions, type ChannelOptions, Client as Channel, type ClientDuplexStream, credentials, Metadata,
} from "@grpc/grpc-js";
import type { Context } from "@opentelemetry/api";

import { fromRpc } from "./errors.js";
import { traceOf } from "./trace.js";

/** Where the service is and who calls it. */
export interface ConnectOptions {
  /** true: the system's authorities. `ca`: these instead; `cert` and `key`: the caller's own (mTLS). All PEM. */
  tls?: boolean | { ca?: Buffer; cert?: Buffer; key?: Buffer };
  /** Bearer token. Over plaintext only to this machine itself, unless `insecureToken`. */
  token?: string;
  insecureToken?: boolean;
  /** Further options of gRPC's channel; they win over this client's own. */
  channel?: ChannelOptions;
}

/** What one RPC may say. */
export interface RpcOptions {
  /** Time for the RPC. */
  timeoutMs?: number;
  /** Aborting it gives the RPC up. */
  signal?: AbortSignal;
  /** Further headers. */
  metadata?: Record<string, string>;
  /** The OpenTelemetry context whose span goes along, before headers that say one; the active one if nothing is said. */
  context?: Context;
}

const MAX_MESSAGE_BYTES = 16 << 20; // what the service takes in one message
// The one that Lineside publishes: gRPC's own retries for reads, none for Dispatch, where a repeated request could
// repeat an effect. A test keeps it equal to the Python client's. What gRPC repeats by itself all the same are requests
// that the server refused unread (REFUSED_STREAM).
const SERVICE_CONFIG = readFileSync(new URL("../../service_config.json", import.meta.url), "utf8");

/** A channel and the headers that every RPC carries. It connects at its first RPC. */
export class Connection {
  readonly #channel: Channel;
  readonly #token: string | undefined;

  constructor(target: string, options: ConnectOptions) {
    checkToken(target, options);
    this.#token = options.token;
    const tls = options.tls === true ? {} : options.tls;
    const secure = tls ? credentials.createSsl(tls.ca, tls.key, tls.cert) : credentials.createInsecure();
    this.#channel = new Channel(target, secure, {
      "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
      "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
      "grpc.keepalive_time_ms": 30_000,
      "grpc.keepalive_timeout_ms": 20_000,
      // gRPC's own 1 s growing to 120 s is for crowds; a service that restarts is back within seconds.
      "grpc.initial_reconnect_backoff_ms": 100,
      "grpc.max_reconnect_backoff_ms": 2_000,
      "grpc.service_config": SERVICE_CONFIG,
      "grpc.service_config_disable_resolution": 1, // no policy out of DNS: it might repeat Dispatch
      ...options.channel,
    });
  }

  /** Ends the connection. RPCs under way go on to their end. */
  close(): void {
    this.#channel.close();
  }

  /** One request, one response. Rejects with a LinesideError. */
  unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>, request: MessageShape<I>, options: RpcOptions,
  ): Promise<MessageShape<O>> {
    return new Promise((resolve, reject) => {
      const rpc = this.#channel.makeUnaryRequest(
        pathOf(method), writer(method.input), reader(method.output), request, this.#metadata(options), settings(options),
        (failed, response) => {
          forget();
          if (failed) reject(fromRpc(failed));
          else resolve(response as MessageShape<O>);
        },
      );
      const forget = onAbort(options.signal, () => rpc.cancel());
    });
  }

  /** A stream both ways; its signal and its errors are its caller's to look after. */
  stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodBiDiStreaming<I, O>, options: RpcOptions,
  ): ClientDuplexStream<MessageShape<I>, MessageShape<O>> {
    return this.#channel.makeBidiStreamRequest(
      pathOf(method), writer(method.input), reader(method.output), this.#metadata(options), settings(options),
    );
  }

  #metadata(options: RpcOptions): Metadata {
    const metadata = new Metadata();
    if (this.#token !== undefined) metadata.set("authorization", `Bearer ${this.#token}`);
    for (const [name, value] of Object.entries(options.metadata ?? {})) metadata.set(name, value);
    for (const [name, value] of Object.entries(traceOf(options.context) ?? {})) if (value) metadata.set(name, value);
    return metadata;
  }
}

/** Has `cancel` called when the signal aborts; what it returns undoes that. */
export function onAbort(signal: AbortSignal | undefined, cancel: () => void): () => void {
  if (!signal) return () => undefined;
  setMaxListeners(0, signal); // one signal may well be for many calls at once
  signal.addEventListener("abort", cancel);
  return () => signal.removeEventListener("abort", cancel);
}

function pathOf(method: DescMethodUnary | DescMethodBiDiStreaming): string {
  return `/${method.parent.typeName}/${method.name}`;
}

function writer<T extends DescMessage>(type: T): (message: MessageShape<T>) => Buffer {
  return (message) => Buffer.from(toBinary(type, message));
}

function reader<T extends DescMessage>(type: T): (bytes: Buffer) => MessageShape<T> {
  return (bytes) => fromBinary(type, bytes);
}

function settings(options: RpcOptions): CallOptions {
  return options.timeoutMs === undefined ? {} : { deadline: Date.now() + options.timeoutMs };
}

function checkToken(target: string, { token, tls, insecureToken }: ConnectOptions): void {
  if (token === undefined) return;
  if (!/^[!-~]+$/.test(token)) throw new TypeError("token: must be printable ASCII without spaces, and not empty");
  if (!tls && !insecureToken && !isLoopback(target)) {
    throw new TypeError(
      `a token would travel in plaintext to ${target}: use TLS, or say insecureToken if the network in between is trusted`,
    );
  }
}

const loopback = new BlockList();
loopback.addSubnet("127.0.0.0", 8, "ipv4");
loopback.addAddress("::1", "ipv6");

/** Whether every address of a gRPC target is this machine itself. */
export function isLoopback(target: string): boolean {
  if (/^unix(-abstract)?:/.test(target)) return true;
  const addresses = target.replace(/^(dns|ipv4|ipv6):(\/\/[^/]*\/)?/, "");
  return addresses.split(",").every((address) => {
    const host = address.replace(/^\[(.*)\](:\d+)?$/, "$1").replace(/^([^:]*):\d+$/, "$1");
    if (host.toLowerCase() === "localhost") return true;
    const family = isIP(host);
    return family !== 0 && loopback.check(host, family === 6 ? "ipv6" : "ipv4");
  });
}
