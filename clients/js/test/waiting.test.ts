/** Blocking calls wait in the server's queue, on a connection of their own. */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout } from "node:timers/promises";

import { Redis } from "ioredis";
import { createClientPool } from "redis";
import {
  DeniedError,
  Lease,
  Limiter,
  UnavailableError,
  concurrency,
  fixed,
  type Client,
} from "redis-ratelimit-client";

import { KINDS, clientFor, clusterClientFor } from "./support/clients.js";
import { clockedServerFor, clusterFor, lookInto, serverFor, until } from "./support/server.js";

const PLACE = concurrency(1, "1h");
const PATIENT = { timeout: 30, onOutage: "raise", log: () => {} } as const;

const server = await serverFor({ after });
const cluster = await clusterFor({ after });
const admin = lookInto({ after }, server);

async function waiting(redis: Redis): Promise<number> {
  return Number(/blocked_clients:(\d+)/.exec(await redis.info("clients"))![1]);
}

/**
 * Takes the only lease, and returns a counter of later RL.ACQUIRE calls, as the module counts them:
 * the server counts blocking calls at their begin or their end, depending on its version.
 */
async function take(redis: Redis, key: string): Promise<() => Promise<number>> {
  await redis.call("RL.ACQUIRE", key, "1", "1h", "another");
  const calls = async () => {
    const stats = await redis.info("ratelimit_commands");
    return Number(/ratelimit_rl\.acquire:calls=(\d+)/.exec(stats)![1]);
  };
  const before = await calls();
  return async () => (await calls()) - before;
}

const release = (redis: Redis, key: string) => redis.call("RL.RELEASE", key, "another");

const killAll = (redis: Redis) => redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");

async function isWaitedFor(redis: Redis, count = 1): Promise<void> {
  await until(async () => (await waiting(redis)) === count);
}

for (const kind of KINDS) {
  test(`${kind.name}: one call waits for a lease, and delays no other call`, async (test) => {
    const key = `one:${kind.name}`;
    // The timeout of a call may be shorter than the wait.
    const client = await clientFor(test, kind, server.port);
    const limiter = new Limiter(client, { ...PATIENT, timeout: "20s" });
    const waits = await take(admin, key);
    const lease = limiter.lease(key, PLACE, { wait: Infinity });
    await isWaitedFor(admin);
    assert.equal((await limiter.take(`other:${kind.name}`, fixed(1, 60))).source, "server");
    await release(admin, key);
    await (await lease).release();
    assert.equal(await waits(), 1);
    // The connection is kept for the next call.
    const connections = await total(admin);
    await take(admin, key);
    const next = limiter.lease(key, PLACE, { wait: "1h" });
    await isWaitedFor(admin);
    await release(admin, key);
    await (await next).release();
    assert.ok((await total(admin)) <= connections + 1);
  });

  test(`${kind.name}: waiter reconnects after a lost connection`, async (test) => {
    const key = `lost:${kind.name}`;
    const limiter = new Limiter(await clientFor(test, kind, server.port), PATIENT);
    const waits = await take(admin, key);
    const lease = limiter.lease(key, PLACE, { wait: Infinity });
    for (const times of [2, 3]) {
      await isWaitedFor(admin);
      await killAll(admin);
      await until(async () => (await waits()) === times);
    }
    await isWaitedFor(admin);
    await release(admin, key);
    await (await lease).release();
  });

  test(`${kind.name}: cancelled waiter leaves the queue`, async (test) => {
    const key = `stopped:${kind.name}`;
    const limiter = new Limiter(await clientFor(test, kind, server.port), PATIENT);
    await take(admin, key);
    const controller = new AbortController();
    const lease = limiter.lease(key, PLACE, { wait: "1h", signal: controller.signal });
    await isWaitedFor(admin);
    controller.abort(new Error("enough"));
    await assert.rejects(lease, { message: "enough" });
    await isWaitedFor(admin, 0);
    await release(admin, key);
    // And no holder has the lease.
    await (await limiter.lease(key, PLACE)).release();
  });

  test(`${kind.name}: waiter in a cluster`, async (test) => {
    const client = await clusterClientFor(test, kind, cluster);
    const limiter = new Limiter(client, PATIENT);
    for (const name of ["a", "b", "c", "d"]) {
      const key = `${kind.name}:${name}`;
      const first = await limiter.lease(key, PLACE);
      const second = limiter.lease(key, PLACE, { wait: "1h" });
      const nodes = cluster.primaries.map((primary) => lookInto(test, primary));
      await until(async () => (await Promise.all(nodes.map(waiting))).includes(1));
      await first.release();
      await (await second).release();
    }
  });
}

