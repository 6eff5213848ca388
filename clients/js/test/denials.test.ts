/** Denials that the process remembers, and what it hears of their end. */

import assert from "node:assert/strict";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Cluster, Redis } from "ioredis";
import * as redis from "redis";
import * as redis5 from "redis5";
import { Limiter, ban, fixed, policy, tokenBucket, type Client } from "redis-ratelimit-client";

import { KINDS, clientFor, clusterClientFor } from "./support/clients.js";
import { calls, clusterFor, lookInto, serverFor, until } from "./support/server.js";

const server = await serverFor({ after });
const admin = lookInto({ after }, server);
const LIMIT = fixed(2, "1h");

let keys = 0;
const limiterOf = (client: Client, options = {}) => {
  const prefix = `denials${keys++}:`;
  return { limiter: new Limiter(client, { timeout: 30, prefix, ...options }), prefix };
};

async function exhaust(limiter: Limiter, key: string, limit = LIMIT): Promise<void> {
  while ((await limiter.take(key, limit)).allowed);
}

for (const kind of KINDS) {
  test(`${kind.name}: a denied caller is answered here`, async (test) => {
    const { limiter } = limiterOf(await clientFor(test, kind, server.port));
    await exhaust(limiter, "k");
    // What is looked at once more has arrived.
    await sleep(100);
    const before = await calls(admin);
    for (let i = 0; i < 1000; i++) {
      const { allowed, remembered, source, wait } = await limiter.take("k", LIMIT);
      assert.deepEqual([allowed, remembered, source], [false, true, "server"]);
      assert.ok(3590 < wait! && wait! <= 3600);
    }
    assert.equal((await calls(admin)) - before, 0);
    // Only this call is: others may pass.
    assert.equal((await limiter.take("k", fixed(3, "1h"))).allowed, true);
    assert.equal((await limiter.take("other", LIMIT)).allowed, true);
    limiter.close();
  });
}

for (const kind of KINDS) {
  test(`${kind.name}: what is given back is heard`, async (test) => {
    const { limiter, prefix } = limiterOf(await clientFor(test, kind, server.port));
    const changes: Record<string, () => Promise<unknown>> = {
      "give back": () => admin.call("RL.FIXED", `${prefix}give back`, 2, "1h", "COST", -1),
      DEL: () => admin.del(`${prefix}DEL`),
      "another limit": () => admin.set(`${prefix}another limit`, "", "PX", 1),
      FLUSHDB: () => admin.flushdb(),
    };
    for (const [key, change] of Object.entries(changes)) {
      await exhaust(limiter, key);
      await sleep(50);
      assert.equal((await limiter.take(key, LIMIT)).remembered, true);
      await change();
      const began = performance.now();
      await until(
        async () => (await limiter.take(key, LIMIT).catch(() => undefined))?.allowed === true,
      );
      assert.ok(performance.now() - began < 500, key);
    }
    await limiter.ban("banned", "1h");
    assert.equal((await limiter.take("banned", LIMIT)).allowed, false);
    await sleep(50);
    assert.equal((await limiter.take("banned", LIMIT)).remembered, true);
    await admin.call("RL.BAN", `${prefix}banned`, 0);
    await until(async () => (await limiter.take("banned", LIMIT)).allowed);

    // Nor is anything remembered that can no longer be heard.
    await exhaust(limiter, "k");
    await sleep(50);
    await admin.call("CLIENT", "KILL", "TYPE", "normal");
    await admin.call("CLIENT", "KILL", "TYPE", "pubsub");
    await admin.del(`${prefix}k`);
    const began = performance.now();
    await until(async () => (await limiter.take("k", LIMIT)).allowed);
    assert.ok(performance.now() - began < 1500);
    limiter.close();
  });
}

