/**
 * Applications of each framework, and replacements of each peer's class, get a limit by one line.
 */

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";

import rateLimitOfFastify from "@fastify/rate-limit";
import { serve } from "@hono/node-server";
import { Controller, Get, Module, type INestApplication } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import express from "express";
import { slowDown } from "express-slow-down";
import fastify from "fastify";
import { Hono } from "hono";
import { Redis } from "ioredis";
import Koa from "koa";
import type { RateLimiterRes as Peers } from "rate-limiter-flexible";
import { Limiter, SetupError, UnavailableError, fixed } from "redis-ratelimit-client";
import { rateLimit as rateLimitOfExpress } from "redis-ratelimit-client/express";
import { RateLimitStore } from "redis-ratelimit-client/express-rate-limit";
import { rateLimit as rateLimitOfFastifyHook } from "redis-ratelimit-client/fastify";
import { storeFor } from "redis-ratelimit-client/fastify-rate-limit";
import { rateLimit as rateLimitOfHono } from "redis-ratelimit-client/hono";
import { rateLimit as rateLimitOfKoa } from "redis-ratelimit-client/koa";
import { ThrottlerStorage } from "redis-ratelimit-client/nestjs-throttler";
import { RateLimiter, RateLimiterRes } from "redis-ratelimit-client/rate-limiter-flexible";
import { rateLimit as rateLimitOfWeb } from "redis-ratelimit-client/web";

import { calls, lookInto, serverFor, type Scope } from "./support/server.js";

const server = await serverFor({ after });
const admin = lookInto({ after }, server);
const LIMIT = fixed(2, "1h");

let names = 0;
const bound = (limit = LIMIT) => new Limiter(admin, { timeout: 30 }).limit(`s${names++}`, limit);

async function served(test: Scope, listener: RequestListener): Promise<string> {
  const http = createServer(listener).listen(0, "127.0.0.1");
  await once(http, "listening");
  test.after(() => http.close());
  return `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
}

async function send(url: string, times = 3): Promise<Response[]> {
  const answers = [];
  for (let i = 0; i < times; i++) answers.push(await fetch(url));
  return answers;
}

async function deniesTheThird(answers: readonly Response[]): Promise<void> {
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200, 429],
  );
  const [first, , third] = answers;
  assert.equal(first!.headers.get("X-RateLimit-Remaining"), "1");
  assert.equal(await first!.text(), "hello");
  assert.match(`${third!.headers.get("Retry-After")}`, /^3[56]\d\d$/);
  assert.match(third!.headers.get("Content-Type")!, /^application\/problem\+json/);
  const body = (await third!.json()) as Record<string, unknown>;
  assert.equal(body["status"], 429);
  const [name] = body["violated-policies"] as string[];
  assert.match(name!, /^s\d+$/);
  assert.ok(third!.headers.get("RateLimit-Policy")!.startsWith(`"${name}";q=2`));
}

test("Koa middleware", async (test) => {
  const app = new Koa();
  const api = bound();
  app.use(rateLimitOfKoa(api));
  app.use((context) => {
    context.body = "hello";
  });
  await deniesTheThird(await send(await served(test, app.callback())));
  assert.equal(await admin.exists(`${api.name}:127.0.0.1`), 1);
});

test("Hono middleware", async (test) => {
  const app = new Hono();
  const api = bound();
  app.use(rateLimitOfHono(api));
  app.get("/", (context) => context.text("hello"));
  const http = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
  await once(http, "listening");
  test.after(() => http.close());
  const { port } = http.address() as AddressInfo;
  await deniesTheThird(await send(`http://127.0.0.1:${port}/`));
  assert.equal(await admin.exists(`${api.name}:127.0.0.1`), 1);
});

test("Hono without an address needs a key", async () => {
  const app = new Hono();
  app.use(rateLimitOfHono(bound(), { key: (context) => context.req.header("x-user") }));
  app.get("/", (context) => context.text("hello"));
  const answers = [];
  const headers = { "X-User": "alice" };
  for (let i = 0; i < 3; i++) answers.push(await app.request("/", { headers }));
  await deniesTheThird(answers);
  const bare = new Hono().use(rateLimitOfHono(bound()));
  bare.onError((error) => new Response(error.message, { status: 500 }));
  assert.match(await (await bare.request("/")).text(), /by key/);
});

