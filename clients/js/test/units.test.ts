/** Units of a hot key, in simulated time. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import {
  Limiter,
  fixed,
  tokenBucket,
  type Decision,
  type NodeRedisClient,
} from "redis-ratelimit-client";

import { Simulation, bucketOf } from "./support/simulated.js";

test("exhausted limit denies at once, and is granted in full", async (test) => {
  test.after(() => mock.timers.reset());
  const simulation = new Simulation(bucketOf(200, 0.2), 40);
  const limit = tokenBucket(200, 200, "1s");
  const units = simulation.limiter().units("hot", limit, { peers: 1 });
  const [seconds, perSecond] = [20, 400];
  let longestWaitMs = 0;
  const counts = { allowed: 0, denied: 0 };
  const recordSince = (since: number) => (decision: Decision) => {
    longestWaitMs = Math.max(longestWaitMs, simulation.now - since);
    counts[decision.allowed ? "allowed" : "denied"]++;
    if (!decision.allowed) assert.ok(decision.waitMs! > 0);
  };
  const takes = [];
  for (let ms = 0; ms < seconds * 1000; ms += 5) {
    for (let i = 0; i < perSecond / 200; i++)
      takes.push(units.take().then(recordSince(simulation.now)));
    await simulation.pass(5);
  }
  await simulation.pass(100);
  await Promise.all(takes);
  const maxAllowed = 200 + 200 * seconds;
  assert.ok(
    counts.allowed <= maxAllowed && counts.allowed >= 0.95 * maxAllowed,
    JSON.stringify(counts),
  );
  assert.equal(counts.allowed + counts.denied, perSecond * seconds);
  // No caller waits for longer than two round trips, in steps of 1 ms.
  assert.ok(longestWaitMs <= 2 * (40 + 1), `${longestWaitMs} ms`);
  // There are at most two batches between pauses of at least a quarter of a second.
  assert.ok(simulation.calls <= seconds * 12, `${simulation.calls} calls`);
});

test("processes retry at different times after a short grant", async (test) => {
  test.after(() => mock.timers.reset());
  const simulation = new Simulation(bucketOf(10, 0.01), 2);
  const processes = Array.from({ length: 8 }, () =>
    simulation.limiter().units("hot", fixed(10, "1s"), { batch: 10 }),
  );
  const first = processes.map((units) => units.take());
  await simulation.pass(10);
  await Promise.all(first);
  const waits = [];
  for (const units of processes) {
    for (;;) {
      const taken = units.take();
      await simulation.pass(5);
      const { allowed, waitMs } = await taken;
      if (allowed) continue;
      waits.push(waitMs!);
      break;
    }
  }
  assert.ok(new Set(waits).size > 4, `${waits}`);
});

test("next batch is requested before the last is spent", async (test) => {
  test.after(() => mock.timers.reset());
  const simulation = new Simulation(bucketOf(1000, 1), 40);
  const units = simulation.limiter().units("hot", tokenBucket(1000, 1000, "1s"), { peers: 1 });
  const waits: number[] = [];
  for (let ms = 0; ms < 4000; ms += 4) {
    const since = simulation.now;
    void units.take().then(({ allowed }) => {
      assert.ok(allowed);
      waits.push(simulation.now - since);
    });
    await simulation.pass(4);
  }
  assert.ok(waits.length >= 990);
  // Only the first takes wait, while batches grow. A take without a call ends in the next step of 1
  // ms.
  assert.ok(waits.slice(50).every((wait) => wait <= 1));
  assert.ok(simulation.calls <= 25, `${simulation.calls} calls`);
});

test("idle process gives its units back", async (test) => {
  test.after(() => mock.timers.reset());
  const bucket = bucketOf(100, 0);
  const simulation = new Simulation(bucket, 2);
  const units = simulation.limiter().units("hot", fixed(100, "1d"), { peers: 1 });
  const first = units.take(5);
  await simulation.pass(5);
  const second = units.take();
  await simulation.pass(5);
  assert.ok((await first).allowed && (await second).allowed);
  assert.ok(bucket.take(0, 0, true)[2]! < 94);
  await simulation.pass(1010);
  assert.equal(bucket.take(0, 0, true)[2], 94);
});

test("waiting takes share a failed request", async () => {
  let sent = 0;
  const client: NodeRedisClient = {
    sendCommand: () => {
      sent++;
      return Promise.reject(new Error("connection lost"));
    },
  };
  const limiter = new Limiter(client, { onOutage: "closed", resends: 0 });
  const units = limiter.units("hot", fixed(100, "1d"));
  const decisions = await Promise.all(Array.from({ length: 16 }, () => units.take()));
  assert.deepEqual(new Set(decisions.map(({ source }) => source)), new Set(["none"]));
  assert.equal(sent, 1);
});
