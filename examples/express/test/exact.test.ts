/** 50 clients at once, and exactly as many requests pass as the limits allow. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { createApp } from "../src/app.js";
import type { Policy } from "../src/limits.js";
import { ALICE, BOB, CAROL, LONG_TIMEOUT, perAddress, perUser, quota } from "./support/limits.js";
import { Site, statuses } from "./support/http.js";
import { calls, clientFor, inspect, serverFor } from "./support/redis.js";

function service(units: number, apart: NonNullable<Policy["apart"]>): Policy {
  return { name: "service", limit: quota(units), of: () => "all", apart };
}

test("137 of 1000 requests of one user pass, charged by one call each", async (test) => {
  const server = await serverFor(test);
  const redis = await clientFor(test, server);
  const policies = [perUser(137), perAddress(10_000)];
  const api = await Site.serve(test, createApp({ redis, policies, ...LONG_TIMEOUT }));

  const answers = await api.burst(50, 20, () => api.get("/hello", ALICE));

  assert.deepEqual(statuses(answers), { 200: 137, 429: 863 });
  assert.equal(await calls(inspect(test, server), "rl.mtake"), 1000);
});

test("two processes share a limit", async (test) => {
  const server = await serverFor(test);
  const sites = await Promise.all(
    [1, 2].map(async () => {
      const redis = await clientFor(test, server);
      return Site.serve(test, createApp({ redis, policies: [perUser(137)], ...LONG_TIMEOUT }));
    }),
  );
  const answers = await Promise.all(
    sites.map((api) => api.burst(25, 20, () => api.get("/hello", ALICE))),
  );
  assert.deepEqual(statuses(answers.flat()), { 200: 137, 429: 863 });
});

test("a limit in another slot is refunded when the tenant's limits deny", async (test) => {
  const server = await serverFor(test);
  const redis = await clientFor(test, server);
  const policies = [service(500, "give-back"), perUser(100)];
  const api = await Site.serve(test, createApp({ redis, policies, ...LONG_TIMEOUT }));

  // Alice's limit is 100. The units of her other 400 requests are refunded to the service.
  const hers = await api.burst(50, 10, () => api.get("/hello", ALICE));
  assert.equal(statuses(hers)[200], 100);
  const [key] = await inspect(test, server).keys("rl:service:*");
  const peeked = await inspect(test, server).call("RL.PEEK", key!, ...quota(500).words);
  assert.deepEqual((peeked as number[]).slice(0, 3), [1, 500, 400]);
});

test("a leased limit passes exactly its units in two processes, with few calls", async (test) => {
  const server = await serverFor(test);
  const policies = [service(1000, { batch: 50, keep: "1h" })];
  const sites = await Promise.all(
    [1, 2].map(async () => {
      const redis = await clientFor(test, server);
      return Site.serve(test, createApp({ redis, policies, ...LONG_TIMEOUT }));
    }),
  );
  const answers = await Promise.all(sites.map((api) => api.burst(25, 60, () => api.get("/hello"))));
  assert.deepEqual(statuses(answers.flat()), { 200: 1000, 429: 2000 });
  // A batch is at most what the 25 concurrent requests of a process wait for. The first batches are smaller.
  const taken = await calls(inspect(test, server), "rl.take");
  assert.ok(taken >= 40 && taken <= 150, `${taken} calls for 3,000 requests`);
});

test("leased units of a request that another limit denies go to the next request", async (test) => {
  const server = await serverFor(test);
  const redis = await clientFor(test, server);
  const policies = [service(300, { batch: 300, keep: "1h" }), perUser(100)];
  const api = await Site.serve(test, createApp({ redis, policies, ...LONG_TIMEOUT }));

  const passed = [];
  for (const who of [ALICE, BOB, CAROL]) {
    passed.push(statuses(await api.burst(50, 4, () => api.get("/hello", who)))[200]);
  }
  assert.deepEqual(passed, [100, 100, 100]);
  assert.equal(statuses([await api.get("/hello")])[429], 1);
});
