/** Keys of limits and of clients, by the tables that all packages share. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { after, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import express, { type Request, type Response } from "express";
import { Redis } from "ioredis";
import {
  BoundLimit,
  Limiter,
  UNLIMITED,
  concurrency,
  fixed,
  leakyBucket,
  network,
  policy,
  rate,
  sketch,
  sliding,
  slidingLog,
  specOf,
  tokenBucket,
  type Limit,
  type Limits,
} from "redis-ratelimit-client";
import { rateLimit, type RateLimitOptions } from "redis-ratelimit-client/express";
import { RateLimitStore } from "redis-ratelimit-client/express-rate-limit";

import { Site } from "./support/http.js";
import { lookInto, serverFor } from "./support/server.js";

const TABLES = resolve(import.meta.dirname, "../..");
const table = (name: string) => JSON.parse(readFileSync(join(TABLES, name), "utf8"));

const server = await serverFor({ after });
const redis = lookInto({ after }, server);
const PATIENT = { timeout: 30, rememberDenials: false } as const;

const CONSTRUCTORS: Record<string, (...words: never[]) => Limit> = {
  FIXED: fixed,
  TOKENBUCKET: tokenBucket,
  LEAKYBUCKET: leakyBucket,
  CONCURRENCY: concurrency,
  SLIDING: sliding,
  SLIDINGLOG: slidingLog,
  SKETCH: sketch,
  POLICY: policy,
};

const limitOf = ([kind, ...words]: [string, ...never[]]) => CONSTRUCTORS[kind]!(...words);
const limitsOf = (limits: [string, ...never[]][]): Limits =>
  limits.length === 1 ? limitOf(limits[0]!) : limits.map(limitOf);

test("addresses have one canonical form", () => {
  for (const { text, key, ipv6_prefix } of table("addresses.json").addresses) {
    const options = ipv6_prefix === undefined ? {} : { ipv6Prefix: ipv6_prefix };
    assert.equal(network(text, options), key ?? undefined, text);
  }
  assert.equal(network(undefined), undefined);
  for (const ipv6Prefix of [0, 129, 1.5]) {
    assert.throws(() => network("::1", { ipv6Prefix }), /whole number from 1 to 128/);
    assert.throws(() => rateLimit(redis, fixed(1, 1), { ipv6Prefix }), /from 1 to 128/);
  }
});

test("limits have one canonical form", () => {
  for (const { limits, spec } of table("keys.json").specs) {
    assert.equal(specOf(limitsOf(limits)), spec);
  }
});

test("rates are parsed to limits", () => {
  const { rates, refused } = table("rates.json");
  for (const { text, limit } of rates) {
    assert.equal(specOf(text), specOf(limitOf(limit)), text);
    assert.equal(rate(text).quota, limit[1], text);
  }
  for (const text of refused) assert.throws(() => rate(text), /not a rate.*100\/minute/, text);
});

interface Row {
  limits: [string, ...never[]][];
  prefix?: string;
  name?: string;
  who?: string | null;
  address?: string | null;
  key: string;
}

/** Sends one request through a middleware, and returns the keys that are then on the server. */
async function keysAfter(row: Row, client: Redis | Limiter, options: object): Promise<string[]> {
  const limit = rateLimit(client, limitsOf(row.limits), {
    ...PATIENT,
    log: () => {},
    ...(row.name === undefined ? {} : { name: row.name }),
    ...("who" in row ? { key: () => row.who } : {}),
    ...options,
  });
  await redis.flushall();
  const [kind, name] = row.limits[0]! as unknown as [string, string];
  if (kind === "POLICY") await new Limiter(redis).policies.set(name, fixed(1, 1));
  const request = { ip: row.address ?? undefined } as Request;
  await new Promise<void>((resolve, reject) => {
    const response = { set: () => response } as unknown as Response;
    void limit(request, response, (error?: unknown) => (error ? reject(error) : resolve()));
  });
  const own = client instanceof Limiter ? (row.prefix ?? "") : "";
  const isItem = kind === "SKETCH";
  if (!isItem) assert.equal(own + limit.keyOf(row.who, row.address), row.key);
  else assert.equal(limit.keyOf(row.who, row.address), row.key);
  return redis.keys("*");
}

