/** Local limits decide as the server would. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";

import { Redis } from "ioredis";
import {
  Limiter,
  fixed,
  leakyBucket,
  tokenBucket,
  type Decision,
  type KnownLimit,
} from "redis-ratelimit-client";

import { clockedServerFor, lookInto, serverFor, type Scope } from "./support/server.js";

const CAPACITIES = [0, 1, 2, 10, 0.5, 2.5, 0.000001, 1000, 10 ** 9, 10 ** 12];
const RATES = [1, 3, 0.5, 1000, 10 ** 12];
const COSTS = [0, 1, 2, 3, 0.1, 0.25, 0.000001, 0.0000001, 7, 999, 10 ** 12];

/** Returns a generator of numbers from 0 to 1, the same sequence for each seed. */
function randomOf(seed: number): () => number {
  let state = seed * 2_654_435_761 + 1;
  return () => {
    state = (Math.imul(state ^ (state >>> 15), 2_246_822_519) + 3_266_489_917) >>> 0;
    return state / 2 ** 32;
  };
}

/** Creates a client whose server is unreachable. */
async function unreachableClientFor(test: Scope): Promise<Redis> {
  const server = await serverFor(test);
  const client = new Redis(server.port, { enableOfflineQueue: false, retryStrategy: () => 10 });
  client.on("error", () => {});
  test.after(() => client.disconnect());
  await once(client, "ready");
  await server.stop();
  return client;
}

/** Creates a limiter that uses only local limits. */
function localOf(client: Redis, share = 1) {
  const state = { now: 1e9 / 7 };
  const options = { onOutage: { share }, failures: 1, pause: 3600, resends: 0, log: () => {} };
  return { limiter: new Limiter(client, { ...options, now: () => state.now }), state };
}

test("local bucket decides like the server", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const remote = new Limiter(lookInto(test, server), {
    timeout: 30,
    once: false,
    rememberDenials: false,
  });
  const client = await unreachableClientFor(test);
  for (let seed = 1; seed <= 40; seed++) {
    const random = randomOf(seed);
    const pick = <Item>(items: readonly Item[]): Item =>
      items[Math.floor(random() * items.length)]!;
    const capacity = pick(CAPACITIES);
    // The server rejects a refill slower than a hundred years.
    const anyRate = pick(RATES);
    const rate = capacity / anyRate < 1e5 ? anyRate : capacity;
    const limit = tokenBucket(capacity, rate, pick([1, 60, "1h"] as const));
    // Floats of this size cannot represent the amount that drains in a millisecond, so time stands
    // still.
    const isHuge = capacity >= 1e9 || rate >= 1e9;
    const { limiter: local, state } = localOf(client);
    for (let step = 0; step < 60; step++) {
      const operation = pick([
        "take",
        "take",
        "take",
        "force",
        "upto",
        "peek",
        "give back",
      ] as const);
      let cost = pick([...COSTS, capacity, capacity / 2]);
      if (isHuge || operation === "upto") cost = Math.floor(cost);
      // A larger forced charge would saturate the server's time.
      if (operation === "force" && !isHuge) cost = Math.min(cost, 1e5);
      if (operation === "upto" || operation === "give back") cost = cost || 1;
      const decide = (limiter: Limiter) => {
        if (operation === "peek") return limiter.peek(`${seed}`, limit, { cost });
        if (operation === "give back") return limiter.giveBack(`${seed}`, limit, cost);
        return limiter.take(`${seed}`, limit, {
          cost,
          upto: operation === "upto",
          force: operation === "force",
        });
      };
      const [expected, actual] = [await decide(remote), await decide(local)];
      const description = JSON.stringify({ seed, step, words: limit.words, operation, cost });
      assert.deepEqual(
        [expected.source, actual.source],
        ["server", "local"],
        `${description} ${expected.error}`,
      );
      const comparedFields = ({ allowed, limit, remaining, granted }: Decision) => [
        allowed,
        limit,
        remaining,
        granted,
      ];
      assert.deepEqual(comparedFields(actual), comparedFields(expected), description);
      const offMs = Math.abs(actual.resetMs! - expected.resetMs!);
      assert.ok(
        offMs <= Math.max(1, expected.resetMs! * 1e-6),
        `${description}: off by ${offMs} ms`,
      );
      if (isHuge || random() < 0.5) continue;
      const ms = Math.min(pick([1, 10, 1000, 60_000, expected.waitMs ?? 0]), 1e9);
      clock.advance(ms);
      state.now += ms;
    }
  }
});

