/** A caller waits for a lease in the server, in turn, and on a connection of its own. */

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
 * Takes the only place, and returns how often somebody has asked for one since. By the module: the
 * server counts those who wait when they come, or when they are answered, by its version.
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
  test(`${kind.name}: one call waits for a place, and holds up no other`, async (test) => {
    const key = `one:${kind.name}`;
    // A call may take less time than the waiting does.
    const client = await clientFor(test, kind, server.port);
    const limiter = new Limiter(client, { ...PATIENT, timeout: "20s" });
    const asked = await take(admin, key);
    const lease = limiter.lease(key, PLACE, { wait: Infinity });
    await isWaitedFor(admin);
    assert.equal((await limiter.take(`other:${kind.name}`, fixed(1, 60))).source, "server");
    await release(admin, key);
    await (await lease).release();
    assert.equal(await asked(), 1);
    // The connection is kept for the next.
    const connections = await total(admin);
    await take(admin, key);
    const next = limiter.lease(key, PLACE, { wait: "1h" });
    await isWaitedFor(admin);
    await release(admin, key);
    await (await next).release();
    assert.ok((await total(admin)) <= connections + 1);
  });

  test(`${kind.name}: a lost connection is made again`, async (test) => {
    const key = `lost:${kind.name}`;
    const limiter = new Limiter(await clientFor(test, kind, server.port), PATIENT);
    const asked = await take(admin, key);
    const lease = limiter.lease(key, PLACE, { wait: Infinity });
    for (const times of [2, 3]) {
      await isWaitedFor(admin);
      await killAll(admin);
      await until(async () => (await asked()) === times);
    }
    await isWaitedFor(admin);
    await release(admin, key);
    await (await lease).release();
  });

  test(`${kind.name}: whoever stops waiting leaves the queue`, async (test) => {
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
    // And nobody has the place.
    await (await limiter.lease(key, PLACE)).release();
  });

  test(`${kind.name}: in a cluster`, async (test) => {
    const client = await clusterClientFor(test, kind, cluster);
    const limiter = new Limiter(client, PATIENT);
    for (const name of ["a", "b", "c", "d"]) {
      const key = `${kind.name}:${name}`;
      const held = await limiter.lease(key, PLACE);
      const lease = limiter.lease(key, PLACE, { wait: "1h" });
      const nodes = cluster.primaries.map((primary) => lookInto(test, primary));
      await until(async () => (await Promise.all(nodes.map(waiting))).includes(1));
      await held.release();
      await (await lease).release();
    }
  });
}

async function total(redis: Redis): Promise<number> {
  return Number(/total_connections_received:(\d+)/.exec(await redis.info("stats"))![1]);
}

test("a pool of node-redis", async (test) => {
  const pool = createClientPool({ url: `redis://127.0.0.1:${server.port}` }, { maximum: 2 });
  pool.on("error", () => {});
  await pool.connect();
  test.after(() => pool.destroy());
  const limiter = new Limiter(pool as unknown as Client, PATIENT);
  await take(admin, "pool");
  const leases = Array.from({ length: 4 }, () =>
    limiter.lease("pool", PLACE, { wait: "1h" }).then((lease) => lease.release()),
  );
  // More than the pool has, and it has still one for others.
  await isWaitedFor(admin, 4);
  assert.equal((await limiter.take("beside", fixed(1, 60))).source, "server");
  await release(admin, "pool");
  await Promise.all(leases);
});

test("they are served in the order in which they asked, by one call each", async (test) => {
  const limiter = new Limiter(lookInto(test, server), PATIENT);
  const asked = await take(admin, "order");
  const order: number[] = [];
  const turns: Promise<void>[] = [];
  for (let turn = 0; turn < 6; turn++) {
    const work = async () => {
      const lease = await limiter.lease("order", PLACE, { wait: Infinity });
      order.push(turn);
      await lease.release();
    };
    turns.push(work());
    await isWaitedFor(admin, turn + 1);
  }
  await release(admin, "order");
  await Promise.all(turns);
  assert.deepEqual(order, [0, 1, 2, 3, 4, 5]);
  assert.equal(await asked(), 6);
});

test("whoever has waited long enough is denied", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const there = lookInto(test, server);
  // It has a time limit of its own for commands.
  const client = new Redis({ port: server.port, host: "127.0.0.1", commandTimeout: 5000 });
  test.after(() => client.disconnect());
  const limiter = new Limiter(client, PATIENT);
  const asked = await take(there, "pool");
  const lease = limiter.lease("pool", PLACE, { wait: "10m" });
  await isWaitedFor(there);
  clock.advance(599_000);
  assert.equal(await waiting(there), 1);
  clock.advance(2_000);
  await assert.rejects(lease, (error) => {
    assert.ok(error instanceof DeniedError);
    assert.ok(error.decision.wait! > 2990 && error.decision.wait! < 3000);
    return true;
  });
  assert.equal(await asked(), 1);
});

test("waiting takes longer than a call may", async (test) => {
  const client = new Redis({ port: server.port, host: "127.0.0.1", commandTimeout: 50 });
  client.on("error", () => {});
  test.after(() => client.disconnect());
  const limiter = new Limiter(client, { ...PATIENT, timeout: 0.05 });
  const asked = await take(admin, "longer");
  const lease = limiter.lease("longer", PLACE, { wait: "1h" });
  await isWaitedFor(admin);
  // At least so long, however busy the machine is.
  await setTimeout(200);
  assert.equal(await waiting(admin), 1);
  await release(admin, "longer");
  assert.equal((await lease).decision.source, "server");
  assert.equal(await asked(), 1);
});

