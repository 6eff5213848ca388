/** Servers with the module and clients of them, until the end of the test. */

import { once } from "node:events";
import { setTimeout } from "node:timers/promises";
import type { TestContext } from "node:test";

import { Redis } from "ioredis";

import { connect } from "../../src/redis.js";
import { Server, type Settings } from "../../src/server.js";

export async function serverFor(test: TestContext, settings: Settings = {}) {
  const server = new Server(settings);
  test.after(() => server.stop("SIGKILL"));
  return server.start();
}

/** Creates a client as the application does. */
export async function clientFor(test: TestContext, ...servers: Server[]) {
  const client = connect(servers.map(({ url }) => url));
  test.after(() => client.disconnect());
  await once(client, "ready");
  return client;
}

/** Creates a client to inspect a server. */
export function inspect(test: TestContext, server: Server): Redis {
  const client = new Redis(server.url);
  client.on("error", () => {});
  test.after(() => client.disconnect());
  return client;
}

/** Returns the server's count of calls of a command. */
export async function calls(redis: Redis, command: string): Promise<number> {
  const stats = await redis.info("commandstats");
  return Number(stats.match(new RegExp(`cmdstat_${command}:calls=(\\d+)`, "i"))?.[1] ?? 0);
}

/** Waits for a condition, not for a time. */
export async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (let i = 0; i < 3000; i++) {
    if (await condition()) return;
    await setTimeout(10);
  }
  throw new Error(`never came true: ${condition}`);
}