async function total(redis: Redis): Promise<number> {
  return Number(/total_connections_received:(\d+)/.exec(await redis.info("stats"))![1]);
}

test("waiters of a node-redis pool", async (test) => {
  const pool = createClientPool({ url: `redis://127.0.0.1:${server.port}` }, { maximum: 2 });
  pool.on("error", () => {});
  await pool.connect();
  test.after(() => pool.destroy());
  const limiter = new Limiter(pool as unknown as Client, PATIENT);
  await take(admin, "pool");
  const leases = Array.from({ length: 4 }, () =>
    limiter.lease("pool", PLACE, { wait: "1h" }).then((lease) => lease.release()),
  );
  // More waiters than the pool has connections, and one is left for other calls.
  await isWaitedFor(admin, 4);
  assert.equal((await limiter.take("beside", fixed(1, 60))).source, "server");
  await release(admin, "pool");
  await Promise.all(leases);
});

test("waiters are granted in order, by one call each", async (test) => {
  const limiter = new Limiter(lookInto(test, server), PATIENT);
  const waits = await take(admin, "order");
  const order: number[] = [];
  const waiters: Promise<void>[] = [];
  for (let index = 0; index < 6; index++) {
    const work = async () => {
      const lease = await limiter.lease("order", PLACE, { wait: Infinity });
      order.push(index);
      await lease.release();
    };
    waiters.push(work());
    await isWaitedFor(admin, index + 1);
  }
  await release(admin, "order");
  await Promise.all(waiters);
  assert.deepEqual(order, [0, 1, 2, 3, 4, 5]);
  assert.equal(await waits(), 6);
});

test("waiter is denied after its timeout", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const admin = lookInto(test, server);
  // The client has a command timeout of its own.
  const client = new Redis({ port: server.port, host: "127.0.0.1", commandTimeout: 5000 });
  test.after(() => client.disconnect());
  const limiter = new Limiter(client, PATIENT);
  const waits = await take(admin, "pool");
  const lease = limiter.lease("pool", PLACE, { wait: "10m" });
  await isWaitedFor(admin);
  clock.advance(599_000);
  assert.equal(await waiting(admin), 1);
  clock.advance(2_000);
  await assert.rejects(lease, (error) => {
    assert.ok(error instanceof DeniedError);
    assert.ok(error.decision.wait! > 2990 && error.decision.wait! < 3000);
    return true;
  });
  assert.equal(await waits(), 1);
});

test("wait may exceed the timeout of a call", async (test) => {
  const client = new Redis({ port: server.port, host: "127.0.0.1", commandTimeout: 50 });
  client.on("error", () => {});
  test.after(() => client.disconnect());
  const limiter = new Limiter(client, { ...PATIENT, timeout: 0.05 });
  const waits = await take(admin, "longer");
  const lease = limiter.lease("longer", PLACE, { wait: "1h" });
  await isWaitedFor(admin);
  // At least this long, however busy the machine is.
  await setTimeout(200);
  assert.equal(await waiting(admin), 1);
  await release(admin, "longer");
  assert.equal((await lease).decision.source, "server");
  assert.equal(await waits(), 1);
});

test("cost above the limit does not wait", async (test) => {
  const limiter = new Limiter(lookInto(test, server), PATIENT);
  const never = limiter.lease("never", PLACE, { cost: 2, wait: Infinity });
  await assert.rejects(never, ({ decision }: DeniedError) => decision.wait === null);
});

test("waiter continues with the remaining time on the next connection", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const admin = lookInto(test, server);
  let now = 0;
  const limiter = new Limiter(lookInto(test, server), { ...PATIENT, now: () => now });
  const waits = await take(admin, "pool");
  const lease = limiter.lease("pool", PLACE, { wait: 10 });
  await isWaitedFor(admin);
  now += 7000;
  clock.advance(7000);
  await killAll(admin);
  await until(async () => (await waits()) === 2 && (await waiting(admin)) === 1);
  clock.advance(2900);
  assert.equal(await waiting(admin), 1);
  clock.advance(200);
  await assert.rejects(lease, DeniedError);
});