test("handler of web requests", async () => {
  const key = (request: Request) => request.headers.get("x-user") ?? undefined;
  const api = bound();
  const GET = rateLimitOfWeb(api, { key })((_: Request, { name }: { name: string }) =>
    Response.json({ name }, { statusText: "fine", headers: { "X-RateLimit-Reset": "own" } }),
  );
  const from = (user: string) => new Request("http://test/", { headers: { "x-user": user } });
  const answers = [];
  for (let i = 0; i < 3; i++) answers.push(await GET(from("alice"), { name: "Ann" }));
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200, 429],
  );
  const [first] = answers;
  assert.deepEqual(await first!.json(), { name: "Ann" });
  assert.equal(first!.statusText, "fine");
  assert.equal(first!.headers.get("X-RateLimit-Remaining"), "1");
  assert.equal(first!.headers.get("X-RateLimit-Reset"), "own");
  assert.equal((await GET(from("bob"), { name: "Bob" })).status, 200);
  assert.equal((await GET(new Request("http://test/"), { name: "?" })).status, 200);
  assert.equal(await admin.exists(`ip:${api.name}:unknown`), 1);
  const address = () => "203.0.113.1:50001";
  const addressed = rateLimitOfWeb(api, { key, address })(() => new Response("hello"));
  await addressed(new Request("http://test/"));
  assert.equal(await admin.exists(`ip:${api.name}:203.0.113.1`), 1);
  const unnamed = rateLimitOfWeb(bound())(() => new Response("hello"));
  await assert.rejects(async () => unnamed(from("alice")), /by key/);
});

async function nestOf(storage: ThrottlerStorage, limit: number): Promise<INestApplication> {
  class Hello {
    hello(): string {
      return "hello";
    }
  }
  Controller()(Hello);
  const method = Object.getOwnPropertyDescriptor(Hello.prototype, "hello")!;
  Get()(Hello.prototype, "hello", method);
  class App {}
  Module({
    imports: [ThrottlerModule.forRoot({ throttlers: [{ ttl: 3_600_000, limit }], storage })],
    controllers: [Hello],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(App);
  const app = await NestFactory.create(App, { logger: false });
  await app.listen(0, "127.0.0.1");
  return app;
}

test("NestJS storage", async (test) => {
  const storage = new ThrottlerStorage(admin, { prefix: `nest${names++}:`, timeout: 30 });
  const app = await nestOf(storage, 2);
  test.after(() => app.close());
  const answers = await send(await app.getUrl());
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200, 429],
  );
  assert.equal(answers[0]!.headers.get("X-RateLimit-Remaining"), "1");
  assert.match(`${answers[2]!.headers.get("Retry-After")}`, /^3[56]\d\d$/);
});

test("NestJS storage blocks for its blockDuration", async () => {
  const storage = new ThrottlerStorage(admin, { prefix: `nest${names++}:`, timeout: 30 });
  const hits = () => storage.increment("k", 60_000, 2, 3_600_000, "default");
  assert.deepEqual(await hits(), {
    totalHits: 1,
    timeToExpire: 60,
    isBlocked: false,
    timeToBlockExpire: 0,
  });
  await hits();
  const { totalHits, isBlocked } = await hits();
  assert.deepEqual([totalHits, isBlocked], [3, true]);
  assert.equal((await hits()).timeToBlockExpire, 3600);
});

test("NestJS storage keeps to the limit with a blockDuration below the window", async () => {
  const storage = new ThrottlerStorage(admin, { prefix: `nest${names++}:`, timeout: 30 });
  const hits = () => storage.increment("k", 3_600_000, 1, 1000, "default");
  await hits();
  const { isBlocked, timeToBlockExpire } = await hits();
  assert.ok(isBlocked && timeToBlockExpire > 1000);
});

