/** Commands of the module as methods of clients, in pipelines and transactions. */

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { Cluster, Redis } from "ioredis";
import * as ioredis5 from "ioredis5";
import * as iovalkey from "iovalkey";
import { createClient, createCluster } from "redis";
import * as redis4 from "redis4";
import * as redis5 from "redis5";
import { Limiter, concurrency, fixed, policy, tokenBucket } from "redis-ratelimit-client";
import { addCommands } from "redis-ratelimit-client/ioredis";
import { addCommands as addToIovalkey } from "redis-ratelimit-client/iovalkey";
import { rl } from "redis-ratelimit-client/node-redis";

import { calls, clusterFor, lookInto, redirects, serverFor } from "./support/server.js";

const server = await serverFor({ after });
const cluster = await clusterFor({ after });
const NODES = cluster.primaries.map(({ at }) => at);
const LIMIT = fixed(2, "1h");
const USERS = Array.from({ length: 30 }, (_, n) => `user:${n}`);

/** Asserts that no call was redirected, and that every node received calls. */
async function routed(test: Parameters<typeof redirects>[0], act: () => Promise<void>) {
  const nodes = cluster.primaries.map((node) => lookInto(test, node));
  const before = await Promise.all([redirects(test, cluster), ...nodes.map(calls)]);
  await act();
  const [moved, ...counts] = await Promise.all([redirects(test, cluster), ...nodes.map(calls)]);
  assert.equal(moved, before[0]);
  counts.forEach((count, index) => assert.ok(count > before[index + 1]!, "a node had no calls"));
}

type Ioredis = { Redis: typeof Redis; Cluster: typeof Cluster; add: typeof addCommands };

const IOREDIS: Record<string, Ioredis> = {
  "ioredis 6": { Redis, Cluster, add: addCommands },
  "ioredis 5": { ...(ioredis5 as unknown as Ioredis), add: addCommands },
  iovalkey: { ...(iovalkey as unknown as Ioredis), add: addToIovalkey as typeof addCommands },
};

for (const [name, { Redis, Cluster, add }] of Object.entries(IOREDIS)) {
  test(`${name}: commands, pipelines and transactions`, async (test) => {
    const redis = add(new Redis({ ...server.at, keyPrefix: `${name}:` }));
    test.after(() => redis.disconnect());

    assert.equal((await redis.rlTake("a", LIMIT, { cost: 2 })).remaining, 0);
    assert.equal((await redis.rlPeek("a", LIMIT)).allowed, false);
    assert.equal((await redis.rlTake("b", LIMIT, { once: { id: "x", ttl: "1h" } })).remaining, 1);
    assert.equal((await redis.rlSettle("b", LIMIT, "x", 2)).remaining, 0);
    const both = { a: LIMIT, b: LIMIT };
    assert.deepEqual(
      (await redis.rlTakeAll(both)).each.map(({ allowed }) => allowed),
      [false, false],
    );
    assert.equal((await redis.rlPeekAll(both)).allowed, false);
    assert.equal((await redis.rlAcquire("pool", concurrency(1, 30), "me")).allowed, true);
    assert.equal(await redis.rlRelease("pool", "me", "you"), 1);
    const version = await redis.rlPolicySet(`${name} gold`, tokenBucket(2, 2, "1h"));
    assert.equal(await redis.rlDelay("c", policy(`${name} gold`)), 0);
    assert.equal(await redis.rlDelay("c", policy(`${name} gold`), { cost: 3 }), null);
    assert.equal((await redis.rlPolicyGet(`${name} gold`))?.version, version);
    assert.equal((await redis.rlPolicyList(`${name} *`)).length, 1);
    assert.equal((await redis.rlPolicyScale(`${name} gold`, 2)).factor, 2);
    assert.equal((await redis.rlPolicyMultiply(`${name} gold`, 0.5)).factor, 1);
    assert.equal((await redis.rlPolicyAdd(`${name} gold`, 0.5, { most: 2 })).factor, 1.5);
    assert.equal(await redis.rlPolicyDelete(`${name} gold`), true);
    // The client's prefix is on all keys, once.
    assert.deepEqual((await lookInto(test, server).keys(`${name}:*`)).sort(), [
      `${name}:a`,
      `${name}:b`,
      `${name}:c`,
    ]);

    const piped = await redis.pipeline().rlTake("d", LIMIT).rlTake("d", LIMIT).get("none").exec();
    assert.deepEqual(
      piped!.map(([, reply]) => (reply as { remaining: number } | null)?.remaining),
      [1, 0, undefined],
    );
    const queued = await redis.multi().rlTake("e", LIMIT).rlTake("e", LIMIT).exec();
    assert.deepEqual(
      queued!.map(([, reply]) => (reply as { remaining: number }).remaining),
      [1, 0],
    );
    await assert.rejects(redis.rlTake("a", tokenBucket(1, 1, 1)), /WRONGTYPE/);
  });

  test(`${name}: commands go to the right node of a cluster, with and without automatic pipelines`, async (test) => {
    for (const enableAutoPipelining of [false, true]) {
      const redis = add(new Cluster(NODES, { enableAutoPipelining, keyPrefix: `${name}:` }));
      test.after(() => redis.disconnect());
      await routed(test, async () => {
        const decisions = await Promise.all(USERS.map((user) => redis.rlTake(user, LIMIT)));
        assert.ok(decisions.every(({ allowed }) => allowed));
        for (const user of USERS) {
          const limit = fixed(5, "1h");
          await redis.rlTakeAll({ [`{${user}}:a`]: limit, [`{${user}}:b`]: limit });
        }
      });
      await routed(test, async () => {
        for (const user of USERS) {
          const piped = await redis.pipeline().rlPeek(user, LIMIT).rlPeek(user, LIMIT).exec();
          assert.ok(piped!.every(([error]) => error === null));
        }
      });
    }
  });
}

