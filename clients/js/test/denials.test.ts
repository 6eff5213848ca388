/** Remembered denials, and their invalidation by client tracking. */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Cluster, Redis } from "ioredis";
import * as redis from "redis";
import * as redis5 from "redis5";
import { Limiter, ban, fixed, policy, tokenBucket, type Client } from "redis-ratelimit-client";

import { KINDS, clientFor, clusterClientFor } from "./support/clients.js";
import {
  calls,
  clockedServerFor,
  clusterFor,
  lookInto,
  serverFor,
  until,
} from "./support/server.js";

const server = await serverFor({ after });
// Must be outside of the tests: the process ends when all tests that have begun have ended.
const cluster = await clusterFor({ after }, { primaries: 2 });
const admin = lookInto({ after }, server);
const LIMIT = fixed(2, "1h");

let keys = 0;
/** Limiter whose time passes only by `pass`: denials end by that, or by invalidation. */
const limiterOf = (client: Client, options = {}) => {
  const prefix = `denials${keys++}:`;
  let ms = 0;
  const pass = (more: number) => (ms += more);
  const limiter = new Limiter(client, { timeout: 30, prefix, now: () => ms, ...options });
  return { limiter, prefix, pass };
};

/** Milliseconds beyond those for which a denial without tracking is remembered. */
const UNTRACKED_MS = 1100;

/**
 * Waits until a denied key is tracked, so that its denial is remembered for longer than a second.
 */
async function watched(
  { limiter, pass }: ReturnType<typeof limiterOf>,
  key: string,
): Promise<void> {
  await until(async () => {
    pass(UNTRACKED_MS);
    return (await limiter.take(key, LIMIT)).remembered === true;
  });
}

async function exhaust(limiter: Limiter, key: string, limit = LIMIT): Promise<void> {
  while ((await limiter.take(key, limit)).allowed);
}

for (const kind of KINDS) {
  test(`${kind.name}: repeated denial is answered without the server`, async (test) => {
    const timed = limiterOf(await clientFor(test, kind, server.port));
    const { limiter, pass } = timed;
    await exhaust(limiter, "k");
    await watched(timed, "k");
    const before = await calls(admin);
    const first = await limiter.take("k", LIMIT);
    assert.ok(0 < first.wait! && first.wait! <= 3600);
    for (let i = 1; i <= 1000; i++) {
      pass(1);
      const { allowed, remembered, source, waitMs } = await limiter.take("k", LIMIT);
      assert.deepEqual([allowed, remembered, source], [false, true, "server"]);
      assert.equal(waitMs, first.waitMs! - i);
    }
    assert.equal((await calls(admin)) - before, 0);
    // Other calls may pass.
    assert.equal((await limiter.take("k", fixed(3, "1h"))).allowed, true);
    assert.equal((await limiter.take("other", LIMIT)).allowed, true);
    limiter.close();
  });
}

for (const kind of KINDS) {
  test(`${kind.name}: give-back invalidates a denial`, async (test) => {
    const timed = limiterOf(await clientFor(test, kind, server.port));
    const { limiter, prefix } = timed;
    const changes: Record<string, () => Promise<unknown>> = {
      "give back": () => admin.call("RL.FIXED", `${prefix}give back`, 2, "1h", "COST", -1),
      DEL: () => admin.del(`${prefix}DEL`),
      "another limit": () => admin.set(`${prefix}another limit`, "", "PX", 1),
      FLUSHDB: () => admin.flushdb(),
    };
    for (const [key, change] of Object.entries(changes)) {
      await exhaust(limiter, key);
      await watched(timed, key);
      await change();
      await until(
        async () => (await limiter.take(key, LIMIT).catch(() => undefined))?.allowed === true,
      );
    }
    await limiter.ban("banned", "1h");
    assert.equal((await limiter.take("banned", LIMIT)).allowed, false);
    await watched(timed, "banned");
    await admin.call("RL.BAN", `${prefix}banned`, 0);
    await until(async () => (await limiter.take("banned", LIMIT)).allowed);

    // Without tracking no denial stays remembered.
    await exhaust(limiter, "k");
    await watched(timed, "k");
    await admin.call("CLIENT", "KILL", "TYPE", "normal");
    await admin.call("CLIENT", "KILL", "TYPE", "pubsub");
    await admin.del(`${prefix}k`);
    await until(async () => (await limiter.take("k", LIMIT)).allowed);
    limiter.close();
  });
}

test("more denied keys than are remembered cost no more calls than without remembering", async (test) => {
  const { limiter } = limiterOf(lookInto(test, server));
  const keys = Array.from({ length: 12_000 }, (_, index) => `many${index}`);
  const once = fixed(1, "1h");
  const round = async () => {
    const before = await calls(admin);
    const decisions = await Promise.all(keys.map((key) => limiter.take(key, once)));
    assert.ok(decisions.every(({ source }) => source === "server"));
    return (await calls(admin)) - before;
  };
  assert.deepEqual([await round(), await round()], [12_000, 12_000]);
  // The remembered keys are tracked.
  let decisions = await round();
  await until(async () => (decisions = await round()) <= 2000);
  assert.equal(decisions, 2000);
});