test("@fastify/rate-limit store", async (test) => {
  const app = fastify();
  test.after(() => app.close());
  const store = storeFor(admin, { prefix: `fastify${names++}:`, timeout: 30 });
  await app.register(rateLimitOfFastify, { max: 2, timeWindow: 3_600_000, store });
  app.get("/", () => "hello");
  app.get("/own", { config: { rateLimit: { max: 1 } } }, () => "own");
  const answers = [];
  for (let i = 0; i < 3; i++) answers.push(await app.inject("/"));
  assert.deepEqual(
    answers.map(({ statusCode }) => statusCode),
    [200, 200, 429],
  );
  assert.equal(answers[0]!.headers["x-ratelimit-remaining"], "1");
  assert.match(`${answers[2]!.headers["retry-after"]}`, /^3[56]\d\d$/);
  // A route's own limit has separate usage.
  assert.equal((await app.inject("/own")).statusCode, 200);
  assert.equal((await app.inject("/own")).statusCode, 429);
});

test("rate-limiter-flexible class", async () => {
  const options = { storeClient: admin, points: 5, duration: 3600, timeout: 30 };
  const limiter = new RateLimiter({ ...options, keyPrefix: `flex${names++}` });
  assert.equal(await limiter.get("k"), null);
  const first = await limiter.consume("k", 2);
  assert.ok(first instanceof RateLimiterRes);
  // It has the fields of the peer's class.
  first satisfies Omit<Peers, "toString" | "toJSON">;
  const { remainingPoints, consumedPoints, isFirstInDuration, msBeforeNext } = first;
  assert.deepEqual([remainingPoints, consumedPoints, isFirstInDuration], [3, 2, true]);
  assert.ok(3_590_000 < msBeforeNext && msBeforeNext <= 3_600_000);
  assert.equal((await limiter.consume("k", 3)).isFirstInDuration, false);
  const denied: unknown = await limiter.consume("k").catch((why: unknown) => why);
  assert.ok(denied instanceof RateLimiterRes);
  assert.ok(3_590_000 < denied.msBeforeNext && denied.remainingPoints === 0);
  assert.equal((await limiter.reward("k", 2)).remainingPoints, 2);
  assert.equal((await limiter.penalty("k", 4)).remainingPoints, 0);
  assert.equal((await limiter.get("k"))!.remainingPoints, 0);
  assert.equal((await limiter.get("k"))!.consumedPoints, 7);
  assert.equal(await limiter.delete("k"), true);
  assert.equal(await limiter.get("k"), null);
  await limiter.block("k", 60);
  assert.equal((await limiter.get("k"))!.consumedPoints, 6);
  assert.equal((await limiter.penalty("k")).consumedPoints, 6);
  const blocked: unknown = await limiter.consume("k").catch((why: unknown) => why);
  assert.ok(blocked instanceof RateLimiterRes && blocked.msBeforeNext > 59_000);

  const blocking = new RateLimiter({ ...options, blockDuration: 7200, keyPrefix: `f${names++}` });
  await blocking.consume(42, 5);
  await assert.rejects(blocking.consume(42));
  const after: unknown = await blocking.consume(42).catch((why: unknown) => why);
  assert.ok(after instanceof RateLimiterRes && after.msBeforeNext > 7_100_000);
});

test("rate-limiter-flexible: recipe for logins locks", async () => {
  const options = { storeClient: admin, points: 3, duration: 3600, timeout: 30 };
  for (const more of [{}, { blockDuration: 7200 }, { inMemoryBlockOnConsumed: 3 }]) {
    const limiter = new RateLimiter({ ...options, ...more, keyPrefix: `login${names++}` });
    let tried = 0;
    const login = async () => {
      const result = await limiter.get("ann");
      if (result !== null && result.consumedPoints > limiter.points) return "locked";
      tried++;
      // The password is wrong.
      return limiter.consume("ann").then(
        () => "wrong",
        () => "locked",
      );
    };
    const answers = [];
    for (let i = 0; i < 10; i++) answers.push(await login());
    assert.equal(tried, 3);
    assert.deepEqual(answers, ["wrong", "wrong", "wrong", ...Array<string>(7).fill("locked")]);
  }
});