test("key of a middleware is its name or its canonical words, and the client", async () => {
  for (const row of table("keys.json").keys as Row[]) {
    const { prefix = "", key } = row;
    const found = await keysAfter(row, new Limiter(redis, { ...PATIENT, prefix }), {});
    const isItem = row.limits[0]![0] === "SKETCH";
    assert.deepEqual(found, [isItem ? `${prefix}addresses` : key]);
  }
});

test("explicit prefix of a middleware counts as a name", async () => {
  const { prefixes, refused_prefixes, refused_names } = table("keys.json");
  for (const row of prefixes as Row[]) {
    assert.deepEqual(await keysAfter(row, redis, { prefix: row.prefix }), [row.key]);
    const shared = new Limiter(redis, PATIENT);
    const options = { prefix: row.prefix };
    assert.deepEqual(await keysAfter({ ...row, prefix: "" }, shared, options), [row.key]);
  }
  for (const prefix of refused_prefixes) {
    assert.throws(() => rateLimit(redis, fixed(1, 1), { prefix }), /begin with ip:/);
  }
  for (const name of refused_names) {
    assert.throws(() => rateLimit(redis, fixed(1, 1), { name }), /begin with ip:/);
    assert.throws(() => new Limiter(redis).limit(name, fixed(1, 1)), /begin with ip:/);
  }
});

/** Serves an application with middlewares and sends requests to it. */
async function siteOf(
  test: Parameters<typeof Site.serve>[0],
  use: (app: express.Express) => unknown,
): Promise<Site> {
  const app = express();
  app.set("env", "test"); // prints no errors
  use(app);
  app.get(/.*/, (_request, response) => void response.end());
  return Site.serve(test, app);
}

test("two limits of one client have separate usage", async (test) => {
  await redis.flushall();
  const site = await siteOf(test, (app) => {
    app.use(rateLimit(redis, fixed(100, "1h"), PATIENT));
    app.use(rateLimit(redis, fixed(200, "1d"), PATIENT));
    app.use("/login", rateLimit(redis, "5/15 minutes", PATIENT));
  });
  assert.deepEqual(await site.statuses(10, () => site.get("/login")), { 200: 5, 429: 5 });
  assert.deepEqual(await site.statuses(150, () => site.get("/")), { 200: 90, 429: 60 });
});

test("keys of a middleware can be reset and banned", async (test) => {
  await redis.flushall();
  const limiter = new Limiter(redis, { ...PATIENT, prefix: "app:" });
  const limit = rateLimit(limiter, "1/hour", { key: (request) => request.get("x-user") });
  const site = await siteOf(test, (app) => app.use(limit));
  const status = async (headers = {}) => (await site.get("/", headers)).status;
  const ann = { "x-user": "ann" };
  assert.deepEqual([await status(ann), await status(ann)], [200, 429]);
  await limiter.reset(limit.keyOf("ann"));
  assert.equal(await status(ann), 200);
  await limiter.ban(limit.keyOf(null, "127.0.0.1"), "1h");
  assert.equal(await status(), 429);
});

test("missing key falls back to the address, which no header can name", async (test) => {
  await redis.flushall();
  const key = (request: Request) => request.get("x-user");
  const site = await siteOf(test, (app) =>
    app.use(rateLimit(redis, "2/hour", { ...PATIENT, key })),
  );
  const user = (name: string) => site.get("/", { "x-user": name });
  for (const name of ["127.0.0.1", "ip:127.0.0.1", ":127.0.0.1", "ip:FIXED 2 3600000:127.0.0.1"]) {
    assert.deepEqual(await site.statuses(3, () => user(name)), { 200: 2, 429: 1 });
  }
  assert.deepEqual(await site.statuses(3, () => site.get("/")), { 200: 2, 429: 1 });
  assert.equal((await user("")).status, 429);
  assert.equal((await site.get("/", {}, "127.0.0.2")).status, 200);
});

