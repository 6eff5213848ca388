/** `new Limiter("memory")`: a limiter without a server. traces.test.ts compares its decisions. */

import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import express from "express";

import {
  CallError,
  DeniedError,
  Limiter,
  ManualClock,
  SetupError,
  ban,
  concurrency,
  fixed,
  leakyBucket,
  policy,
  sketch,
  sliding,
  slidingLog,
  tokenBucket,
} from "redis-ratelimit-client";
import { rateLimit } from "redis-ratelimit-client/express";

function local(): { limiter: Limiter; clock: ManualClock } {
  const clock = new ManualClock(new Date("2024-02-29T12:00:00Z"));
  const log = (line: string) => assert.fail(line);
  return { limiter: new Limiter("memory", { clock, log }), clock };
}

const LIMITS = {
  "token bucket": tokenBucket(2, 1, "1m"),
  "fixed window": fixed(2, "1m"),
  "aligned window": fixed(2, "1d", { aligned: true }),
  month: fixed(2, "1mo", { aligned: true, offset: "+09:00", anchor: 31 }),
  "sliding window": sliding(2, "1m"),
  "strict window": sliding(2, "1m", { strict: true }),
  "sliding log": slidingLog(2, "1m"),
};

for (const [name, limit] of Object.entries(LIMITS)) {
  test(`${name}: denied call passes after its wait`, async () => {
    const { limiter, clock } = local();
    const allowed = [];
    for (let i = 0; i < 3; i++) allowed.push((await limiter.take("k", limit)).allowed);
    assert.deepEqual(allowed, [true, true, false]);
    clock.advance((await limiter.take("k", limit)).wait! - 0.001);
    assert.equal((await limiter.take("k", limit)).allowed, false);
    clock.advance("1ms");
    assert.equal((await limiter.take("k", limit)).allowed, true);
  });
}

test("leaky bucket delays calls", async () => {
  const { limiter } = local();
  const waits = [];
  for (let i = 0; i < 4; i++) waits.push((await limiter.take("k", leakyBucket(3, 1, "2s"))).wait);
  assert.deepEqual(waits, [0, 2, 4, 2]);
});

test("all limits are charged, or none", async () => {
  const { limiter } = local();
  const limits = [tokenBucket(2, 2, "1s", { name: "second" }), fixed(3, "1d", { name: "day" })];
  assert.equal((await limiter.take("k", limits, { cost: 2, each: true })).remaining, 0);
  const { each } = await limiter.take("k", limits, { each: true });
  assert.deepEqual(
    each.map(({ name, remaining }) => [name, remaining]),
    [
      ["second", 0],
      ["day", 1],
    ],
  );
  const keyed = { a: fixed(5, "1m"), b: fixed(1, "1m") };
  assert.equal((await limiter.takeAll(keyed)).allowed, true);
  assert.equal((await limiter.takeAll(keyed)).allowed, false);
  assert.equal((await limiter.peek("a", fixed(5, "1m"))).remaining, 4);
});

test("options of a call", async () => {
  const { limiter } = local();
  const limit = tokenBucket(10, 10, "1m");
  assert.equal((await limiter.take("k", limit, { cost: 0.5 })).remaining, 9);
  assert.equal((await limiter.take("k", limit, { cost: 20, upto: true })).granted, 9);
  assert.equal((await limiter.take("k", limit, { maxWait: "10s" })).wait, 3);
  assert.equal((await limiter.take("k", limit, { cost: 3, force: true })).allowed, false);
  assert.equal((await limiter.giveBack("k", limit, 3)).remaining, 0);
  assert.equal((await limiter.peek("other", limit, { cost: 9, keep: "20%" })).allowed, false);
  assert.equal(await limiter.reset("k"), true);
  assert.equal((await limiter.peek("k", limit)).remaining, 10);
});

test("charge counts once and is settled", async () => {
  const { limiter } = local();
  const limit = fixed(100, "1m");
  const first = await limiter.take("k", limit, { cost: 40, once: "a" });
  assert.equal(first.remaining, 60);
  assert.equal((await limiter.take("k", limit, { cost: 40, once: "a" })).remaining, 60);
  assert.equal((await first.settle(10)).remaining, 90);
  assert.equal((await limiter.settle("k", limit, "nobody", 10)).allowed, false);
});

