/** Servers with the module, alone and as a cluster, for the duration of a test. */

import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { randomInt } from "node:crypto";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout } from "node:timers/promises";

import { Redis } from "ioredis";

const REPOSITORY = resolve(import.meta.dirname, "../../../..");
const MODULE =
  process.env["RATELIMIT_MODULE"] ?? join(REPOSITORY, "target/release/libredis_ratelimit.so");

/** Settings by their names in a configuration. */
export type Settings = Record<string, string>;

/** Lifetime of a fixture: one test, or by node:test's own `after` a file of tests. */
export interface Scope {
  after(end: () => unknown): void;
}

const SERVERS = new Set<Server>();
// Also if the process ends without having stopped them.
process.on("exit", () => {
  for (const server of SERVERS) server.remove();
});

export class Server {
  readonly #settings: Settings;
  readonly #environment: NodeJS.ProcessEnv;
  readonly #module: readonly string[];
  readonly #directory = mkdtempSync(join(tmpdir(), "ratelimit-"));
  #process: ChildProcess | undefined;
  port = 0;

  /** Creates a server. `args` are the module's arguments; with null the module is not loaded. */
  constructor(
    settings: Settings = {},
    environment: NodeJS.ProcessEnv = {},
    module: readonly string[] | null = [],
  ) {
    this.#settings = settings;
    this.#environment = environment;
    this.#module = module === null ? [] : ["--loadmodule", MODULE, "policies", "yes", ...module];
    SERVERS.add(this);
  }