test("request is unlimited only by UNLIMITED", async (test) => {
  const key = (request: Request) => (request.get("x-admin") ? UNLIMITED : undefined);
  const limits = (request: Request) => (request.get("x-free") ? UNLIMITED : fixed(1, "1h"));
  const site = await siteOf(test, (app) =>
    app.use(rateLimit(redis, limits, { ...PATIENT, key, name: "free" })),
  );
  for (const header of ["x-admin", "x-free"]) {
    const { status, headers } = await site.get("/", { [header]: "1" });
    assert.deepEqual([status, headers["ratelimit"]], [200, undefined]);
  }
  const statuses = await site.statuses(3, () => site.get("/"));
  assert.deepEqual(statuses, { 200: 1, 429: 2 });
});

test("clients behind a proxy that sends ports are distinguished", async (test) => {
  await redis.flushall();
  const site = await siteOf(test, (app) => {
    app.set("trust proxy", 1);
    app.use(rateLimit(redis, "2/hour", PATIENT));
  });
  const from = (address: string) => site.get("/", { "x-forwarded-for": address });
  let port = 50_000;
  for (const host of ["203.0.113.1", "203.0.113.2", "[2001:db8:1:2::6]"]) {
    const statuses = await site.statuses(4, () => from(`${host}:${port++}`));
    assert.deepEqual(statuses, { 200: 2, 429: 2 }, host);
  }
  assert.equal((await from("2001:db8:1:2::7")).status, 429);
});

test("requests without an address share a key, which is logged", async (test) => {
  await redis.flushall();
  const log: string[] = [];
  const options = { ...PATIENT, log: (line: string) => void log.push(line) };
  const site = await siteOf(test, (app) => {
    app.set("trust proxy", 1);
    app.use(rateLimit(redis, "2/hour", options));
  });
  const from = (address: string) => site.get("/", { "x-forwarded-for": address });
  const statuses = await site.statuses(4, (turn) => from(`_hidden${turn}`));
  assert.deepEqual(statuses, { 200: 2, 429: 2 });
  assert.deepEqual(await redis.keys("*"), ["ip:FIXED 2 3600000:unknown"]);
  assert.equal(log.length, 1);
  assert.match(log[0]!, /"_hidden\d".*ip:FIXED 2 3600000:unknown/);
});

test("ipv6Prefix sets the length of IPv6 networks", async (test) => {
  const site = await siteOf(test, (app) => {
    app.set("trust proxy", 1);
    app.use(rateLimit(redis, "1/hour", { ...PATIENT, name: "wide", ipv6Prefix: 48 }));
  });
  const from = (address: string) => site.get("/", { "x-forwarded-for": address });
  assert.equal((await from("2001:db8:1:2::1")).status, 200);
  assert.equal((await from("2001:db8:1:3::1")).status, 429);
  assert.equal((await from("2001:db8:2:2::1")).status, 200);
});

test("limits from a function need a name, unless they are by key", async (test) => {
  let failure: unknown;
  const served = (options: RateLimitOptions<Request, Response>, limits: () => never) =>
    siteOf(test, (app) => {
      app.use(rateLimit(redis, limits, { ...PATIENT, ...options }));
      app.use(((error, _request, response, _next) => {
        failure = error;
        response.status(500).end();
      }) satisfies express.ErrorRequestHandler);
    });
  const one = () => fixed(9, "1h") as never;
  assert.equal((await (await served({}, one)).get("/")).status, 500);
  assert.match(`${failure}`, /TypeError: limits from a function need a name: .*name: "api"/);
  assert.equal((await (await served({ name: "f" }, one)).get("/")).status, 200);
  assert.equal((await (await served({ prefix: "f:" }, one)).get("/")).status, 200);
  const keyed = () => ({ "{t}:a": fixed(9, "1h") }) as never;
  await redis.flushall();
  assert.equal((await (await served({}, keyed)).get("/")).status, 200);
  assert.equal((await (await served({ prefix: "p:" }, keyed)).get("/")).status, 200);
  assert.deepEqual((await redis.keys("*")).sort(), ["p:{t}:a", "{t}:a"]);
});

