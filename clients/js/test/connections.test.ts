/**
 * Connections of clients: never opened, opened to a port without TLS, and written to once a turn.
 */

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { Redis } from "ioredis";
import * as redis from "redis";
import * as redis4 from "redis4";
import * as redis5 from "redis5";
import { Limiter, SetupError, UnavailableError, fixed, type Client } from "redis-ratelimit-client";

import { KINDS, clientFor, clusterClientFor } from "./support/clients.js";
import { clusterFor, lookInto, serverFor, type Scope } from "./support/server.js";

const server = await serverFor({ after });
const cluster = await clusterFor({ after }, { primaries: 2 });
const LIMIT = fixed(1000, "1h");

interface Unconnected {
  on(event: "error", listener: () => void): unknown;
  connect(): Promise<unknown>;
  destroy?(): unknown;
  disconnect(): unknown;
}

/** Factories of clients that are not connected. */
const unconnected: Record<string, () => unknown> = {};
for (const [name, library] of Object.entries({ 4: redis4, 5: redis5, 6: redis })) {
  const { createClient, createCluster, createClientPool } = library as typeof redis;
  const rootNodes = cluster.primaries.map(({ url }) => ({ url }));
  unconnected[`node-redis ${name}`] = () => createClient({ url: server.url });
  unconnected[`node-redis ${name}, cluster`] = () => createCluster({ rootNodes });
  if (name !== "4") {
    unconnected[`node-redis ${name}, pool`] = () => createClientPool({ url: server.url });
  }
}

for (const [name, make] of Object.entries(unconnected)) {
  test(`${name}: client that was never connected is a setup error`, async (test) => {
    const client = make() as Unconnected;
    client.on("error", () => {});
    const log: string[] = [];
    const options = { connectTimeout: "20ms", timeout: 30 } as const;
    const limiter = new Limiter(client as unknown as Client, {
      ...options,
      log: (line) => void log.push(line),
    });
    for (let i = 0; i < 5; i++) {
      await assert.rejects(limiter.take("k", LIMIT), (error: Error) => {
        return error instanceof SetupError && /await client\.connect\(\)/.test(error.message);
      });
    }
    assert.equal(log.length, 1);
    assert.match(log[0]!, /never connected/);
    await client.connect();
    test.after(() => (client.destroy ?? client.disconnect).call(client));
    assert.equal((await limiter.take("k", LIMIT)).source, "server");
  });
}

for (const [name, open] of Object.entries({
  ioredis: (test: Scope) => {
    const client = new Redis({ ...server.at, tls: {}, retryStrategy: () => 10 });
    test.after(() => client.disconnect());
    return client.on("error", () => {});
  },
  "node-redis": (test: Scope) => {
    const client = redis.createClient({ url: server.url.replace("redis:", "rediss:") });
    client
      .on("error", () => {})
      .connect()
      .catch(() => {});
    test.after(() => client.destroy());
    return client;
  },
})) {
  test(`${name}: TLS to a port without TLS is reported as such`, async (test) => {
    const limiter = new Limiter(open(test), {
      onOutage: "raise",
      timeout: "20ms",
      connectTimeout: "20ms",
      log: () => {},
    });
    await assert.rejects(limiter.check(), (error: Error) => {
      return error instanceof UnavailableError && /TLS.*redis:\/\//.test(error.message);
    });
  });
}

test("ioredis: calls are written under fake timers", async (test) => {
  const client = lookInto(test, server);
  const limiter = new Limiter(client, { timeout: 30 });
  await limiter.take("faked", LIMIT);
  test.mock.timers.enable({ apis: ["setImmediate"] });
  assert.equal((await limiter.take("faked", LIMIT)).source, "server");
});

const CALLS = 50;

for (const kind of KINDS) {
  test(`${kind.name}: takes of one turn are one write`, async (test) => {
    const admin = lookInto(test, server);
    const reads = async () =>
      Number(/total_reads_processed:(\d+)/.exec(await admin.info("stats"))![1]);
    const limiter = new Limiter(await clientFor(test, kind, server.port), { timeout: 30 });
    await limiter.take("warm", LIMIT);
    const before = await reads();
    await Promise.all(Array.from({ length: CALLS }, (_, index) => limiter.take(`${index}`, LIMIT)));
    const counted = (await reads()) - before;
    assert.ok(counted <= 5, `${counted} reads`);
  });
}

for (const kind of KINDS.filter(({ isIoredis }) => isIoredis)) {
  test(`${kind.name}: takes of one turn are one write to each node of a cluster`, async (test) => {
    const nodes = cluster.primaries.map((node) => lookInto(test, node));
    const reads = async () => {
      const stats = await Promise.all(nodes.map((node) => node.info("stats")));
      const counts = stats.map((text) => Number(/total_reads_processed:(\d+)/.exec(text)![1]));
      return counts.reduce((sum, count) => sum + count, 0);
    };
    const limiter = new Limiter(await clusterClientFor(test, kind, cluster), { timeout: 30 });
    const takes = (round: string) =>
      Promise.all(
        Array.from({ length: CALLS }, (_, index) => limiter.take(`${round}${index}`, LIMIT)),
      );
    await takes("warm");
    const before = await reads();
    await takes("");
    // Nodes of a cluster talk to each other, too.
    const counted = (await reads()) - before;
    assert.ok(counted <= 15, `${counted} reads`);
  });
}