  remove(): void {
    this.#process?.kill("SIGKILL");
    rmSync(this.#directory, { recursive: true, force: true });
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  get at(): { host: string; port: number } {
    return { host: "127.0.0.1", port: this.port };
  }

  /** Starts the server. After a restart it has the same port. */
  async start(): Promise<this> {
    if (!existsSync(MODULE)) throw new Error(`${MODULE} is not there: make build makes it`);
    this.port ||= await reservePort();
    const settings = {
      port: `${this.port}`,
      bind: "127.0.0.1",
      dir: this.#directory,
      save: "",
      ...this.#settings,
    };
    const words = Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]);
    const child = spawn(binary(), [...words, ...this.#module], {
      stdio: ["ignore", "pipe", "inherit"],
      env: { ...process.env, ...this.#environment },
    });
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

  async stop(): Promise<void> {
    const child = this.#process;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill("SIGKILL");
    await once(child, "exit");
  }

  /**
   * Suspends the server, which keeps its connections but replies to nothing until it is resumed.
   */
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
 * Reserves a port that no other fixture gets while this process lives, as in
 * tests/support/ports.py: binding the UDP port of the same number reserves it. The server listens
 * on the TCP port.
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
    // A node of a cluster also listens on a port 10,000 above.
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

export async function serverFor(
  test: Scope,
  settings?: Settings,
  module?: readonly string[] | null,
): Promise<Server> {
  return started(test, new Server(settings, {}, module));
}

async function started(test: Scope, server: Server): Promise<Server> {
  test.after(() => server.stop());
  return server.start();
}

/** Clock of a server, which stands still until a test moves it. */
export class Clock {
  readonly #file: number;
  #us = 1_700_000_000_000_000n;

  constructor(path: string) {
    writeFileSync(path, Buffer.alloc(8));
    this.#file = openSync(path, "r+");
    this.advance(0);
  }

  advance(ms: number): void {
    this.#us += BigInt(Math.round(ms * 1000));
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64LE(this.#us);
    writeSync(this.#file, bytes, 0, 8, 0);
  }

  close(): void {
    closeSync(this.#file);
  }
}

/**
 * Starts a server whose clock the test sets, through the library that the project's own tests
 * preload.
 */
export async function clockedServerFor(test: Scope): Promise<{ server: Server; clock: Clock }> {
  const directory = mkdtempSync(join(tmpdir(), "ratelimit-clock-"));
  const library = join(directory, "clock.so");
  const source = join(REPOSITORY, "tests/support/clock.c");
  const built = spawnSync("cc", ["-O2", "-shared", "-fPIC", source, "-o", library]);
  if (built.status !== 0) throw new Error(`${built.stderr}`);
  const file = join(directory, "clock");
  const clock = new Clock(file);
  test.after(() => {
    clock.close();
    rmSync(directory, { recursive: true });
  });
  const environment = { LD_PRELOAD: library, RATELIMIT_TEST_CLOCK: file };
  return { server: await started(test, new Server({}, environment)), clock };
}

const SLOTS = 16384;

export interface Cluster {
  readonly primaries: readonly Server[];
  readonly replicas: readonly Server[];
}

/** Starts a cluster of primaries that share the slots, with replicas of the first one. */
export async function clusterFor(
  test: Scope,
  { primaries: count = 3, replicas: replicaCount = 0 } = {},
): Promise<Cluster> {
  const servers = await Promise.all(
    Array.from({ length: count + replicaCount }, () =>
      serverFor(test, { "cluster-enabled": "yes", "cluster-node-timeout": "30000" }),
    ),
  );
  const nodes = servers.map((server) => lookInto(test, server));
  const primaries = servers.slice(0, count);
  await Promise.all(
    primaries.map(async (_, index) => {
      const first = Math.ceil((index * SLOTS) / count);
      const next = Math.ceil(((index + 1) * SLOTS) / count);
      const slots = Array.from({ length: next - first }, (_, slot) => first + slot);
      await nodes[index]!.call("CLUSTER", "ADDSLOTS", ...slots);
      // With distinct epochs from the start, the nodes need not agree on them first.
      await nodes[index]!.call("CLUSTER", "SET-CONFIG-EPOCH", index + 1);
    }),
  );
  for (const node of nodes) {
    for (const { port } of servers) await node.call("CLUSTER", "MEET", "127.0.0.1", port);
  }
  const isWhole = async (node: Redis) => {
    const info = `${await node.call("CLUSTER", "INFO")}`;
    return (
      info.includes("cluster_state:ok") && info.includes(`cluster_known_nodes:${servers.length}`)
    );
  };
  for (const node of nodes) await until(() => isWhole(node));
  const id = `${await nodes[0]!.call("CLUSTER", "MYID")}`;
  for (const node of nodes.slice(count)) {
    await node.call("CLUSTER", "REPLICATE", id);
    await until(async () => (await node.info("replication")).includes("master_link_status:up"));
  }
  // A replica is announced to clients only after it has data, and clients ask any node.
  await nodes[0]!.publish("anything", "");
  const replicasOf = async (node: Redis) => {
    const ranges = (await node.call("CLUSTER", "SLOTS")) as [number, number, ...unknown[]][];
    return ranges.reduce((sum, [, , , ...replicas]) => sum + replicas.length, 0);
  };
  for (const node of nodes) await until(async () => (await replicasOf(node)) === replicaCount);
  return { primaries, replicas: servers.slice(count) };
}

/** Opens a plain client for inspecting a server. */
export function lookInto(test: Scope, { port }: Pick<Server, "port">): Redis {
  const client = new Redis({ port, host: "127.0.0.1" });
  client.on("error", () => {});
  test.after(() => client.disconnect());
  return client;
}

/** Returns the number of the module's commands that a server executed. */
export async function calls(redis: Redis): Promise<number> {
  const stats = await redis.info("commandstats");
  const counts = [...stats.matchAll(/cmdstat_rl\.\w+:calls=(\d+)/gi)].map(([, n]) => Number(n));
  return counts.reduce((sum, n) => sum + n, 0);
}

/** Returns the number of calls that the servers redirected. */
export async function redirects(test: Scope, cluster: Cluster): Promise<number> {
  let sum = 0;
  for (const server of [...cluster.primaries, ...cluster.replicas]) {
    const stats = await lookInto(test, server).info("errorstats");
    sum += Number(/errorstat_MOVED:count=(\d+)/.exec(stats)?.[1] ?? 0);
  }
  return sum;
}

/** Polls until a condition is true. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (let i = 0; i < 3000; i++) {
    if (await condition()) return;
    await setTimeout(10);
  }
  throw new Error(`never came true: ${condition}`);
}
