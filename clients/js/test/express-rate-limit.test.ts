/** Store under the real express-rate-limit, over real HTTP. */

import assert from "node:assert/strict";
import { after, test } from "node:test";

import express, { type RequestHandler } from "express";
import { rateLimit, type Options } from "express-rate-limit";
import { Cluster, Redis } from "ioredis";
import { createClient } from "redis";
import { Limiter, fixed, policy, sliding, tokenBucket, type Client } from "redis-ratelimit-client";
import {
  RateLimitStore,
  type RateLimitStoreOptions,
} from "redis-ratelimit-client/express-rate-limit";

import { Site, type Answer } from "./support/http.js";
import { clockedServerFor, clusterFor, lookInto, redirects, serverFor } from "./support/server.js";
import type { Scope } from "./support/server.js";

const HOUR = 3_600_000;
const PATIENT = { timeout: 30, rememberDenials: false };

const server = await serverFor({ after });
const redis = new Redis(server.url);
after(() => redis.disconnect());

let prefixes = 0;
const fresh = () => `test:${prefixes++}:`;

interface Setup {
  readonly store?: RateLimitStoreOptions;
  readonly options?: Partial<Options>;
  readonly client?: Client;
  readonly prefix?: string;
}

async function siteWith(test: Scope, { store, options, client = redis, prefix }: Setup = {}) {
  const rateLimitStore = new RateLimitStore(client, {
    ...PATIENT,
    prefix: prefix ?? fresh(),
    ...store,
  });
  const limit = rateLimit({
    windowMs: HOUR,
    limit: 10,
    standardHeaders: "draft-7",
    // Several applications of one test share a counter on purpose.
    validate: { creationStack: false },
    store: rateLimitStore,
    ...options,
  });
  const app = express();
  const handler: RequestHandler = (request, response) => {
    response.status(Number(request.query["status"] ?? 200)).end();
  };
  app.get("/", limit, handler);
  return { site: await Site.serve(test, app), limit, store: rateLimitStore };
}

test("50 concurrent clients get exactly the limit", async (test) => {
  const { site } = await siteWith(test, { options: { limit: 137 } });
  assert.deepEqual(await site.statuses(1000, () => site.get("/")), { 200: 137, 429: 863 });
});

test("two processes share a limit, one of them with node-redis", async (test) => {
  const other = await createClient({ url: server.url }).connect();
  test.after(() => other.destroy());
  const prefix = fresh();
  const sites = await Promise.all(
    [redis, other].map((client) => siteWith(test, { client, prefix, options: { limit: 100 } })),
  );
  const [one, two] = sites.map(({ site }) => site) as [Site, Site];
  const counts = await one.statuses(600, (turn) => (turn % 2 === 0 ? one : two).get("/"));
  assert.deepEqual(counts, { 200: 100, 429: 500 });
});

test("cluster calls are not redirected", async (test) => {
  const cluster = await clusterFor(test);
  const client = new Cluster(cluster.primaries.map(({ at }) => at));
  test.after(() => client.disconnect());
  const { site } = await siteWith(test, {
    client,
    options: { limit: 20, keyGenerator: (request) => `${request.get("x-user")}` },
  });
  const counts = await site.statuses(1000, (turn) => site.get("/", { "x-user": `${turn % 25}` }));
  assert.deepEqual(counts, { 200: 500, 429: 500 });
  assert.equal(await redirects(test, cluster), 0);
});

test("hits, remaining and reset are reported as express-rate-limit does", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const { site, limit, store } = await siteWith(test, {
    client: lookInto(test, server),
    options: { limit: 3 },
  });
  const header = ({ headers }: Answer) => [headers["ratelimit"], headers["retry-after"]];
  assert.deepEqual(header(await site.get("/")), ["limit=3, remaining=2, reset=3600", undefined]);
  clock.advance(60_000);
  assert.deepEqual(header(await site.get("/")), ["limit=3, remaining=1, reset=3540", undefined]);
  await site.get("/");
  assert.deepEqual(header(await site.get("/")), ["limit=3, remaining=0, reset=3540", "3540"]);
  assert.equal((await limit.getKey("127.0.0.1"))?.totalHits, 3);
  // A moment before its window ends a request is denied, and then a new window begins.
  clock.advance(HOUR - 60_001);
  assert.equal((await site.get("/")).status, 429);
  clock.advance(1);
  assert.deepEqual(header(await site.get("/")), ["limit=3, remaining=2, reset=3600", undefined]);

  await store.resetKey("127.0.0.1");
  assert.equal(await limit.getKey("127.0.0.1"), undefined);
  assert.equal((await site.get("/")).headers["ratelimit"], "limit=3, remaining=2, reset=3600");
});

test("any limit: a bucket reports the real wait, and denied requests are not charged", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const { site } = await siteWith(test, {
    client: lookInto(test, server),
    store: { limits: tokenBucket(2, 2, "1m") },
    options: { limit: 2 },
  });
  for (const status of [200, 200, 429, 429, 429])
    assert.equal((await site.get("/")).status, status);
  assert.equal((await site.get("/")).headers["retry-after"], "30");
  clock.advance(29_999);
  assert.equal((await site.get("/")).status, 429);
  clock.advance(1);
  assert.equal((await site.get("/")).status, 200);
});

