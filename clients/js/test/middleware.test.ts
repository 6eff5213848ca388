/** Express and Fastify with one line for a limit, over real HTTP. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { after, test } from "node:test";

import express from "express";
import express4 from "express4";
import Fastify from "fastify";
import { Cluster, Redis } from "ioredis";
import { createCluster } from "redis";
import {
  concurrency,
  fixed,
  policy,
  tokenBucket,
  Limiter,
  UNLIMITED,
  type Client,
  type Decision,
  type Keyed,
  type Limits,
} from "redis-ratelimit-client";
import * as forExpress from "redis-ratelimit-client/express";
import * as forFastify from "redis-ratelimit-client/fastify";

import { Site, type Answer } from "./support/http.js";
import { clockedServerFor, clusterFor, lookInto, redirects, serverFor } from "./support/server.js";
import type { Scope } from "./support/server.js";

/** Part of both frameworks' requests that is used here. */
interface Asked {
  readonly headers: Record<string, string | string[] | undefined>;
  readonly url: string;
}

interface Options {
  readonly limits: Limits | ((request: Asked) => Limits | Keyed);
  readonly client?: Client | Limiter;
  readonly key?: (request: Asked) => string | undefined | typeof UNLIMITED;
  readonly cost?: (request: Asked) => number;
  readonly headers?: boolean;
  readonly report?: (decision: Decision) => void;
  readonly onOutage?: "open" | "closed" | { share: number };
  readonly timeout?: number;
  readonly prefix?: string;
  readonly log?: (line: string) => void;
}

type Serve = (test: Scope, options: Options) => Promise<Site>;

const server = await serverFor({ after });
const redis = new Redis(server.url);
after(() => redis.disconnect());

let prefixes = 0;

/**
 * Options with long timeouts, as the machine may be busy, and with separate keys for each
 * application.
 */
const withDefaults = ({ limits, client = redis, ...options }: Options) => ({
  limits,
  client,
  options: {
    timeout: 30,
    rememberDenials: false,
    prefix: `test:${prefixes++}:`,
    log: () => {},
    ...options,
  },
});

const FRAMEWORKS: Record<string, Serve> = {
  "Express 5": async (test, given) => {
    const { client, limits, options } = withDefaults(given);
    const app = express();
    app.set("env", "test"); // prints no errors
    app.use(forExpress.rateLimit(client, limits, options));
    app.get("/", (request, response) => {
      response.json(forExpress.decisionFor(request)?.remaining ?? null);
    });
    return Site.serve(test, app);
  },
  "Express 4": async (test, given) => {
    const { client, limits, options } = withDefaults(given);
    const app = express4();
    app.set("env", "test"); // prints no errors
    app.use(forExpress.rateLimit(client, limits, options));
    app.get("/", (request, response) => {
      response.json(forExpress.decisionFor(request)?.remaining ?? null);
    });
    return Site.serve(test, app);
  },
  Fastify: async (test, given) => {
    const { client, limits, options } = withDefaults(given);
    const app = Fastify();
    app.addHook("onRequest", forFastify.rateLimit(client, limits, options));
    app.get("/", async (request) => forFastify.decisionFor(request)?.remaining ?? null);
    await app.listen({ port: 0, host: "127.0.0.1" });
    test.after(() => app.close());
    return new Site(test, (app.server.address() as { port: number }).port);
  },
};

const user = ({ headers }: Asked) => headers["x-user"] as string | undefined;