test("whoever cannot ever be served does not wait", async (test) => {
  const limiter = new Limiter(lookInto(test, server), PATIENT);
  const never = limiter.lease("never", PLACE, { cost: 2, wait: Infinity });
  await assert.rejects(never, ({ decision }: DeniedError) => decision.wait === null);
});

test("what is left of the time is waited for on the next connection", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const there = lookInto(test, server);
  let now = 0;
  const limiter = new Limiter(lookInto(test, server), { ...PATIENT, now: () => now });
  const asked = await take(there, "pool");
  const lease = limiter.lease("pool", PLACE, { wait: 10 });
  await isWaitedFor(there);
  now += 7000;
  clock.advance(7000);
  await killAll(there);
  await until(async () => (await asked()) === 2 && (await waiting(there)) === 1);
  clock.advance(2900);
  assert.equal(await waiting(there), 1);
  clock.advance(200);
  await assert.rejects(lease, DeniedError);
});

test("a server that says nothing is away when the time is over", async (test) => {
  const silent = await serverFor(test);
  const there = lookInto(test, silent);
  const limiter = new Limiter(lookInto(test, silent), { ...PATIENT, timeout: 0.1, resends: 0 });
  await take(there, "pool");
  const lease = limiter.lease("pool", PLACE, { wait: 0.5 });
  await isWaitedFor(there);
  silent.pause();
  try {
    await assert.rejects(lease, UnavailableError);
  } finally {
    silent.resume();
  }
});

test("a server that is no primary any more is away", async (test) => {
  const demoted = await serverFor(test);
  const there = lookInto(test, demoted);
  const limiter = new Limiter(lookInto(test, demoted), PATIENT);
  await take(there, "pool");
  const lease = limiter.lease("pool", PLACE, { wait: Infinity });
  await isWaitedFor(there);
  const refused = assert.rejects(lease, (error) => {
    assert.ok(error instanceof UnavailableError);
    // It was sent away, and asked once more.
    assert.match(error.message, /^READONLY /);
    return true;
  });
  await there.call("REPLICAOF", "127.0.0.1", "1");
  await refused;
});

test("whoever is unblocked by hand is denied", async (test) => {
  const limiter = new Limiter(lookInto(test, server), PATIENT);
  await take(admin, "unblocked");
  const lease = limiter.lease("unblocked", PLACE, { wait: Infinity });
  await isWaitedFor(admin);
  const list = `${await admin.client("LIST")}`.split("\n");
  const line = list.find((line) => / cmd=rl\.acquire/.test(line))!;
  await admin.client("UNBLOCK", /id=(\d+)/.exec(line)![1]!);
  await assert.rejects(lease, DeniedError);
});

test("a place that took half its ttl to get is renewed first", async (test) => {
  let now = 0;
  const limiter = new Limiter(lookInto(test, server), { ...PATIENT, now: () => now });
  const asked = await take(admin, "late");
  const lease = limiter.lease("late", concurrency(1, "30s"), { wait: Infinity, nx: true });
  await isWaitedFor(admin);
  now += 15_000;
  await release(admin, "late");
  await (await lease).release();
  assert.equal(await asked(), 2);
});

for (const kind of KINDS) {
  test(`${kind.name}: however many limiters a client has, it has one listener`, async (test) => {
    const warned: Error[] = [];
    const warn = (warning: Error) => warned.push(warning);
    process.on("warning", warn);
    test.after(() => process.off("warning", warn));
    const client = await clientFor(test, kind, server.port);
    const events = client as unknown as NodeJS.EventEmitter;
    const listeners = () =>
      events.eventNames().reduce((count, name) => count + events.listenerCount(name), 0);
    const before = listeners();
    // As many as an application has routes.
    const limiters = Array.from({ length: 50 }, () => new Limiter(client, PATIENT));
    assert.ok(listeners() <= before + 5, `${before} and then ${listeners()}`);
    for (const limiter of limiters) {
      await limiter.take(`routes:${kind.name}`, fixed(100, "1h"));
      limiter.close();
    }
    await setTimeout(0);
    assert.deepEqual(warned, []);
  });

  test(`${kind.name}: a limiter that is closed leaves nothing behind`, async (test) => {
    const key = `closed:${kind.name}`;
    const before = await connected(admin);
    const client = await clientFor(test, kind, server.port);
    const limiter = new Limiter(client, PATIENT);
    const other = new Limiter(client, PATIENT);
    const asked = await take(admin, key);
    const leases = [limiter, limiter, other].map((one) => one.lease(key, PLACE, { wait: "1h" }));
    const [first, second, others] = leases.map((lease) => lease.catch((error: Error) => error));
    await isWaitedFor(admin, 3);
    limiter.close();
    limiter.close();
    for (const ended of [await first, await second]) {
      assert.match(`${ended}`, /RateLimitError: the limiter was closed/);
    }
    // The others of this client wait on.
    await isWaitedFor(admin, 1);
    await release(admin, key);
    const lease = await others;
    assert.ok(lease instanceof Lease);
    await lease.release();
    assert.ok((await asked()) >= 3);
    other.close();
    // The client itself is as it was, and so is whoever comes late.
    await until(async () => (await connected(admin)) <= before + 1);
    assert.equal((await limiter.take(key + "!", fixed(1, 60))).source, "server");
    await (await limiter.lease(key, PLACE, { wait: "1h" })).release();
    limiter[Symbol.dispose]();
  });
}

async function connected(redis: Redis): Promise<number> {
  return Number(/connected_clients:(\d+)/.exec(await redis.info("clients"))![1]);
}