test("wait advances the clock", async () => {
  const { limiter, clock } = local();
  const began = clock.now;
  const limit = tokenBucket(1, 1, "1h");
  assert.equal((await limiter.take("k", limit)).allowed, true);
  assert.equal((await limiter.take("k", limit, { wait: "2h" })).allowed, true);
  assert.ok(Math.abs(clock.now - began - 3_600_000) < 1000, `${clock.now - began}`);
  assert.equal((await limiter.take("k", limit, { wait: "1m" })).allowed, false);
});

test("lease is held until it is released or expires", async () => {
  const { limiter, clock } = local();
  const pool = concurrency(1, "30s");
  const lease = await limiter.lease("pool", pool, { fence: true });
  await assert.rejects(limiter.lease("pool", pool), DeniedError);
  const waiting = limiter.lease("pool", pool, { wait: Infinity, fence: true });
  await lease.release();
  const next = await waiting;
  assert.ok(next.token! > lease.token!);
  await next.release();
  await limiter.take("pool", concurrency(1, "30s", { holder: "a" }));
  clock.advance(30);
  assert.equal((await limiter.take("pool", concurrency(1, "30s", { holder: "b" }))).allowed, true);
  assert.equal(await limiter.release("pool", "b"), 1);
});

test("leases are given in order of arrival", async () => {
  const limiter = new Limiter("memory");
  const pool = concurrency(1, "1h");
  const first = await limiter.lease("pool", pool);
  const order: string[] = [];
  const work = async (name: string) => {
    const lease = await limiter.lease("pool", pool, { holder: name, wait: Infinity });
    order.push(name);
    await lease.release();
  };
  const working = ["a", "b", "c"].map(work);
  await new Promise(setImmediate);
  await first.release();
  // Later callers do not pass before them, although there is room.
  assert.equal((await limiter.take("pool", concurrency(1, "1h", { holder: "d" }))).allowed, false);
  await Promise.all(working);
  assert.deepEqual(order, ["a", "b", "c"]);
});

test("wait for a lease ends when the limiter is closed", async () => {
  const limiter = new Limiter("memory");
  const pool = concurrency(1, "1h");
  await limiter.lease("pool", pool);
  const waiting = limiter.lease("pool", pool, { wait: Infinity });
  limiter.close();
  await assert.rejects(waiting, /closed/);
});

const ONLY_SERVER: Record<string, (limiter: Limiter) => Promise<unknown>> = {
  "a policy": (limiter) => limiter.take("k", policy("plan")),
  "a sketch": (limiter) => limiter.take("k", sketch(5, 5, "1m", { key: "addresses" })),
  strikes: (limiter) => limiter.take("k", fixed(5, "1m"), { ban: ban(1, "1m", "1h") }),
  "a ban": (limiter) => limiter.ban("k", "1h"),
  "setting a policy": (limiter) => limiter.policies.set("plan", fixed(5, "1m")),
};

for (const [what, call] of Object.entries(ONLY_SERVER)) {
  test(`${what} needs a server`, async () => {
    await assert.rejects(call(local().limiter), (error: unknown) => {
      assert.ok(error instanceof CallError, `${error}`);
      assert.match(error.message, /need a server/);
      return true;
    });
  });
}

test("malformed calls throw the server's errors", async () => {
  const limiter = new Limiter("memory", { log: () => {} });
  await assert.rejects(limiter.take("k", [fixed(5, "1m"), fixed(6, "60s")]), CallError);
  assert.equal((await limiter.take("k", fixed(1000, "1m"))).allowed, true);
  await assert.rejects(limiter.take("k", slidingLog(1000, "1m")), SetupError);
});

test("units are spent in batches", async () => {
  const { limiter } = local();
  const units = limiter.units("hot", fixed(10, "1m"), { batch: 4 });
  let allowed = 0;
  for (let i = 0; i < 11; i++) if ((await units.take()).allowed) allowed++;
  assert.equal(allowed, 10);
  await units.close();
});

test("middleware needs no server", async (context) => {
  const { limiter, clock } = local();
  const app = express();
  app.use(rateLimit(limiter.limit("site", fixed(2, "1m"))));
  app.get("/", (_, response) => void response.send("hello"));
  const server = app.listen(0, "127.0.0.1");
  context.after(() => server.close());
  await once(server, "listening");
  const at = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const codes = [];
  for (let i = 0; i < 3; i++) codes.push((await fetch(at)).status);
  clock.advance("1m");
  codes.push((await fetch(at)).status);
  assert.deepEqual(codes, [200, 200, 429, 200]);
});

test("clock is only accepted with a limiter in memory", () => {
  const client = { sendCommand: async () => 0 };
  assert.throws(() => new Limiter(client, { clock: new ManualClock() }), /memory/);
});
