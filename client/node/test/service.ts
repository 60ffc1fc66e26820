// The real service that tests call, and a relay that cuts connections to it.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";
import type { AddressInfo } from "node:net";
import { createInterface } from "node:readline";

const DIRECTORY = new URL("../../", import.meta.url).pathname; // of this client

/** A running service. */
export class Service {
  private constructor(private readonly process: ChildProcess, readonly address: string) {}

  /** Starts the service of this checkout; LINESIDE_SERVICE names another executable. */
  static async start(config = "testdata/lineside.toml"): Promise<Service> {
    const command = process.env["LINESIDE_SERVICE"] ?? "../../.venv/bin/lineside-service";
    const child = spawn(command, ["serve", "--config", config], { cwd: DIRECTORY, stdio: ["ignore", "pipe", "inherit"] });
    const lines = createInterface({ input: child.stdout! });
    const [line] = (await Promise.race([once(lines, "line"), once(child, "exit")])) as [unknown];
    const found = /SERVING on (\S+?):? /.exec(String(line));
    if (!found) throw new Error(`the service did not start: ${String(line)}; \`make setup\` in the project's root installs it`);
    return new Service(child, found[1]!);
  }

  async stop(): Promise<void> {
    const gone = once(this.process, "exit");
    this.process.kill("SIGTERM");
    await gone;
  }
}

/** Stands between client and service and cuts its first connections when the service begins to answer. */
export class Relay {
  cuts = 0;
  private readonly sockets = new Set<Socket>();
  private constructor(private readonly server: Server, private readonly wanted: number) {}

  static async start(service: string, cuts: number): Promise<Relay> {
    const server = createServer();
    const relay = new Relay(server, cuts);
    const [host, port] = service.split(":") as [string, string];
    server.on("connection", (near) => relay.pass(near, connect(Number(port), host)));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return relay;
  }

  get address(): string {
    return `127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  stop(): void {
    this.server.close();
    for (const socket of this.sockets) socket.destroy();
  }

  private pass(near: Socket, far: Socket): void {
    for (const [socket, other] of [[near, far], [far, near]] as const) {
      this.sockets.add(socket);
      socket.on("error", () => undefined); // a cut on purpose
      socket.on("close", () => other.destroy());
    }
    near.pipe(far);
    far.on("data", (read: Buffer) => {
      if (this.cuts < this.wanted && hasHeaders(read)) {
        this.cuts++;
        near.destroy();
      } else near.write(read);
    });
  }
}

/** Whether HTTP/2 frames with an answer's headers begin in what was read: the call has run by then. */
function hasHeaders(read: Buffer): boolean {
  for (let rest = read; rest.length >= 9; rest = rest.subarray(9 + rest.readUIntBE(0, 3))) {
    if (rest[3] === 1) return true;
  }
  return false;
}