test("expired denial makes room", async () => {
  const denied = [0, 100, 0, 3_600_000, 3_600_000];
  const { limiter, pass } = limiterOf({ sendCommand: async () => denied });
  for (let i = 0; i < 10_000; i++) await limiter.take(`k${i}`, LIMIT);
  const remembered = async () => (await limiter.take("new", LIMIT)).remembered;
  assert.deepEqual([await remembered(), await remembered()], [undefined, undefined]);
  pass(UNTRACKED_MS);
  assert.deepEqual([await remembered(), await remembered()], [undefined, true]);
});

test("key is tracked from its second denial on", async (test) => {
  const { limiter } = limiterOf(lookInto(test, server));
  await exhaust(limiter, "k");
  const before = await calls(admin);
  assert.equal((await limiter.take("other", fixed(0, "1h"))).allowed, false);
  await limiter.take("k", LIMIT);
  await until(async () => (await calls(admin)) === before + 2);
  limiter.close();
});

test("own change invalidates a denial at once", async (test) => {
  const { limiter } = limiterOf(lookInto(test, server));
  for (const change of [
    () => limiter.giveBack("k", LIMIT),
    () => limiter.reset("k"),
    async () => (await limiter.ban("k", "1h"), limiter.ban("k", 0)),
  ]) {
    await limiter.reset("k");
    await exhaust(limiter, "k");
    await change();
    if (!`${change}`.includes("ban(")) assert.ok((await limiter.take("k", LIMIT)).allowed);
    else assert.equal((await limiter.take("k", LIMIT)).remembered, undefined);
  }
});

test("denial is never remembered longer than its wait", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const { limiter, pass } = limiterOf(lookInto(test, server));
  const bucket = tokenBucket(1, 1, "150ms");
  for (let i = 0; i < 10; i++) {
    await exhaust(limiter, "k", bucket);
    pass(148);
    clock.advance(148);
    const { remembered, waitMs } = await limiter.take("k", bucket);
    assert.deepEqual([remembered, waitMs], [true, 2]);
    pass(2);
    clock.advance(2);
    assert.equal((await limiter.take("k", bucket)).allowed, true);
  }
});

for (const kind of KINDS) {
  test(`${kind.name}: each node of a cluster is tracked`, async (test) => {
    const timed = limiterOf(await clusterClientFor(test, kind, cluster));
    const { limiter, prefix } = timed;
    // In slots of both nodes.
    const keys = Array.from({ length: 8 }, (_, index) => `k${index}`);
    for (const key of keys) await exhaust(limiter, key);
    for (const key of keys) await watched(timed, key);
    const other = new Limiter(await clusterClientFor(test, KINDS[0]!, cluster), { prefix });
    for (const key of keys) {
      await other.reset(key);
      await until(async () => (await limiter.take(key, LIMIT)).allowed);
    }
    limiter.close();
  });
}

for (const [name, library] of Object.entries({ 5: redis5 as unknown as typeof redis, 6: redis })) {
  test(`node-redis ${name}: pool is tracked`, async (test) => {
    const pool = library.createClientPool({ url: `redis://127.0.0.1:${server.port}` });
    pool.on("error", () => {});
    await pool.connect();
    test.after(() => pool.destroy());
    const timed = limiterOf(pool as unknown as Client);
    const { limiter, prefix } = timed;
    await exhaust(limiter, "k");
    await watched(timed, "k");
    await admin.del(`${prefix}k`);
    await until(async () => (await limiter.take("k", LIMIT)).allowed);
    limiter.close();
  });
}

test("ioredis prefixes the keys of a cluster once", async (test) => {
  const nodes = cluster.primaries.map(({ port }) => ({ host: "127.0.0.1", port }));
  const client = new Cluster(nodes, { keyPrefix: "ours:" });
  test.after(() => client.disconnect());
  const timed = limiterOf(client);
  const { limiter } = timed;
  await exhaust(limiter, "k");
  await watched(timed, "k");
  await Promise.all(cluster.primaries.map((one) => lookInto(test, one).flushdb()));
  await until(async () => (await limiter.take("k", LIMIT)).allowed);
  limiter.close();
});

const SHY = [
  "ACL",
  "SETUSER",
  "shy",
  "on",
  ">secret",
  "~*",
  "&*",
  "+@all",
  "-client|tracking",
] as const;

