/** Units of a hot key above its limit. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { fixed, tokenBucket, type Decision } from "redis-ratelimit-client";

import { Simulation, bucketOf } from "./support/simulated.js";

test("exhausted limit denies at once, and is granted in full", async (test) => {
  test.after(() => mock.timers.reset());
  const simulation = new Simulation(bucketOf(200, 0.2), 40);
  const limit = tokenBucket(200, 200, "1s");
  const units = simulation.limiter().units("hot", limit, { batch: 100 });
  const [seconds, perSecond] = [20, 400];
  let longest = 0;
  const counts = { allowed: 0, denied: 0 };
  const told = (since: number) => (decision: Decision) => {
    longest = Math.max(longest, simulation.now - since);
    counts[decision.allowed ? "allowed" : "denied"]++;
    if (!decision.allowed) assert.ok(decision.waitMs! > 0);
  };
  const takes = [];
  for (let ms = 0; ms < seconds * 1000; ms += 5) {
    for (let i = 0; i < perSecond / 200; i++) takes.push(units.take().then(told(simulation.now)));
    await simulation.pass(5);
  }
  await simulation.pass(100);
  await Promise.all(takes);
  const most = 200 + 200 * seconds;
  assert.ok(counts.allowed <= most && counts.allowed >= 0.95 * most, JSON.stringify(counts));
  assert.equal(counts.allowed + counts.denied, perSecond * seconds);
  // No caller waits for longer than a give-back and a call take.
  assert.ok(longest <= 80, `${longest} ms`);
  // Each pause is at least a tenth of the time for which units are kept.
  assert.ok(simulation.calls <= seconds * 20, `${simulation.calls} calls`);
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
