/** 50 clients at once, and exactly as many requests pass as the limits allow. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { createApp } from "../src/app.js";
import { Leases } from "../src/lease.js";
import type { Policy } from "../src/limits.js";
import { Limiters, PATIENCE } from "../src/redis.js";
import { ALICE, BOB, CAROL, PATIENT, perAddress, perUser, quota } from "./support/limits.js";
import { Site, statuses } from "./support/http.js";
import { calls, clientFor, lookInto, serverFor } from "./support/redis.js";

function service(units: number, apart: NonNullable<Policy["apart"]>): Policy {
  return { name: "service", limit: quota(units), of: () => "all", apart };
}

test("137 of 1000 requests of one user pass, charged by one call each", async (test) => {
  const server = await serverFor(test);
  const redis = await clientFor(test, server);
  const policies = [perUser(137), perAddress(10_000)];
  const api = await Site.serve(test, createApp({ redis, policies, patience: PATIENT }));

  const answers = await api.crowd(50, 20, () => api.get("/hello", ALICE));

  assert.deepEqual(statuses(answers), { 200: 137, 429: 863 });
  assert.equal(await calls(lookInto(test, server), "rl.mtake"), 1000);
});

test("two processes share a limit", async (test) => {
  const server = await serverFor(test);
  const sites = await Promise.all(
    [1, 2].map(async () => {
      const redis = await clientFor(test, server);
      return Site.serve(test, createApp({ redis, policies: [perUser(137)], patience: PATIENT }));
    }),
  );
  const answers = await Promise.all(
    sites.map((api) => api.crowd(25, 20, () => api.get("/hello", ALICE))),
  );
  assert.deepEqual(statuses(answers.flat()), { 200: 137, 429: 863 });
});

test("a limit in another slot gets back what the tenant's limits then deny", async (test) => {
  const server = await serverFor(test);
  const redis = await clientFor(test, server);
  const policies = [service(500, "give-back"), perUser(100)];
  const api = await Site.serve(test, createApp({ redis, policies, patience: PATIENT }));

  // Alice may have 100. Her other 400 requests took from the service, and gave it back.
  const hers = await api.crowd(50, 10, () => api.get("/hello", ALICE));
  assert.equal(statuses(hers)[200], 100);
  const [key] = await lookInto(test, server).keys("rl:service:*");
  const left = await lookInto(test, server).call("RL.PEEK", key!, ...quota(500).words);
  assert.deepEqual((left as number[]).slice(0, 3), [1, 500, 400]);
});

test("a leased limit passes exactly its units in two processes, with few calls", async (test) => {
  const server = await serverFor(test);
  const policies = [service(1000, { lease: 50 })];
  // Nothing expires while the test runs.
  const leaseGoodForMs = 3_600_000;
  const sites = await Promise.all(
    [1, 2].map(async () => {
      const redis = await clientFor(test, server);
      return Site.serve(test, createApp({ redis, policies, patience: PATIENT, leaseGoodForMs }));
    }),
  );
  const answers = await Promise.all(sites.map((api) => api.crowd(25, 60, () => api.get("/hello"))));
  assert.deepEqual(statuses(answers.flat()), { 200: 1000, 429: 2000 });
  // 20 leases; then each process was denied once, and now knows for how long.
  assert.equal(await calls(lookInto(test, server), "rl.take"), 22);
});

test("leased units of a request that another limit denies go to the next request", async (test) => {
  const server = await serverFor(test);
  const redis = await clientFor(test, server);
  const policies = [service(300, { lease: 300 }), perUser(100)];
  const leaseGoodForMs = 3_600_000;
  const api = await Site.serve(
    test,
    createApp({ redis, policies, patience: PATIENT, leaseGoodForMs }),
  );

  const passed = [];
  for (const who of [ALICE, BOB, CAROL]) {
    passed.push(statuses(await api.crowd(50, 4, () => api.get("/hello", who)))[200]);
  }
  assert.deepEqual(passed, [100, 100, 100]);
  assert.equal(statuses([await api.get("/hello")])[429], 1);
});

test("leased units expire, and are never spent twice", async (test) => {
  const server = await serverFor(test);
  const limiters = new Limiters(await clientFor(test, server), { ...PATIENCE, ...PATIENT });
  let now = 0;
  const leases = new Leases(limiters, 1000, () => now);
  const take = async () => (await leases.take("hot", quota(250), 1, 100)).allowed;
  let spent = 0;

  while (spent < 30) spent += Number(await take());
  now += 1000; // 70 expire
  while (await take()) spent++;
  assert.equal(spent, 30 + 150);

  // A unit that was put back within its time is there again; later it is gone.
  leases.putBack("hot", 1);
  assert.equal(await take(), true);
  now += 1000;
  leases.putBack("hot", 1);
  assert.equal(await take(), false);
});

test("a leased limit says when it has units again", async (test) => {
  const server = await serverFor(test);
  const limiters = new Limiters(await clientFor(test, server), { ...PATIENCE, ...PATIENT });
  let now = 0;
  const leases = new Leases(limiters, 1000, () => now);
  const take = () => leases.take("hot", quota(10), 1, 10);
  for (let i = 0; i < 10; i++) assert.equal((await take()).remaining, 9 - i);
  const { allowed, waitMs } = await take();
  assert.equal(allowed, false);
  now += 1000;
  assert.equal((await take()).waitMs, waitMs - 1000);
  // The first call after that time asks again.
  const before = await calls(lookInto(test, server), "rl.take");
  now += waitMs;
  await take();
  assert.equal(await calls(lookInto(test, server), "rl.take"), before + 1);
});
