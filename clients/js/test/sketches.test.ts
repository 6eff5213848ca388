/** Sketches: one key for any number of items, in which the key of a call is the item. */

import assert from "node:assert/strict";
import { after, test } from "node:test";

import express from "express";
import { createClient } from "redis";
import {
  Limiter,
  ban,
  concurrency,
  fixed,
  policy,
  sketch,
  tokenBucket,
  type Limit,
} from "redis-ratelimit-client";
import { rateLimit } from "redis-ratelimit-client/express";
import { addCommands } from "redis-ratelimit-client/ioredis";
import { rl } from "redis-ratelimit-client/node-redis";

import { Site } from "./support/http.js";
import { lookInto, serverFor } from "./support/server.js";

const server = await serverFor({ after });
const redis = lookInto({ after }, server);
// Half a unit more, as the first charge of an item may briefly count a millionth too much.
const ADDRESSES = sketch(3.5, 3, "1h", { key: "addresses" });
const MERGED = { name: "TypeError", message: /a sketch cannot tell apart/ };

async function limiterOf(options = {}): Promise<Limiter> {
  await redis.flushall();
  return new Limiter(redis, { timeout: 30, ...options });
}

test("each item has its own limit", async () => {
  const limiter = await limiterOf({ prefix: "app:" });
  for (const address of ["203.0.113.7", "\r\n\0", "203.0.113.9"]) {
    for (const remaining of [2, 1, 0]) {
      assert.equal((await limiter.take(address, ADDRESSES)).remaining, remaining);
    }
    assert.equal((await limiter.take(address, ADDRESSES)).allowed, false);
  }
  assert.deepEqual(await redis.keys("*"), ["app:addresses"]);
  assert.equal((await limiter.peek("203.0.113.8", ADDRESSES)).remaining, 3);
  assert.equal((await limiter.take("203.0.113.8", ADDRESSES, { cost: 9, upto: true })).granted, 3);
  const kept = await limiter.take("new", [ADDRESSES], { cost: 2, keep: 1, each: true });
  assert.equal(kept.each?.[0]?.remaining, 0);
  assert.equal(await limiter.reset("addresses"), true);
  assert.equal((await limiter.peek("203.0.113.7", ADDRESSES)).remaining, 3);
});

test("size applies when the key is created", async () => {
  const limiter = await limiterOf();
  for (const [key, size, bytes] of [
    ["small", "64kb", 2 ** 16],
    ["large", 2 ** 21, 2 ** 21],
  ] as const) {
    await limiter.take("item", sketch(3.5, 3, "1h", { key, size, cost: 2, keep: "10%" }));
    assert.ok(`${JSON.stringify(await redis.call("RL.INFO", key))}`.includes(`${bytes}`));
  }
});

test("sketch in takeAll", async () => {
  const limiter = await limiterOf();
  const limits = { "203.0.113.7": ADDRESSES, "user:42": fixed(5, "1h") };
  const decision = await limiter.takeAll(limits, { cost: 2 });
  assert.deepEqual(
    decision.each?.map(({ remaining }) => remaining),
    [1, 3],
  );
  assert.equal(decision.id, undefined);
  assert.equal((await limiter.peekAll(limits, { cost: 2 })).allowed, false);
  assert.equal((await limiter.peekAll({ ...limits, other: fixed(9, "1h") })).allowed, true);
  assert.deepEqual((await redis.keys("*")).sort(), ["addresses", "user:42"]);
  await assert.rejects(limiter.takeAll({ one: ADDRESSES, two: ADDRESSES }), /each key once/);
});

test("policy that is a sketch", async () => {
  const limiter = await limiterOf();
  await limiter.policies.set("per-address", sketch(2.5, 2, "1h", { size: "64kb" }));
  const addresses = policy("per-address", { key: "addresses" });
  for (const address of ["203.0.113.7", "203.0.113.8"]) {
    for (const allowed of [true, true, false]) {
      assert.equal((await limiter.take(address, addresses)).allowed, allowed);
    }
    assert.equal((await limiter.take(address, addresses)).remembered, true);
    assert.equal((await limiter.peek(address, addresses)).remaining, 0);
  }
  assert.equal((await limiter.takeAll({ another: addresses }, { cost: 2 })).allowed, true);
  assert.deepEqual(await redis.keys("*"), ["addresses"]);
  // The key is ignored by other policies.
  await limiter.policies.set("plain", fixed(2, "1h"));
  assert.equal((await limiter.take("user", policy("plain", { key: "plain" }))).remaining, 1);
});

test("denial is remembered for the item", async () => {
  let now = 1000;
  const limiter = await limiterOf({ now: () => now });
  for (let i = 0; i < 3; i++) await limiter.take("item", ADDRESSES);
  assert.equal((await limiter.take("item", ADDRESSES)).remembered, undefined);
  assert.equal((await limiter.take("item", ADDRESSES)).remembered, true);
  assert.equal((await limiter.take("another", ADDRESSES)).allowed, true);
  assert.equal((await limiter.take("item", sketch(3.5, 3, "1h", { key: "others" }))).allowed, true);
  // The key changes with each call for any item, so it is not tracked: a second at most.
  now += 1000;
  assert.equal((await limiter.take("item", ADDRESSES)).remembered, undefined);
  assert.match(await redis.info("clients"), /tracking_clients:0/);
  // A denial is never remembered longer than its wait.
  const short = sketch(1, 1, "100ms", { key: "short" });
  while ((await limiter.take("item", short)).allowed);
  now += 100;
  assert.equal((await limiter.take("item", short)).remembered, undefined);
});

