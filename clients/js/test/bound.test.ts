/** Bound limits, and the methods of decisions. */

import assert from "node:assert/strict";
import { after, test } from "node:test";

import express from "express";
import {
  BoundLimit,
  DeniedError,
  Limiter,
  RateLimitError,
  concurrency,
  fixed,
  policy,
  tokenBucket,
} from "redis-ratelimit-client";
import { rateLimit } from "redis-ratelimit-client/express";

import { Site } from "./support/http.js";
import { lookInto, serverFor } from "./support/server.js";

const server = await serverFor({ after });
const redis = lookInto({ after }, server);
let prefixes = 0;

function newLimiter() {
  return new Limiter(redis, { prefix: `bound${prefixes++}:`, timeout: 30 });
}

test("bound limit supports take, peek, giveBack and reset", async () => {
  const limiter = newLimiter();
  const api = limiter.limit("api", fixed(3, "1h"));
  assert.ok(api instanceof BoundLimit);
  assert.equal((await api.take("ann")).remaining, 2);
  assert.equal((await api.take("ann", { cost: 2 })).remaining, 0);
  assert.equal((await api.take("bob")).remaining, 2);
  assert.equal((await limiter.peek("api:ann", fixed(3, "1h"))).remaining, 0);
  assert.equal((await api.peek("ann")).allowed, false);
  assert.equal((await api.giveBack("ann")).remaining, 1);
  assert.equal(await api.reset("ann"), true);
  assert.equal((await api.take("ann")).remaining, 2);
  // Without a caller, the key is the name.
  assert.equal((await api.take()).remaining, 2);
  assert.equal((await limiter.peek("api", fixed(3, "1h"))).remaining, 2);
  await assert.rejects(api.take(42 as never), TypeError);
  assert.throws(() => limiter.limit(undefined as never, fixed(3, "1h")), TypeError);
});

test("options of a bound limit are defaults of every call", async () => {
  const api = newLimiter().limit("api", fixed(10, "1h"), { cost: 3 });
  assert.equal((await api.take("ann")).remaining, 7);
  assert.equal((await api.take("ann", { cost: 1 })).remaining, 6);
  assert.equal((await api.peek("ann")).remaining, 6);
});

test("bound limit supports leases and units", async () => {
  const limiter = newLimiter();
  const jobs = limiter.limit("jobs", concurrency(1, "30s"));
  const lease = await jobs.lease("ann");
  await assert.rejects(jobs.lease("ann"), DeniedError);
  await lease.release();
  await assert.rejects(limiter.limit("api", fixed(1, "1h")).lease("ann"), TypeError);
  const units = limiter.limit("hot", fixed(100, "1h")).units("ann", { batch: 10 });
  assert.ok((await units.take()).allowed);
  await units.close();
});

test("require throws a DeniedError for a denial", async () => {
  const api = newLimiter().limit("api", fixed(1, "1h"));
  const first = await api.take("ann");
  assert.equal(first.require(), first);
  const denied = await api.take("ann");
  assert.throws(
    () => denied.require(),
    (error) => error instanceof DeniedError && error.decision === denied,
  );
});

test("wrapped function runs as often as the limit allows", async () => {
  const api = newLimiter().limit("search", fixed(2, "1h"));
  const search = api.wrap(async (user: string, words: string) => `${words} for ${user}`, {
    key: (user) => user,
  });
  assert.equal(await search("ann", "cats"), "cats for ann");
  await search("ann", "dogs");
  await assert.rejects(search("ann", "birds"), DeniedError);
  assert.equal(await search("bob", "cats"), "cats for bob");
});

test("wrapped function without a key throws a TypeError", async () => {
  const api = newLimiter().limit("search", fixed(2, "1h"));
  const search = api.wrap(async (user: { id?: string }) => user, { key: ({ id }) => id! });
  for (const user of [{}, { id: "" }]) {
    await assert.rejects(search(user), /TypeError|the key of a call of search is/);
  }
  assert.equal((await api.peek()).remaining, 2);
});

test("decision settles its charge to the actual cost", async () => {
  const limiter = newLimiter();
  const tokens = limiter.limit("tokens", tokenBucket(10_000, 10_000, "1d"));
  const charged = await tokens.take("ann", { cost: 4000 });
  const settled = await charged.settle(1200);
  assert.ok(settled.allowed && settled.remaining! >= 8800 && settled.remaining! < 8810);
  // A second settlement changes nothing.
  assert.ok((await charged.settle(1200)).remaining! < 8810);
  // A charge of one unit has no id, unless it is refundable.
  const one = await tokens.take("bob");
  await assert.rejects(one.settle(0), /ttl/);
  const named = await tokens.take("bob", { ttl: "10m" });
  assert.ok((await named.settle(0)).allowed);
  await assert.rejects((await tokens.take("ann", { cost: 20_000 })).settle(1), RateLimitError);

  const limitsByKey = { "{t}:a": fixed(10, "1h"), "{t}:b": fixed(10, "1h") };
  const all = await limiter.takeAll(limitsByKey, { cost: 4 });
  assert.equal((await all.settle(1)).remaining, 9);
  for (const [key, limit] of Object.entries(limitsByKey)) {
    assert.equal((await limiter.peek(key, limit)).remaining, 9);
  }
});

test("take with a wait passes once there is room, if that is within the wait", async () => {
  const limiter = newLimiter();
  const slow = limiter.limit("slow", tokenBucket(1, 1, "200ms"));
  await slow.take("ann");
  const began = performance.now();
  assert.equal((await slow.take("ann", { wait: 5 })).allowed, true);
  assert.ok(performance.now() - began > 150);
  assert.equal((await slow.take("ann", { wait: "50ms" })).allowed, false);
  const long = limiter.limit("long", fixed(1, "1h"));
  await long.take("ann");
  assert.equal((await long.take("ann", { wait: 5 })).allowed, false);
  await slow.take("bob");
  const closed = slow.take("bob", { wait: 5 });
  setTimeout(() => limiter.close(), 20);
  await assert.rejects(closed, /closed/);
});

test("call by a policy with a concurrency limit has an id", async () => {
  const limiter = newLimiter();
  await limiter.policies.set("jobs", [concurrency(2, "1h"), fixed(100, "1h")]);
  const jobs = limiter.limit("jobs", policy("jobs"));
  for (const allowed of [true, true, false]) {
    assert.equal((await jobs.take("ann")).allowed, allowed);
  }
});

test("middleware uses a bound limit", async (test) => {
  const api = newLimiter().limit("api", fixed(2, "1h"));
  const app = express();
  app.use(rateLimit(api, { key: (request) => request.get("x-user") }));
  app.get("/", (_request, response) => void response.end());
  const site = await Site.serve(test, app);
  const statuses = [];
  for (let i = 0; i < 3; i++) statuses.push((await site.get("/", { "x-user": "ann" })).status);
  assert.deepEqual(statuses, [200, 200, 429]);
  assert.equal((await api.peek("ann")).remaining, 0);
  assert.throws(() => rateLimit(redis as never), TypeError);
});