for (const [name, serve] of Object.entries(FRAMEWORKS)) {
  test(`${name}: exactly the limit passes for each address`, async (test) => {
    const site = await serve(test, { limits: fixed(100, "1h") });
    const counts = await site.statuses(1000, (turn) =>
      site.get("/", {}, turn % 2 === 0 ? "127.0.0.1" : "127.0.0.2"),
    );
    assert.deepEqual(counts, { 200: 200, 429: 800 });
  });

  test(`${name}: responses have the header fields`, async (test) => {
    const { server, clock } = await clockedServerFor(test);
    const site = await serve(test, {
      client: lookInto(test, server),
      limits: tokenBucket(2, 2, "1m", { name: "user" }),
    });
    const first = await site.get("/");
    assert.equal(first.body, "1");
    assert.equal(first.headers["ratelimit-policy"], '"user";q=2;w=60');
    assert.equal(first.headers["ratelimit"], '"user";r=1;t=30');
    assert.equal(first.headers["x-ratelimit-limit"], "2");
    assert.equal(first.headers["x-ratelimit-remaining"], "1");
    assert.equal(first.headers["x-ratelimit-reset"], "30");
    assert.equal(first.headers["retry-after"], undefined);
    await site.get("/");
    const denied = await site.get("/");
    assert.equal(denied.status, 429);
    assert.equal(denied.headers["retry-after"], "30");
    assert.equal(denied.headers["ratelimit"], '"user";r=0;t=30');
    assert.match(`${denied.headers["content-type"]}`, /^application\/problem\+json/);
    assert.equal(JSON.parse(denied.body).status, 429);
    // Retry-After is exact.
    clock.advance(29_999);
    assert.equal((await site.get("/")).status, 429);
    clock.advance(1);
    assert.equal((await site.get("/")).status, 200);
  });

  test(`${name}: violated limits are named among several`, async (test) => {
    const site = await serve(test, {
      limits: [fixed(5, "1h", { name: "requests", cost: 1 }), fixed(10, "2h", { name: "tokens" })],
      cost: ({ url }) => Number(new URL(url, "http://here").searchParams.get("cost") ?? 1),
    });
    const first = await site.get("/?cost=8");
    assert.equal(first.headers["ratelimit-policy"], '"requests";q=5;w=3600, "tokens";q=10;w=7200');
    assert.equal(first.headers["x-ratelimit-remaining"], "2");
    const denied = await site.get("/?cost=8");
    assert.deepEqual(JSON.parse(denied.body)["violated-policies"], ["tokens"]);
    assert.doesNotMatch(`${denied.headers["ratelimit"]}`, /requests/);
    const never = await site.get("/?cost=80");
    assert.equal(never.headers["retry-after"], undefined);
    assert.match(JSON.parse(never.body).detail, /more than the limit/);
  });

  test(`${name}: violated limits have the names of the header fields`, async (test) => {
    const named = /"([^"]+)";q=/g;
    for (const [limits, expected] of [
      [fixed(1, "1h"), ["default"]],
      [fixed(1, "1h", { name: "few" }), ["few"]],
      [[fixed(9, "1h"), fixed(1, "2h")], ["default-2"]],
      [
        [fixed(1, "1h"), fixed(1, "2h", { name: "few" })],
        ["default-1", "few"],
      ],
    ] as const) {
      const site = await serve(test, { limits });
      await site.get("/");
      const { headers, body } = await site.get("/");
      assert.deepEqual(JSON.parse(body)["violated-policies"], expected);
      const policies = [...`${headers["ratelimit-policy"]}`.matchAll(named)].map(([, one]) => one);
      assert.ok(expected.every((one) => policies.includes(one)));
    }
    const limiter = new Limiter(redis, { timeout: 30, prefix: `test:${prefixes++}:` });
    await limiter.policies.set("few", fixed(1, "1h"));
    const site = await serve(test, { client: limiter, key: user, limits: policy("few") });
    await site.get("/", { "x-user": "ann" });
    const { body, headers } = await site.get("/", { "x-user": "ann" });
    assert.deepEqual(JSON.parse(body)["violated-policies"], ["default"]);
    assert.equal(headers["ratelimit-policy"], '"default";q=1');
    const keyed = await serve(test, {
      limits: () => ({ "{t}:a": fixed(9, "1h"), "{t}:b": fixed(1, "1h", { name: "all" }) }),
    });
    await keyed.get("/");
    assert.deepEqual(JSON.parse((await keyed.get("/")).body)["violated-policies"], ["all"]);
  });

  test(`${name}: setup error is thrown instead of allowing the request`, async (test) => {
    const log: string[] = [];
    const prefix = `test:${prefixes++}:`;
    await redis.set(`${prefix}ann`, "no limiter");
    const site = await serve(test, {
      key: user,
      prefix,
      limits: fixed(2, "1h"),
      log: (line) => log.push(line),
    });
    const statuses = async (who: string) => {
      const found: number[] = [];
      for (let i = 0; i < 3; i++) found.push((await site.get("/", { "x-user": who })).status);
      return found;
    };
    assert.deepEqual(await statuses("ann"), [500, 500, 500]);
    assert.deepEqual(await statuses("ben"), [200, 200, 429]);
    assert.equal(log.length, 1);
    assert.match(log[0]!, /WRONGTYPE.*another key/);
    const nowhere = await serve(test, { limits: policy("nowhere"), log: () => {} });
    assert.equal((await nowhere.get("/")).status, 500);
    const unkeyed = await serve(test, { limits: fixed(2, "1h"), key: () => 42 as never });
    assert.equal((await unkeyed.get("/")).status, 500);
    const negative = await serve(test, { limits: fixed(2, "1h"), cost: () => -5 });
    assert.equal((await negative.get("/")).status, 500);
  });

  test(`${name}: full server is 503`, async (test) => {
    const small = await serverFor(test, { maxmemory: "1" });
    const client = lookInto(test, small);
    const site = await serve(test, { client, limits: fixed(2, "1h"), log: () => {} });
    const { status, headers, body } = await site.get("/");
    assert.equal(status, 503);
    assert.equal(headers["retry-after"], "1");
    assert.equal(headers["ratelimit"], undefined);
    assert.equal(JSON.parse(body)["violated-policies"], undefined);
  });

  test(`${name}: key, limits and UNLIMITED from functions`, async (test) => {
    const limiter = new Limiter(redis, { timeout: 30, prefix: `test:${prefixes++}:` });
    await limiter.policies.set("plan:free", fixed(2, "1h"));
    const failures: boolean[] = [];
    const site = await serve(test, {
      client: limiter,
      key: (request) => user(request) ?? UNLIMITED,
      limits: (request) => (user(request) === "ann" ? fixed(4, "1h") : policy("plan:free")),
      headers: false,
      report: ({ allowed }) => failures.push(allowed),
    });
    for (const [who, limit] of [
      ["ann", 4],
      ["ben", 2],
    ] as const) {
      const counts = await site.statuses(50, () => site.get("/", { "x-user": who }));
      assert.deepEqual(counts, { 200: limit, 429: 50 - limit });
    }
    assert.equal(failures.filter(Boolean).length, 6);
    const free = await site.get("/");
    assert.deepEqual([free.status, free.body], [200, "null"]);
    assert.equal(free.headers["ratelimit"], undefined);
  });

  test(`${name}: shadow policy has no header fields`, async (test) => {
    const limiter = new Limiter(redis, { timeout: 30, prefix: `test:${prefixes++}:` });
    await limiter.policies.set("trial", fixed(1, "1h", { shadow: true }));
    const site = await serve(test, { client: limiter, key: user, limits: policy("trial") });
    const { status, headers } = await site.get("/", { "x-user": "ann" });
    assert.equal(status, 200);
    assert.deepEqual(
      Object.keys(headers).filter((header) => header.includes("ratelimit")),
      [],
    );
  });

  test(`${name}: limits of a user and of all in a cluster are not redirected`, async (test) => {
    const cluster = await clusterFor(test);
    const ioredis = new Cluster(cluster.primaries.map(({ at }) => at));
    test.after(() => ioredis.disconnect());
    const nodeRedis = createCluster({
      rootNodes: cluster.primaries.map(({ at }) => ({ socket: at })),
    });
    await nodeRedis.connect();
    test.after(() => nodeRedis.destroy());
    for (const client of [ioredis, nodeRedis]) {
      const site = await serve(test, {
        client,
        limits: (request) => {
          const tenant = `{${user(request)!.slice(0, 1)}}`;
          return {
            [`${tenant}:${user(request)}`]: fixed(3, "1h"),
            [`${tenant}:all`]: fixed(5, "1h"),
          };
        },
      });
      const names = ["a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2"];
      const counts = await site.statuses(800, (turn) =>
        site.get("/", { "x-user": names[turn % names.length]! }),
      );
      assert.deepEqual(counts, { 200: 20, 429: 780 });
    }
    assert.equal(await redirects(test, cluster), 0);
  });

  test(`${name}: outage is open, closed or local`, async (test) => {
    const away = await serverFor(test);
    const client = new Redis(away.port, { enableOfflineQueue: false, retryStrategy: () => 10 });
    client.on("error", () => {});
    test.after(() => client.disconnect());
    await once(client, "ready");
    await away.stop();
    const outages = { open: [20, 0, 0], closed: [0, 0, 20], local: [5, 15, 0] } as const;
    for (const [how, [passed, denied, unavailable]] of Object.entries(outages)) {
      const onOutage = how === "local" ? { share: 0.5 } : (how as "open" | "closed");
      const site = await serve(test, { client, limits: fixed(10, "1h"), onOutage });
      const answers: Answer[] = [];
      for (let i = 0; i < 20; i++) answers.push(await site.get("/"));
      const count = (status: number) => answers.filter((one) => one.status === status).length;
      assert.deepEqual([count(200), count(429), count(503)], [passed, denied, unavailable], how);
      assert.ok(answers.every(({ headers }) => headers["ratelimit"] === undefined));
      const refused = answers.find(({ status }) => status === 503);
      if (refused) assert.ok(Number(refused.headers["retry-after"]) >= 1);
    }
  });

  test(`${name}: invalid limit is an error of the application`, async (test) => {
    const site = await serve(test, { limits: { words: ["FIXED", "many", "1h"] } });
    assert.equal((await site.get("/")).status, 500);
    const pool = await serve(test, { limits: concurrency(1, 30) });
    assert.equal((await pool.get("/")).status, 500);
  });
}

test("Fastify: one route", async (test) => {
  const app = Fastify();
  const onRequest = forFastify.rateLimit(redis, fixed(2, "1h"), { timeout: 30, prefix: "one:" });
  app.get("/limited", { onRequest }, async () => "yes");
  app.get("/free", async () => "yes");
  await app.listen({ port: 0, host: "127.0.0.1" });
  test.after(() => app.close());
  const site = new Site(test, (app.server.address() as { port: number }).port);
  assert.deepEqual(await site.statuses(10, () => site.get("/limited")), { 200: 2, 429: 8 });
  assert.deepEqual(await site.statuses(10, () => site.get("/free")), { 200: 10 });
});
