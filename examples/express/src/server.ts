/** Server with the module on a free port, for the example and its tests. */

import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { randomInt } from "node:crypto";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const MODULE = resolve(
  process.env["RATELIMIT_MODULE"] ?? "../../target/release/libredis_ratelimit.so",
);

/** Settings by their names in the configuration. undefined removes a default. */
export type Settings = Record<string, string | undefined>;

export class Server {
  readonly #settings: Settings;
  readonly #directory = mkdtempSync(join(tmpdir(), "ratelimit-"));
  #process: ChildProcess | undefined;
  port = 0;

  constructor(settings: Settings = {}) {
    this.#settings = settings;
    // A process may exit without stopping the server.
    process.on("exit", () => {
      this.#process?.kill("SIGKILL");
      rmSync(this.#directory, { recursive: true, force: true });
    });
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Starts the server. After a stop or a kill, it has the same port and files. */
  async start(): Promise<this> {
    if (!existsSync(MODULE)) throw new Error(`${MODULE} is missing: run make build`);
    this.port ||= await reservePort();
    const settings: Settings = {
      port: `${this.port}`,
      bind: "127.0.0.1",
      dir: this.#directory,
      save: "",
      loadmodule: MODULE,
      ...this.#settings,
    };
    const args = Object.entries(settings).flatMap(([name, value]) =>
      value === undefined ? [] : [`--${name}`, value],
    );
    const child = spawn(serverProgram(), args, { stdio: ["ignore", "pipe", "inherit"] });
    this.#process = child;
    const log: string[] = [];
    for await (const line of createInterface(child.stdout)) {
      log.push(line);
      if (line.includes("Ready to accept connections")) {
        child.stdout.resume();
        return this;
      }
    }
    throw new Error(`the server did not start:\n${log.join("\n")}`);
  }

  /** Stops the server, by default gracefully. Its files stay. */
  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    const child = this.#process;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill(signal);
    await once(child, "exit");
  }

  /** Freezes the server: it keeps its connections and answers nothing until it is resumed. */
  pause(): void {
    this.#process?.kill("SIGSTOP");
  }

  resume(): void {
    this.#process?.kill("SIGCONT");
  }
}

/** Returns the name of an installed server program. */
function serverProgram(): string {
  const candidates = [process.env["SERVER"] ?? ["redis-server", "valkey-server"]].flat();
  const program = candidates.find((name) => spawnSync(name, ["--version"]).status === 0);
  if (!program) throw new Error(`there is no ${candidates.join(" or ")}; SERVER can name one`);
  return program;
}

/**
 * Reserves a port for the lifetime of this process by binding the UDP port of the same number, as
 * tests/support/ports.py does. The server listens on the TCP port.
 */
async function reservePort(): Promise<number> {
  for (;;) {
    const port = randomInt(11_000, 21_000);
    const reservation = createSocket("udp4").unref();
    try {
      reservation.bind({ port, address: "127.0.0.1", exclusive: true });
      await once(reservation, "listening");
    } catch {
      reservation.close();
      continue;
    }
    // A node of a cluster also listens on the port plus 10,000.
    if ((await isFree(port)) && (await isFree(port + 10_000))) return port;
    reservation.close();
  }
}

async function isFree(port: number): Promise<boolean> {
  const probe = createServer().listen(port, "127.0.0.1");
  try {
    await once(probe, "listening");
  } catch {
    return false;
  }
  await once(probe.close(), "close");
  return true;
}