test("rate-limiter-flexible: set points, windows of a call and points as text", async () => {
  const options = { storeClient: admin, points: 5, duration: 3600, timeout: 30 };
  const limiter = new RateLimiter({ ...options, keyPrefix: `set${names++}` });
  assert.equal(limiter.getKey("k"), `${limiter.keyPrefix}:k`);
  assert.equal((await limiter.set("k", 12)).consumedPoints, 12);
  assert.equal((await limiter.get("k"))!.consumedPoints, 12);
  await assert.rejects(limiter.consume("k"), RateLimiterRes);
  assert.equal((await limiter.set("k", "4")).msBeforeNext, 3_600_000);
  assert.equal((await limiter.consume("k", "1")).remainingPoints, 0);
  await limiter.set("k", 9, 7200);
  const denied: unknown = await limiter.consume("k").catch((rejection: unknown) => rejection);
  assert.ok(denied instanceof RateLimiterRes && denied.msBeforeNext > 7_000_000);
  await limiter.set("k", 0);
  assert.equal(await limiter.get("k"), null);
  const custom = await limiter.consume("c", 2, { customDuration: 60 });
  assert.ok(custom.msBeforeNext <= 60_000);
  for (const points of ["2.0", "-1", "many", ""]) {
    await assert.rejects(limiter.consume("t", points), /string different than integer/);
  }
});

test("rate-limiter-flexible: key is blocked in memory, without calls", async () => {
  let now = 0;
  const options = { storeClient: admin, points: 2, duration: 3600, timeout: 30, now: () => now };
  const limiter = new RateLimiter({
    ...options,
    keyPrefix: `mem${names++}`,
    inMemoryBlockOnConsumed: 2,
    rememberDenials: false,
  });
  await limiter.consume("k");
  assert.equal((await limiter.consume("k")).remainingPoints, 0);
  const before = await calls(admin);
  const denied: unknown = await limiter.consume("k").catch((rejection: unknown) => rejection);
  assert.ok(denied instanceof RateLimiterRes && denied.msBeforeNext > 3_000_000);
  assert.equal(await calls(admin), before);
  await limiter.delete("k");
  await limiter.consume("k", 2);
  limiter.deleteInMemoryBlockedAll();
  await assert.rejects(limiter.consume("k"), RateLimiterRes);
  assert.equal(await calls(admin), before + 2);

  const longer = new RateLimiter({
    ...options,
    keyPrefix: `mem${names++}`,
    inMemoryBlockOnConsumed: 2,
    inMemoryBlockDuration: 7200,
  });
  await longer.consume("k", 2);
  const blocked: unknown = await longer.consume("k").catch((rejection: unknown) => rejection);
  assert.ok(blocked instanceof RateLimiterRes && blocked.msBeforeNext === 7_200_000);
  await longer.delete("k");
  await longer.consume("k", 2);
  await assert.rejects(longer.consume("k"));
  now += 7_200_001;
  await longer.reward("k", 1);
  assert.equal((await longer.consume("k")).remainingPoints, 0);
  for (const wrong of [{ inMemoryBlockOnConsumed: 1 }, { inMemoryBlockDuration: 1 }]) {
    assert.throws(() => new RateLimiter({ ...options, ...wrong }), /inMemoryBlockOnConsumed/);
  }
});

test("rate-limiter-flexible: endless block, and unknown options", async () => {
  const limiter = new RateLimiter({ storeClient: admin, keyPrefix: `rlf${names++}`, timeout: 30 });
  // As with the peer, 0 blocks for ever and lifts nothing.
  assert.equal((await limiter.block("k", 0)).msBeforeNext, -1);
  await assert.rejects(limiter.consume("k"), RateLimiterRes);
  const options = { storeClient: admin, keyPrefix: `rlf${names++}`, timeout: 30 };
  const strict = new RateLimiter({ ...options, points: 1, duration: 1, blockDuration: 3600 });
  for (const points of [2, 1]) {
    const denied = await strict.consume("k", points).catch((rejection: unknown) => rejection);
    assert.ok(denied instanceof RateLimiterRes && denied.msBeforeNext > 3_500_000, `${points}`);
  }
  for (const option of ["insuranceLimiter", "execEvenly"]) {
    const options = { storeClient: admin, [option]: 1 };
    assert.throws(() => new RateLimiter(options), new RegExp(`not an option here: ${option}`));
  }
});