test("one's own changes are known at once", async (test) => {
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

test("never longer than the denial", async (test) => {
  const { limiter } = limiterOf(lookInto(test, server));
  const bucket = tokenBucket(1, 1, "150ms");
  for (let i = 0; i < 10; i++) {
    await exhaust(limiter, "k", bucket);
    const { allowed, waitMs } = await limiter.take("k", bucket);
    // On a busy machine its time may be over already.
    if (allowed) continue;
    // A timer may be early by one.
    await sleep(waitMs! + 1);
    assert.equal((await limiter.take("k", bucket)).allowed, true);
  }
});

const cluster = await clusterFor({ after }, { primaries: 2 });

for (const kind of KINDS) {
  test(`${kind.name}: each node of a cluster is heard`, async (test) => {
    const { limiter, prefix } = limiterOf(await clusterClientFor(test, kind, cluster));
    // In slots of both nodes.
    const keys = Array.from({ length: 8 }, (_, index) => `k${index}`);
    for (const key of keys) await exhaust(limiter, key);
    await sleep(1100);
    for (const key of keys) assert.equal((await limiter.take(key, LIMIT)).remembered, true, key);
    const other = new Limiter(await clusterClientFor(test, KINDS[0]!, cluster), { prefix });
    for (const key of keys) {
      await other.reset(key);
      await until(async () => (await limiter.take(key, LIMIT)).allowed);
    }
    limiter.close();
  });
}

for (const [name, library] of Object.entries({ 5: redis5 as unknown as typeof redis, 6: redis })) {
  test(`node-redis ${name}: a pool hears`, async (test) => {
    const pool = library.createClientPool({ url: `redis://127.0.0.1:${server.port}` });
    pool.on("error", () => {});
    await pool.connect();
    test.after(() => pool.destroy());
    const { limiter, prefix } = limiterOf(pool as unknown as Client);
    await exhaust(limiter, "k");
    await sleep(1100);
    assert.equal((await limiter.take("k", LIMIT)).remembered, true);
    await admin.del(`${prefix}k`);
    await until(async () => (await limiter.take("k", LIMIT)).allowed);
    limiter.close();
  });
}

test("ioredis prefixes the keys of a cluster", async (test) => {
  const nodes = cluster.primaries.map(({ port }) => ({ host: "127.0.0.1", port }));
  const client = new Cluster(nodes, { keyPrefix: "ours:" });
  test.after(() => client.disconnect());
  const { limiter } = limiterOf(client);
  await exhaust(limiter, "k");
  await sleep(1100);
  assert.equal((await limiter.take("k", LIMIT)).remembered, true);
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
  test(`${name}: an account that may not listen is not tried each second`, async (test) => {
    const there = await serverFor(test);
    const admin = lookInto(test, there);
    await admin.call(...SHY);
    const { client, close } = open(there.port);
    test.after(close);
    const limiter = new Limiter(client, { timeout: 30 });
    const refused = async () =>
      Number(/client\|tracking:.*rejected_calls=(\d+)/.exec(await admin.info("commandstats"))?.[1]);
    await exhaust(limiter, "k");
    await until(async () => (await refused()) === 1);
    // Nor is what was opened left open.
    await until(async () => /connected_clients:2\b/.test(await admin.info("clients")));
    const before = /total_connections_received:\d+/.exec(await admin.info("stats"))![0];
    await sleep(1100);
    await exhaust(limiter, "another");
    await sleep(100);
    assert.equal(/total_connections_received:\d+/.exec(await admin.info("stats"))![0], before);
    assert.equal(await refused(), 1);
  });
}

test("without a word from the server, a second at most", async (test) => {
  const there = await serverFor(test);
  const admin = lookInto(test, there);
  await admin.call(...SHY);
  const client = new Redis({ port: there.port, username: "shy", password: "secret" });
  test.after(() => client.disconnect());
  const limiter = new Limiter(client, { timeout: 30 });
  await exhaust(limiter, "k");
  await admin.del("k");
  assert.equal((await limiter.take("k", LIMIT)).remembered, true);
  await sleep(1000);
  assert.equal((await limiter.take("k", LIMIT)).allowed, true);
});

test("a policy that changes holds within a second", async (test) => {
  const { limiter, prefix } = limiterOf(lookInto(test, server));
  const name = `${prefix}plan`;
  await limiter.policies.set(name, fixed(1, "1h"));
  while ((await limiter.take("k", policy(name))).allowed);
  await sleep(50);
  assert.equal((await limiter.take("k", policy(name))).remembered, true);
  await limiter.policies.set(name, fixed(5, "1h"));
  await sleep(1000);
  assert.equal((await limiter.take("k", policy(name))).allowed, true);
});

test("off by one word; and strikes, ids and what is forced are the server's", async (test) => {
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
