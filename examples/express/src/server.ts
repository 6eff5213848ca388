/** A server with the module on a free port: for trying the example, and for its tests. */

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

/** Settings by their names in the configuration; undefined removes one. */
export type Settings = Record<string, string | undefined>;

export class Server {
  readonly #settings: Settings;
  readonly #directory = mkdtempSync(join(tmpdir(), "ratelimit-"));
  #process: ChildProcess | undefined;
  port = 0;

  constructor(settings: Settings = {}) {
    this.#settings = settings;
    // Also when the process ends without having stopped it.
    process.on("exit", () => {
      this.#process?.kill("SIGKILL");
      rmSync(this.#directory, { recursive: true, force: true });
    });
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Started again after a stop or a kill, it has the same port and the same files. */
  async start(): Promise<this> {
    if (!existsSync(MODULE)) throw new Error(`${MODULE} is not there: make build makes it`);
    this.port ||= await reservePort();
    const settings: Settings = {
      port: `${this.port}`,
      bind: "127.0.0.1",
      dir: this.#directory,
      save: "",
      loadmodule: MODULE,
      ...this.#settings,
    };
    const words = Object.entries(settings).flatMap(([name, value]) =>
      value === undefined ? [] : [`--${name}`, value],
    );
    const child = spawn(binary(), words, { stdio: ["ignore", "pipe", "inherit"] });
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

  /** In good order, by default: what is in its append-only file stays. */
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

function binary(): string {
  const candidates = [process.env["SERVER"] ?? ["redis-server", "valkey-server"]].flat();
  const found = candidates.find((name) => spawnSync(name, ["--version"]).status === 0);
  if (!found) throw new Error(`there is no ${candidates.join(" or ")}; SERVER can name one`);
  return found;
}

/**
 * A port that no other fixture gets as long as this process lives, as in tests/support/ports.py:
 * whoever has bound the UDP port of the same number has reserved it. The server listens on TCP's.
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
    // A node of a cluster listens 10,000 above it, too.
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
