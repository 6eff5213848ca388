/** Waiting callers: their number of calls, and the end of their waits. */

import assert from "node:assert/strict";
import { after, mock, test } from "node:test";

import { Limiter, concurrency, slidingLog, tokenBucket } from "redis-ratelimit-client";

import { Simulation, logOf } from "./support/simulated.js";
import { calls, clockedServerFor, lookInto, serverFor, until } from "./support/server.js";

const server = await serverFor({ after });
const redis = lookInto({ after }, server);
const CALLERS = 50;

/** Mocks the timers with which a limiter sleeps. */
const mockTimers = (test: { after: (end: () => void) => void }) => {
  mock.timers.enable({ apis: ["setTimeout"] });
  test.after(() => mock.timers.reset());
};

test("each caller of a bucket sends one call and sleeps until its reservation", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const admin = lookInto(test, server);
  const limiter = new Limiter(admin, { timeout: 30 });
  for (const limits of [
    tokenBucket(1, 1, "100ms"),
    [tokenBucket(1, 1, "100ms", { name: "a" }), tokenBucket(20, 20, "100ms", { name: "b" })],
  ]) {
    const key = `bucket${Array.isArray(limits)}`;
    assert.ok((await limiter.take(key, limits)).allowed);
    const before = await calls(admin);
    mockTimers(test);
    let passed = 0;
    const callers = Array.from({ length: CALLERS }, async () => {
      const decision = await limiter.take(key, limits, { wait: "1m" });
      assert.deepEqual([decision.allowed, decision.waitMs], [true, 0]);
      passed++;
    });
    await until(async () => (await calls(admin)) - before >= CALLERS);
    for (let index = 1; index <= CALLERS; index++) {
      clock.advance(100);
      mock.timers.tick(100);
      await until(() => passed === index);
    }
    await Promise.all(callers);
    assert.equal((await calls(admin)) - before, CALLERS);
    mock.timers.reset();
  }
});

test("denied call with a wait reports the entire wait", async (test) => {
  const { server } = await clockedServerFor(test);
  const limiter = new Limiter(lookInto(test, server), { timeout: 30 });
  const slow = tokenBucket(1, 1, "1h");
  await limiter.take("k", slow);
  const { allowed, waitMs } = await limiter.take("k", slow, { wait: "10s" });
  assert.deepEqual([allowed, waitMs], [false, 3_600_000]);
  assert.equal((await limiter.peek("k", slow)).waitMs, 3_600_000);
});

test("cancelled wait gives the reservation back", async () => {
  const bucket = tokenBucket(1, 1, "1h");
  for (const [options, limiter] of [
    [{}, new Limiter(redis, { timeout: 30 })],
    [{}, new Limiter(redis, { timeout: 30, once: false })],
    [{ once: "mine" }, new Limiter(redis, { timeout: 30 })],
  ] as const) {
    await redis.flushall();
    await limiter.take("k", bucket);
    const used = async () => (await limiter.peek("k", bucket)).waitMs!;
    const before = await used();
    const ends: Record<string, (abort: AbortController) => void> = {
      "changed my mind": (abort) => abort.abort(new Error("changed my mind")),
      "the limiter was closed": () => limiter.close(),
    };
    for (const [reason, end] of Object.entries(ends)) {
      const abort = new AbortController();
      const call = { wait: "2h", signal: abort.signal, ...options } as const;
      const waiting = limiter.take("k", bucket, call).catch((error: unknown) => error);
      await until(async () => (await used()) > before + 1000);
      end(abort);
      assert.match(`${await waiting}`, new RegExp(reason));
      assert.ok((await used()) <= before);
      if ("once" in options) break;
    }
  }
});

test("waiting callers of a sliding log retry at random times", async (test) => {
  test.after(() => mock.timers.reset());
  const simulation = new Simulation(logOf(1, 100), 2);
  const limiter = simulation.limiter({ rememberDenials: false });
  let passed = 0;
  const callers = Array.from({ length: CALLERS }, async () => {
    const { allowed } = await limiter.take("k", slidingLog(1, "100ms"), { wait: "1h" });
    assert.ok(allowed);
    passed++;
  });
  while (passed < CALLERS) await simulation.pass(100);
  await Promise.all(callers);
  // Without the random part, all remaining callers would call at each of 50 grants: 1,275 calls.
  assert.ok(simulation.calls < 500, `${simulation.calls} calls`);
  assert.ok(simulation.now < 3 * CALLERS * 100, `${simulation.now} ms`);
});

test("many waiting callers cause no warning", async () => {
  const warnings: string[] = [];
  const onWarning = (warning: Error) => void warnings.push(`${warning}`);
  process.on("warning", onWarning);
  const limiter = new Limiter(redis, { timeout: 30 });
  const abort = new AbortController();
  const { signal } = abort;
  const callers = [tokenBucket(1, 1, "1h"), slidingLog(1, "1h")].flatMap((limit, index) =>
    Array.from({ length: 15 }, () => limiter.take(`w${index}`, limit, { wait: "1d", signal })),
  );
  const jobs = concurrency(1, "1h");
  await limiter.lease("jobs", jobs);
  const leases = Array.from({ length: 15 }, () => limiter.lease("jobs", jobs, { wait: 5, signal }));
  const ended = Promise.allSettled<unknown>([...callers, ...leases]);
  const blocked = async () => /blocked_clients:(\d+)/.exec(await redis.info("clients"))?.[1];
  await until(async () => (await blocked()) === "15");
  abort.abort();
  await ended;
  process.off("warning", onWarning);
  assert.deepEqual(warnings, []);
});