test("name is in use while any limits are bound to it", async () => {
  setFlagsFromString("--expose-gc");
  const collectGarbage = runInNewContext("gc") as () => void;
  const limiter = new Limiter(redis, { prefix: "use:" });
  limiter.limit("api", fixed(100, "1h"));
  const second = limiter.limit("api", fixed(200, "1h"));
  // A WeakRef keeps its target until the end of a turn of the event loop.
  await setImmediate();
  collectGarbage();
  assert.throws(() => limiter.limit("api", fixed(1, "1d")), /bound already/);
  assert.equal(second.name, "api");
});

test("name is bound to limits of one algorithm and window", () => {
  const limiter = new Limiter(redis, { prefix: "bind:" });
  const bound = [limiter.limit("api", fixed(100, "1h"))];
  bound.push(limiter.limit("api", fixed(200, "60m")), limiter.limit("other", fixed(1, "1d")));
  for (const limits of [fixed(100, "1d"), sliding(100, "1h"), ["100/h", "200/d"], policy("p")]) {
    assert.throws(
      () => limiter.limit("api", limits),
      /TypeError: bind:api is bound already to FIXED 3600000.*a name of its own/,
    );
  }
  assert.throws(
    () => rateLimit(redis, fixed(1, "1d"), { prefix: "bind:", name: "api" }),
    /bound already/,
  );
  const bucket = limiter.limit("bucket", tokenBucket(10, 1, "1s"));
  assert.ok(limiter.limit("bucket", tokenBucket(20, 5, "1m")) !== bucket);
  // Another prefix makes another key.
  const other = new Limiter(redis, { prefix: "bind:2:" });
  assert.ok(other.limit("api", sliding(1, "1d")) instanceof BoundLimit);
});

test("second store with one client and prefix is rejected", () => {
  const stores = [new RateLimitStore(redis), new RateLimitStore(redis, { prefix: "login:" })];
  assert.throws(() => new RateLimitStore(redis), /TypeError: another store.*"rl-store:".*its own/);
  assert.equal(stores.length, 2);
});

test("invalid limit error shows the right form", async () => {
  const limiter = new Limiter(redis, PATIENT);
  for (const [wrong, message] of [
    [undefined, /a limit is missing.*fixed\(100, "1m"\) or "100\/minute"/],
    [null, /a limit is missing/],
    [{}, /not a limit: \{\}; give one such as/],
    [[100, 60], /not a limit: 100; give one such as/],
    ["10/fortnight", /not a rate, such as "100\/minute".*"10\/fortnight"/],
    [[], /at least one limit is needed/],
    [() => fixed(1, 1), /not a limit/],
  ] as [never, RegExp][]) {
    for (const call of [
      async () => limiter.take("k", wrong),
      async () => limiter.take("k", wrong, { cost: 2 }),
      async () => limiter.peek("k", wrong),
      async () => limiter.units("k", wrong),
      async () => limiter.limit("k", wrong),
      async () => limiter.giveBack("k", wrong),
    ]) {
      await assert.rejects(call, (error: Error) => message.test(error.message), `${message}`);
    }
    if (!Array.isArray(wrong)) {
      await assert.rejects(limiter.takeAll({ k: wrong }), message);
      if (typeof wrong !== "function") assert.throws(() => rateLimit(limiter, wrong), message);
    }
  }
});

test("rate is accepted wherever a limit is", async () => {
  const limiter = new Limiter(redis, { ...PATIENT, prefix: "rates:" });
  assert.equal((await limiter.take("k", ["10/minute", fixed(20, "1h")])).remaining, 9);
  assert.equal((await limiter.takeAll({ "{a}": "3/hour", "{a}b": "5/hour" })).remaining, 2);
  const bound = limiter.limit("api", "3/hour");
  assert.equal((await bound.take("ann")).remaining, 2);
  assert.equal((await bound.giveBack("ann")).remaining, 3);
  await limiter.policies.set("rate", ["3/hour", "10/day"]);
  assert.match((await limiter.policies.get("rate"))!.specs, /FIXED 3 .*FIXED 10/);
});