test("zero limit denies every call", async (test) => {
  const client = await unreachableClientFor(test);
  const zeroLimits: KnownLimit[] = [
    fixed(0, 60),
    tokenBucket(0, 1, 1),
    leakyBucket(0, 10, "1m"),
    fixed(0.4, 60),
  ];
  for (const share of [1, 0.25, 0.001]) {
    for (const limit of zeroLimits) {
      const { limiter, state } = localOf(client, share);
      for (let i = 0; i < 5; i++) {
        const denied = await limiter.take("k", limit);
        assert.deepEqual([denied.allowed, denied.limit, denied.remaining], [false, 0, 0]);
        assert.equal(denied.source, "local");
        state.now += 3_600_000;
      }
      assert.ok((await limiter.peek("k", limit, { cost: 0 })).allowed);
      // A forced charge recovers.
      assert.equal((await limiter.take("k", limit, { cost: 5, force: true })).allowed, false);
      assert.equal((await limiter.peek("k", limit, { cost: 0 })).allowed, false);
      state.now += 3_600_000;
      assert.ok((await limiter.peek("k", limit, { cost: 0 })).allowed);
    }
  }
});

test("huge limit counts single units, and fractions add up", async (test) => {
  const { limiter } = localOf(await unreachableClientFor(test));
  const countPassed = async (key: string, limit: KnownLimit, cost: number) => {
    let count = 0;
    while (count < 5 && (await limiter.take(key, limit, { cost })).allowed) count++;
    return count;
  };
  for (const quota of [1e12, 1e9]) {
    const limit = tokenBucket(quota, quota, 1);
    assert.equal((await limiter.take(`${quota}`, limit, { cost: quota - 3 })).remaining, 3);
    assert.equal(await countPassed(`${quota}`, limit, 1), 3);
  }
  assert.equal(await countPassed("tenths", fixed(0.3, 60), 0.1), 3);
  // A cost is rounded up to a millionth, and a limit is rounded down.
  assert.equal(await countPassed("tiny", fixed(0.0000019, 60), 1e-7), 1);
});

test("upto grants the available units, and the entire share of the process", async (test) => {
  const client = await unreachableClientFor(test);
  const { limiter } = localOf(client);
  const limit = fixed(10, 60);
  const upto = async (cost: number) =>
    (await limiter.take("k", limit, { cost, upto: true })).granted;
  assert.deepEqual([await upto(7), await upto(7), await upto(7)], [7, 3, 0]);
  assert.equal((await limiter.giveBack("k", limit, 4)).remaining, 4);
  // A fallback without local limits reports the granted units, too.
  for (const [onOutage, granted] of [
    ["open", 7],
    ["closed", 0],
  ] as const) {
    const withFallback = new Limiter(client, { onOutage, log: () => {} });
    assert.equal((await withFallback.take("k", limit, { cost: 7, upto: true })).granted, granted);
  }
  for (const [quota, processes] of [
    [10, 4],
    [49, 49],
    [100, 7],
    [3, 3],
  ] as const) {
    const { limiter } = localOf(client, 1 / processes);
    let passed = 0;
    while ((await limiter.take("k", fixed(quota, 60), { cost: 0.01 })).allowed) passed++;
    assert.ok(
      Math.abs(passed - (100 * quota) / processes) <= 1,
      `${quota}/${processes}: ${passed}`,
    );
  }
});