for (const once of [true, false]) {
  const way = once ? "by their ids" : "without ids";
  test(`failed requests are given back ${way}, and denied requests are not`, async (test) => {
    const { site } = await siteWith(test, {
      store: { once },
      options: { limit: 5, skipFailedRequests: true },
    });
    for (let i = 0; i < 20; i++) assert.equal((await site.get("/?status=500")).status, 500);
    await settled(site, 5);
    for (let i = 0; i < 5; i++) assert.equal((await site.get("/")).status, 200);
    // If denied requests were given back, every second of these would pass.
    for (let i = 0; i < 20; i++) assert.equal((await site.get("/")).status, 429);
    assert.equal((await site.get("/")).headers["ratelimit"]?.slice(0, 20), "limit=5, remaining=0");
  });
}

/** Waits until units were given back, which is sent after the response. */
async function settled(site: Site, remaining: number): Promise<void> {
  for (;;) {
    const { headers } = await site.get("/?status=500");
    if (`${headers["ratelimit"]}`.includes(`remaining=${remaining - 1}`)) return;
  }
}

test("concurrent failed and successful requests: only successful ones count", async (test) => {
  const { site } = await siteWith(test, { options: { limit: 1000, skipFailedRequests: true } });
  const counts = await site.statuses(600, (turn) =>
    site.get(turn % 3 === 0 ? "/" : "/?status=503"),
  );
  assert.deepEqual(counts, { 200: 200, 503: 400 });
  await settled(site, 800);
});

test("successful requests are given back", async (test) => {
  const { site } = await siteWith(test, { options: { limit: 5, skipSuccessfulRequests: true } });
  for (let i = 0; i < 20; i++) assert.equal((await site.get("/")).status, 200);
  const statuses = [];
  for (let i = 0; i < 30; i++) statuses.push((await site.get("/?status=400")).status);
  const passed = statuses.filter((status) => status === 400).length;
  assert.equal(passed, 5);
});

test("limits differ from key to key, by a policy of the server", async (test) => {
  const limiter = new Limiter(redis, PATIENT);
  await limiter.policies.set("plan:free", fixed(2, "1h"));
  await limiter.policies.set("plan:pro", sliding(7, "1h"));
  const prefix = fresh();
  const store = new RateLimitStore(redis, {
    ...PATIENT,
    prefix,
    limits: (user) => policy(`user:${user}`, user === "ann" ? "plan:pro" : "plan:free"),
  });
  const { site } = await siteWith(test, {
    options: {
      store,
      limit: store.limit,
      keyGenerator: (request) => `${request.get("x-user")}`,
    },
  });
  for (const [user, limit] of [
    ["ann", 7],
    ["ben", 2],
  ] as const) {
    const counts = await site.statuses(100, () => site.get("/", { "x-user": user }));
    assert.deepEqual(counts, { 200: limit, 429: 100 - limit });
    const { headers } = await site.get("/", { "x-user": user });
    assert.match(`${headers["ratelimit"]}`, new RegExp(`^limit=${limit}, remaining=0`));
  }
});

test("limit that only express-rate-limit knows is counted for it", async (test) => {
  const { site } = await siteWith(test, {
    options: { limit: (request) => (request.query["big"] === undefined ? 3 : 5) },
  });
  const statuses = [];
  for (const path of ["/", "/", "/", "/", "/?big"]) statuses.push((await site.get(path)).status);
  assert.deepEqual(statuses, [200, 200, 200, 429, 200]);
});

test("outage is an error, or passes with passOnStoreError", async (test) => {
  const away = await serverFor(test);
  const client = new Redis(away.port, { enableOfflineQueue: false, retryStrategy: () => 10 });
  client.on("error", () => {});
  test.after(() => client.disconnect());
  const logger = { error: () => {}, warn: () => {} };
  const store = { timeout: 30, log: () => {} };
  const { site } = await siteWith(test, { client, store, options: { logger } });
  const { site: passing } = await siteWith(test, {
    client,
    store,
    options: { logger, passOnStoreError: true },
  });
  assert.equal((await site.get("/")).status, 200);
  await away.stop();
  assert.equal((await site.get("/")).status, 500);
  assert.equal((await passing.get("/")).status, 200);
});

test("store runs beside rate-limit-redis with another prefix", async (test) => {
  const key = "203.0.113.7";
  await redis.set(`rl:${key}`, "3", "PX", HOUR);
  test.after(() => redis.del(`rl:${key}`, `rl-store:${key}`));
  const store = new RateLimitStore(redis, PATIENT);
  const app = express();
  app.use(rateLimit({ windowMs: HOUR, limit: 10, store, keyGenerator: () => key }));
  app.get("/", (_request, response) => void response.end());
  assert.equal((await (await Site.serve(test, app)).get("/")).status, 200);
  assert.equal(await redis.get(`rl:${key}`), "3");
  assert.equal(await redis.exists(`rl-store:${key}`), 1);
  // With the same prefix the error says what to do.
  const mixed = new RateLimitStore(redis, { ...PATIENT, prefix: "rl:", log: () => {} });
  mixed.init({ windowMs: HOUR, limit: 10 } as Options);
  await assert.rejects(mixed.increment(key), /another key/);
});