test("ioredis without the commands is redirected", async (test) => {
  const redis = new Cluster(NODES);
  test.after(() => redis.disconnect());
  const before = await redirects(test, cluster);
  for (const user of USERS) await redis.call("RL.TAKE", `plain:${user}`, ...LIMIT.words);
  assert.ok((await redirects(test, cluster)) > before);
});

test("node-redis 6: commands and transactions", async (test) => {
  const redis = await createClient({ url: server.url, modules: { rl } }).connect();
  test.after(() => redis.destroy());
  assert.equal((await redis.rl.take("6:a", LIMIT, { cost: 2 })).remaining, 0);
  assert.equal((await redis.rl.peek("6:a", LIMIT)).allowed, false);
  const decisions = await redis.rl.takeAll({ "6:b": LIMIT, "6:c": LIMIT });
  assert.deepEqual(
    decisions.each.map(({ remaining }) => remaining),
    [1, 1],
  );
  assert.ok((await redis.rl.policySet("6:gold", LIMIT)) > 0);
  assert.equal((await redis.rl.policyGet("6:gold"))?.specs, "FIXED 2 1h");
  assert.equal(await redis.rl.delay("6:d", policy("6:gold")), 0);
  const queued = await redis.multi().rl.take("6:e", LIMIT).rl.take("6:e", LIMIT).exec();
  assert.deepEqual(
    queued.map((reply) => (reply as unknown as { remaining: number }).remaining),
    [1, 0],
  );
});

test("node-redis 6: commands go to the right node of a cluster", async (test) => {
  const redis = createCluster({
    rootNodes: NODES.map((socket) => ({ socket })),
    modules: { rl },
  });
  await redis.connect();
  test.after(() => redis.destroy());
  await routed(test, async () => {
    for (const user of USERS) {
      assert.equal((await redis.rl.take(`6:${user}`, LIMIT)).remaining, 1);
      await redis.rl.takeAll({ [`6:{${user}}:a`]: LIMIT });
      const queued = await redis.multi().rl.take(`6:${user}`, LIMIT).exec();
      assert.equal((queued[0] as unknown as { remaining: number }).remaining, 0);
    }
  });
});

test("node-redis 5: alone and in a cluster", async (test) => {
  const redis = await redis5.createClient({ url: server.url, modules: { rl } }).connect();
  test.after(() => redis.destroy());
  assert.equal((await redis.rl.take("5:a", LIMIT, { cost: 2 })).remaining, 0);
  const [queued] = await redis.multi().rl.peek("5:a", LIMIT).exec();
  assert.equal((queued as unknown as { allowed: boolean }).allowed, false);
  assert.ok((await redis.rl.policySet("5:gold", LIMIT)) > 0);
  assert.equal((await redis.rl.policyGet("5:gold"))?.specs, "FIXED 2 1h");

  const cluster = redis5.createCluster({
    rootNodes: NODES.map((socket) => ({ socket })),
    modules: { rl },
  });
  await cluster.connect();
  test.after(() => cluster.destroy());
  await routed(test, async () => {
    for (const user of USERS) {
      assert.equal((await cluster.rl.take(`5:${user}`, LIMIT)).remaining, 1);
      await cluster.rl.takeAll({ [`5:{${user}}:a`]: LIMIT });
    }
  });
});

test("node-redis 4: alone and in a cluster", async (test) => {
  const redis = redis4.createClient({ url: server.url, modules: { rl } });
  await redis.connect();
  test.after(() => redis.disconnect());
  assert.equal((await redis.rl.take("4:a", LIMIT, { cost: 2 })).remaining, 0);
  const [queued] = await redis.multi().rl.peek("4:a", LIMIT).exec();
  assert.equal((queued as unknown as { allowed: boolean }).allowed, false);
  assert.ok((await redis.rl.policySet("4:gold", LIMIT)) > 0);
  assert.equal((await redis.rl.policyGet("4:gold"))?.specs, "FIXED 2 1h");

  const cluster = redis4.createCluster({
    rootNodes: NODES.map((socket) => ({ socket })),
    modules: { rl },
  });
  await cluster.connect();
  test.after(() => cluster.disconnect());
  await routed(test, async () => {
    for (const user of USERS) {
      assert.equal((await cluster.rl.take(`4:${user}`, LIMIT)).remaining, 1);
      await cluster.rl.takeAll({ [`4:{${user}}:a`]: LIMIT });
    }
  });
});

test("RESP3: a map is decoded from an object or a Map", async (test) => {
  const mapped = new Redis({ ...server.at, protocol: 3, replyMapping: "resp3" });
  const flat = new Redis({ ...server.at, protocol: 3 });
  test.after(() => mapped.disconnect());
  test.after(() => flat.disconnect());
  const nodeRedis = await redis5.createClient({ url: server.url, RESP: 3 }).connect();
  test.after(() => nodeRedis.destroy());
  for (const [index, client] of [mapped, flat, nodeRedis].entries()) {
    const limiter = new Limiter(client, { timeout: 30, onOutage: "raise", prefix: `${index}:` });
    await limiter.policies.set("resp3", LIMIT);
    const decisions = await limiter.take("a", policy("resp3"), { each: true });
    assert.deepEqual([decisions.remaining, decisions.policy], [1, "resp3"]);
    const info = await limiter.policies.get("resp3");
    assert.deepEqual([info?.specs, info?.counts.admitted], ["FIXED 2 1h", index + 1]);
  }
});