test("silent server is an outage after the wait", async (test) => {
  const silent = await serverFor(test);
  const admin = lookInto(test, silent);
  const limiter = new Limiter(lookInto(test, silent), { ...PATIENT, timeout: 0.1, resends: 0 });
  await take(admin, "pool");
  const lease = limiter.lease("pool", PLACE, { wait: 0.5 });
  await isWaitedFor(admin);
  silent.pause();
  try {
    await assert.rejects(lease, UnavailableError);
  } finally {
    silent.resume();
  }
});

test("demoted primary is an outage", async (test) => {
  const demoted = await serverFor(test);
  const admin = lookInto(test, demoted);
  const limiter = new Limiter(lookInto(test, demoted), PATIENT);
  await take(admin, "pool");
  const lease = limiter.lease("pool", PLACE, { wait: Infinity });
  await isWaitedFor(admin);
  const refused = assert.rejects(lease, (error) => {
    assert.ok(error instanceof UnavailableError);
    // It was sent away and resent once.
    assert.match(error.message, /^READONLY /);
    return true;
  });
  await admin.call("REPLICAOF", "127.0.0.1", "1");
  await refused;
});

test("CLIENT UNBLOCK denies the waiter", async (test) => {
  const limiter = new Limiter(lookInto(test, server), PATIENT);
  await take(admin, "unblocked");
  const lease = limiter.lease("unblocked", PLACE, { wait: Infinity });
  await isWaitedFor(admin);
  const list = `${await admin.client("LIST")}`.split("\n");
  const line = list.find((line) => / cmd=rl\.acquire/.test(line))!;
  await admin.client("UNBLOCK", /id=(\d+)/.exec(line)![1]!);
  await assert.rejects(lease, DeniedError);
});

test("lease granted after half its ttl is renewed first", async (test) => {
  let now = 0;
  const limiter = new Limiter(lookInto(test, server), { ...PATIENT, now: () => now });
  const waits = await take(admin, "late");
  const lease = limiter.lease("late", concurrency(1, "30s"), { wait: Infinity, nx: true });
  await isWaitedFor(admin);
  now += 15_000;
  await release(admin, "late");
  await (await lease).release();
  assert.equal(await waits(), 2);
});

for (const kind of KINDS) {
  test(`${kind.name}: limiters of one client share one listener`, async (test) => {
    const warned: Error[] = [];
    const warn = (warning: Error) => warned.push(warning);
    process.on("warning", warn);
    test.after(() => process.off("warning", warn));
    const client = await clientFor(test, kind, server.port);
    const events = client as unknown as NodeJS.EventEmitter;
    const listeners = () =>
      events.eventNames().reduce((count, name) => count + events.listenerCount(name), 0);
    const before = listeners();
    // As many limiters as an application has routes.
    const limiters = Array.from({ length: 50 }, () => new Limiter(client, PATIENT));
    assert.ok(listeners() <= before + 5, `${before} and then ${listeners()}`);
    for (const limiter of limiters) {
      await limiter.take(`routes:${kind.name}`, fixed(100, "1h"));
      limiter.close();
    }
    await setTimeout(0);
    assert.deepEqual(warned, []);
  });

  test(`${kind.name}: closed limiter leaves no connection behind`, async (test) => {
    const key = `closed:${kind.name}`;
    const before = await connected(admin);
    const client = await clientFor(test, kind, server.port);
    const limiter = new Limiter(client, PATIENT);
    const other = new Limiter(client, PATIENT);
    const waits = await take(admin, key);
    const leases = [limiter, limiter, other].map((one) => one.lease(key, PLACE, { wait: "1h" }));
    const [first, second, others] = leases.map((lease) => lease.catch((error: Error) => error));
    await isWaitedFor(admin, 3);
    limiter.close();
    limiter.close();
    for (const ended of [await first, await second]) {
      assert.match(`${ended}`, /RateLimitError: the limiter was closed/);
    }
    // Waiters of the client's other limiters are not affected.
    await isWaitedFor(admin, 1);
    await release(admin, key);
    const lease = await others;
    assert.ok(lease instanceof Lease);
    await lease.release();
    assert.ok((await waits()) >= 3);
    other.close();
    // The client itself keeps working, and so do later calls.
    await until(async () => (await connected(admin)) <= before + 1);
    assert.equal((await limiter.take(key + "!", fixed(1, 60))).source, "server");
    await (await limiter.lease(key, PLACE, { wait: "1h" })).release();
    limiter[Symbol.dispose]();
  });
}

async function connected(redis: Redis): Promise<number> {
  return Number(/connected_clients:(\d+)/.exec(await redis.info("clients"))![1]);
}