for (const [name, open] of Object.entries({
  "ioredis 6": (port: number) => {
    const client = new Redis({ port, username: "shy", password: "secret" });
    return { client, close: () => client.disconnect() };
  },
  "node-redis 6": (port: number) => {
    const client = redis.createClient({ url: `redis://shy:secret@127.0.0.1:${port}` });
    void client.on("error", () => {}).connect();
    return { client: client as unknown as Client, close: () => client.destroy() };
  },
})) {
  test(`${name}: account without client tracking is not retried each second`, async (test) => {
    const other = await serverFor(test);
    const admin = lookInto(test, other);
    await admin.call(...SHY);
    const { client, close } = open(other.port);
    test.after(close);
    const limiter = new Limiter(client, { timeout: 30 });
    const refused = async () =>
      Number(/client\|tracking:.*rejected_calls=(\d+)/.exec(await admin.info("commandstats"))?.[1]);
    await exhaust(limiter, "k");
    await limiter.take("k", LIMIT);
    await until(async () => (await refused()) === 1);
    // No connection is left open either.
    await until(async () => /connected_clients:2\b/.test(await admin.info("clients")));
    const before = /total_connections_received:\d+/.exec(await admin.info("stats"))![0];
    const { now } = performance;
    test.mock.method(performance, "now", () => now.call(performance) + UNTRACKED_MS);
    await exhaust(limiter, "another");
    await limiter.take("another", LIMIT);
    // By now a retry would have happened.
    await sleep(100);
    assert.equal(/total_connections_received:\d+/.exec(await admin.info("stats"))![0], before);
    assert.equal(await refused(), 1);
  });
}

test("denial without tracking is remembered for a second", async (test) => {
  const other = await serverFor(test);
  const admin = lookInto(test, other);
  await admin.call(...SHY);
  const client = new Redis({ port: other.port, username: "shy", password: "secret" });
  test.after(() => client.disconnect());
  const { limiter, prefix, pass } = limiterOf(client);
  await exhaust(limiter, "k");
  await admin.del(`${prefix}k`);
  pass(998);
  assert.equal((await limiter.take("k", LIMIT)).remembered, true);
  pass(2);
  assert.equal((await limiter.take("k", LIMIT)).allowed, true);
});

test("policy change applies within a second", async (test) => {
  const { limiter, prefix, pass } = limiterOf(lookInto(test, server));
  const name = `${prefix}plan`;
  await limiter.policies.set(name, fixed(1, "1h"));
  while ((await limiter.take("k", policy(name))).allowed);
  assert.equal((await limiter.take("k", policy(name))).remembered, true);
  await limiter.policies.set(name, fixed(5, "1h"));
  pass(1000);
  assert.equal((await limiter.take("k", policy(name))).allowed, true);
});

test("denial of a policy with FORCE is never remembered", async (test) => {
  const client = lookInto(test, server);
  const { limiter, prefix, pass } = limiterOf(client);
  const name = `${prefix}plan`;
  await limiter.policies.set(name, fixed(1, "1h"));
  while ((await limiter.take("k", policy(name))).allowed);
  assert.equal((await limiter.take("k", policy(name))).remembered, true);
  await client.call("RL.POLICYSET", name, "FIXED", "1", "1h", "FORCE");
  pass(2000);
  for (const options of [undefined, {}, { each: true }, { cost: 300 }, undefined]) {
    const denied = await limiter.take("k", policy(name), options);
    assert.deepEqual([denied.allowed, denied.remembered], [false, undefined]);
    assert.equal(denied.forced, options?.each);
  }
  // 1 was charged before, and 304 by these calls.
  const { remaining } = await limiter.giveBack("k", policy(name), 304);
  assert.equal(remaining, 0);
  assert.equal((await limiter.giveBack("k", policy(name))).remaining, 1);
});

test("wait and units reject a policy with FORCE, and charge nothing", async (test) => {
  const client = lookInto(test, server);
  const { limiter, prefix, pass } = limiterOf(client);
  const name = `${prefix}plan`;
  await client.call("RL.POLICYSET", name, "FIXED", "3", "1h", "FORCE");
  const refused = { name: "CallError", message: /FORCE/ };
  const policies = policy(name);
  await assert.rejects(limiter.take("k", policies, { wait: 1 }), refused);
  await assert.rejects(limiter.takeAll({ k: policies }, { wait: 1 }), refused);
  await assert.rejects(limiter.units("k", policies, { batch: 2 }).take(), refused);
  assert.equal(await client.exists(`${prefix}k`), 0);
  // Without FORCE they work with policies, too.
  await limiter.policies.set(name, fixed(3, "1h"));
  pass(1000);
  assert.equal((await limiter.take("k", policies, { wait: 1 })).allowed, true);
  const units = limiter.units("k", policies, { batch: 2 });
  assert.equal((await units.take()).allowed, true);
  // With FORCE again, which is not known for a second, no more than the limit is spent.
  await client.call("RL.POLICYSET", name, ...fixed(3, "1h").words, "FORCE");
  const more = [];
  for (let i = 0; i < 5; i++) more.push((await units.take()).allowed);
  assert.equal(more.filter(Boolean).length, 1);
  await units.close();
});

test("rememberDenials can be disabled; strikes, ids and forced charges reach the server", async (test) => {
  const client = lookInto(test, server);
  const { limiter: off } = limiterOf(client, { rememberDenials: false });
  await exhaust(off, "k");
  assert.equal((await off.take("k", LIMIT)).remembered, undefined);
  const { limiter } = limiterOf(client);
  await exhaust(limiter, "k");
  assert.equal((await limiter.take("k", LIMIT)).remembered, true);
  for (const options of [{ ban: ban(9, "1m", "1m") }, { once: "req-1" }, { force: true }]) {
    const { remembered } = await limiter.take("k", LIMIT, options);
    assert.equal(remembered, undefined, JSON.stringify(options));
  }
});