test("unsupported options of a sketch are rejected before anything is sent", async () => {
  const limiter = await limiterOf();
  const sent = async () =>
    /total_commands_processed:(\d+)/.exec(await redis.info("stats"))![1]! as unknown as number;
  const before = await sent();
  const calls: ((limit: Limit) => Promise<unknown>)[] = [
    (limit) => limiter.take("item", limit, { once: "id" }),
    (limit) => limiter.take("item", limit, { once: true }),
    (limit) => limiter.take("item", limit, { ttl: "1m" }),
    (limit) => limiter.take("item", limit, { ban: ban(3, "1m", "1h") }),
    (limit) => limiter.takeAll({ item: limit, user: fixed(5, "1h") }, { once: true }),
    (limit) => limiter.takeAll({ item: limit }, { ttl: "1m" }),
    (limit) => limiter.settle("item", limit, "id", 1),
    (limit) => limiter.giveBack("item", limit),
    async (limit) => limiter.units("item", limit),
    (limit) => limiter.limit("api", limit).reset("item"),
  ];
  for (const limit of [ADDRESSES, policy("per-address", { key: "addresses" })]) {
    for (const call of calls) await assert.rejects(call(limit), MERGED, `${call}`);
    await assert.rejects(limiter.take("item", [limit, fixed(5, "1h")]), /alone in its key/);
    await assert.rejects(limiter.take(undefined as never, limit), /a key must be/);
  }
  await assert.rejects(limiter.take("item", sketch(3.5, 3, "1h")), /needs its key/);
  assert.throws(() => sketch(3.5, 3, "1h", { key: "k", name: "api" } as object), /has no name/);
  await assert.rejects(limiter.policies.set("per-address", ADDRESSES), /comes with a call/);
  assert.throws(() => policy("per-address", { key: 7 as never }), /a key must be/);
  assert.equal(Number(await sent()) - Number(before), 1);
});

test("sketch charge of several units has no id", async () => {
  const limiter = await limiterOf();
  const both = { other: ADDRESSES, user: tokenBucket(9, 9, 1) };
  for (const decision of [
    await limiter.take("item", ADDRESSES, { cost: 2 }),
    await limiter.takeAll(both, { cost: 2 }),
  ]) {
    assert.equal(decision.allowed, true);
    await assert.rejects(decision.settle(1), /id/);
  }
  const pool = concurrency(1, "1m", { holder: "me" });
  assert.equal((await limiter.takeAll({ third: ADDRESSES, pool })).allowed, true);
});

test("bound sketch and middleware", async (test) => {
  const limiter = await limiterOf();
  const api = limiter.limit("api", ADDRESSES);
  assert.equal((await api.take("you")).remaining, 2);
  assert.equal((await limiter.peek("api:you", ADDRESSES)).remaining, 2);
  assert.equal(await api.wrap(async (who: string) => who, { key: (who) => who })("you"), "you");
  assert.equal((await api.peek("you")).remaining, 1);
  const app = express();
  app.use("/bound", rateLimit(api));
  app.use("/plain", rateLimit(limiter, ADDRESSES));
  app.use(
    "/keyed",
    rateLimit(limiter, () => ({ one: ADDRESSES })),
  );
  app.use((_request, response) => void response.end());
  const site = await Site.serve(test, app);
  for (const path of ["/bound", "/plain", "/keyed"]) {
    const statuses = [];
    for (let i = 0; i < 4; i++) statuses.push((await site.get(path)).status);
    assert.deepEqual(statuses, [200, 200, 200, 429], path);
  }
  assert.deepEqual(await redis.keys("*"), ["addresses"]);
});

test("commands accept sketches", async (test) => {
  await redis.flushall();
  const client = addCommands(redis);
  await client.rlPolicySet("per-address", sketch(3.5, 3, "1h"));
  assert.equal((await client.rlTake("item", ADDRESSES)).remaining, 2);
  assert.equal((await client.rlTakeAll({ item: ADDRESSES })).remaining, 1);
  assert.equal(await client.rlDelay("item", policy("per-address", { key: "addresses" })), 0);
  assert.equal((await client.rlPeek("item", ADDRESSES)).remaining, 0);
  const other = createClient({ url: `redis://127.0.0.1:${server.port}`, modules: { rl } });
  test.after(() => other.destroy());
  await other.connect();
  assert.equal((await other.rl.take("item", ADDRESSES)).allowed, false);
  assert.deepEqual(await redis.keys("*"), ["addresses"]);
});

test("local limits count each item separately", async () => {
  const onOutage = { share: 1, otherwise: fixed(1, "1h") };
  const limiter = new Limiter(lookIntoNothing(), {
    onOutage,
    timeout: "50ms",
    connectTimeout: "50ms",
  });
  const outcomes = async (item: string, limit: Limit, times: number) => {
    const found = [];
    for (let i = 0; i < times; i++) found.push((await limiter.take(item, limit)).allowed);
    return found;
  };
  for (const limit of [ADDRESSES, sketch(3.5, 3, "1h", { key: "others" })]) {
    for (const item of ["a", "b"]) {
      assert.deepEqual(await outcomes(item, limit, 4), [true, true, true, false]);
    }
  }
  const addresses = policy("per-address", { key: "addresses" });
  for (const item of ["c", "d"]) {
    assert.deepEqual(await outcomes(item, addresses, 2), [true, false]);
  }
  assert.equal((await limiter.takeAll({ e: ADDRESSES })).source, "local");
});

/** Creates a client whose server refuses connections. */
function lookIntoNothing() {
  const nothing = createClient({
    url: "redis://127.0.0.1:1",
    disableOfflineQueue: true,
    socket: { reconnectStrategy: false },
  });
  nothing.on("error", () => {});
  nothing.connect().catch(() => {});
  return nothing;
}