test("rate-limiter-flexible in an outage", async (test) => {
  const away = await serverFor(test);
  const client = new Redis(away.port, { enableOfflineQueue: false, retryStrategy: () => 10 });
  client.on("error", () => {});
  test.after(() => client.disconnect());
  await once(client, "ready");
  await away.stop();
  const limiter = new RateLimiter({ storeClient: client, points: 5, log: () => {} });
  await assert.rejects(limiter.consume("k"), UnavailableError);
  const open = new RateLimiter({ storeClient: client, onOutage: "open", log: () => {} });
  assert.ok((await open.consume("k")) instanceof RateLimiterRes);
});

test("express-slow-down store", async (test) => {
  const app = express();
  const store = new RateLimitStore(admin, { prefix: `slow${names++}:`, timeout: 30 });
  const delays: number[] = [];
  const delayMs = (used: number) => {
    delays.push(used);
    return 1;
  };
  app.use(slowDown({ windowMs: 3_600_000, delayAfter: 2, delayMs, store }));
  app.get("/", (_, response) => void response.send("hello"));
  const answers = await send(await served(test, app), 5);
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200, 200, 200, 200],
  );
  assert.deepEqual(delays, [3, 4, 5]);
});

/**
 * Runs an application as a new user writes it. Returns its responses, and the error of its first
 * request.
 */
type First = (test: Scope, client: Redis) => Promise<{ statuses: number[]; rejection: unknown }>;

const THREE = fixed(3, "1h");
const QUIET = { log: () => {} };
const statusesOf = async (url: string) => (await send(url, 5)).map(({ status }) => status);

const FIRST: Record<string, First> = {
  Koa: async (test, client) => {
    let rejection: unknown;
    const app = new Koa().on("error", (error: unknown) => (rejection = error));
    app.use(rateLimitOfKoa(new Limiter(client, QUIET).limit("koa", THREE)));
    app.use((context) => void (context.body = "hello"));
    return { statuses: await statusesOf(await served(test, app.callback())), rejection };
  },
  Express: async (test, client) => {
    let rejection: unknown;
    const app = express();
    app.use(rateLimitOfExpress(client, THREE, QUIET));
    app.get("/", (_request, response) => void response.send("hello"));
    app.use(((error, _request, response, _next) => {
      rejection = error;
      response.status(500).end();
    }) satisfies express.ErrorRequestHandler);
    return { statuses: await statusesOf(await served(test, app)), rejection };
  },
  Fastify: async (test, client) => {
    let rejection: unknown;
    const app = fastify();
    test.after(() => app.close());
    app.addHook("onRequest", rateLimitOfFastifyHook(client, THREE, QUIET));
    app.addHook("onError", async (_request, _reply, error) => void (rejection = error));
    app.get("/", () => "hello");
    const statuses = [];
    for (let i = 0; i < 5; i++) statuses.push((await app.inject("/")).statusCode);
    return { statuses, rejection };
  },
  NestJS: async (test, client) => {
    let rejection: unknown;
    const storage = new ThrottlerStorage(client, {
      prefix: `nest${names++}:`,
      log: (line) => (rejection = new SetupError(line)),
    });
    const app = await nestOf(storage, 3);
    test.after(() => app.close());
    return { statuses: await statusesOf(await app.getUrl()), rejection };
  },
};

for (const [name, first] of Object.entries(FIRST)) {
  test(`${name}: first application has a limit, and a wrong password is reported at its first request`, async (test) => {
    const stopped = await serverFor(test);
    const right = lookInto(test, stopped);
    const { statuses } = await first(test, right);
    assert.deepEqual(statuses, [200, 200, 200, 429, 429]);
    const options = { username: "shop", password: "wrong", retryStrategy: () => 100 };
    const wrong = new Redis({ port: stopped.port, ...options }).on("error", () => {});
    test.after(() => wrong.disconnect());
    const { statuses: refused, rejection } = await first(test, wrong);
    assert.deepEqual(refused, [500, 500, 500, 500, 500]);
    assert.ok(
      rejection instanceof SetupError && /WRONGPASS .*password/.test(rejection.message),
      `${rejection}`,
    );
  });
}
