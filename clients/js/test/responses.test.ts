/** Responses of every framework: refunds, custom denials, and DeniedError. */

import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { after, test } from "node:test";

import { serve } from "@hono/node-server";
import { Controller, Get, Module } from "@nestjs/common";
import { NestFactory } from "@nestjs/core";
import express from "express";
import express4 from "express4";
import fastify from "fastify";
import { Hono } from "hono";
import Koa from "koa";
import {
  DeniedError,
  Limiter,
  fixed,
  policy,
  tokenBucket,
  type BoundLimit,
  type Decision,
} from "redis-ratelimit-client";
import * as forExpress from "redis-ratelimit-client/express";
import * as forFastify from "redis-ratelimit-client/fastify";
import * as forHono from "redis-ratelimit-client/hono";
import * as forKoa from "redis-ratelimit-client/koa";
import * as forWeb from "redis-ratelimit-client/web";

import { Site } from "./support/http.js";
import { lookInto, serverFor, until, type Scope } from "./support/server.js";

const server = await serverFor({ after });
const redis = lookInto({ after }, server);
const limiter = new Limiter(redis, { timeout: 30, rememberDenials: false });

let names = 0;
const bound = (limit = fixed(1000, "1h")) => limiter.limit(`r${names++}`, limit);

interface Options {
  readonly refund?: (response: any) => boolean;
  readonly deny?: (decision: Decision, request: object) => forExpress.Denied;
}

/** Application that responds to `/STATUS` with that status, and to `/denied` with a DeniedError. */
type Serve = (test: Scope, limit: BoundLimit, options?: Options) => Promise<Site>;

const full = bound(fixed(1, "1h"));
const denied = async () => {
  for (;;) (await full.take("all")).require();
};

async function onHttp(test: Scope, http: { close: () => unknown; address(): unknown }) {
  test.after(() => http.close());
  return new Site(test, (http.address() as AddressInfo).port);
}

const ofExpress =
  (make: typeof express): Serve =>
  async (test, limit, options = {}) => {
    const app = make();
    app.set("env", "test"); // prints no errors
    app.use(forExpress.rateLimit(limit, options));
    app.get("/denied", (_request, _response, next) => void denied().catch(next));
    app.get("/:status", (request, response) => {
      response.status(Number(request.params["status"])).end();
    });
    return Site.serve(test, app);
  };

const FRAMEWORKS: Record<string, Serve> = {
  "Express 5": ofExpress(express),
  "Express 4": ofExpress(express4 as unknown as typeof express),
  Fastify: async (test, limit, options = {}) => {
    const app = fastify();
    app.addHook("onRequest", forFastify.rateLimit(limit, options));
    app.get("/denied", denied);
    app.get("/:status", async (request, reply) => {
      return reply.code(Number((request.params as { status: string }).status)).send();
    });
    await app.listen({ port: 0, host: "127.0.0.1" });
    test.after(() => app.close());
    return new Site(test, (app.server.address() as AddressInfo).port);
  },
  Koa: async (test, limit, options = {}) => {
    const app = new Koa();
    app.silent = true;
    app.use(forKoa.rateLimit(limit, options));
    app.use(async (context) => {
      if (context.path === "/denied") await denied();
      context.status = Number(context.path.slice(1));
    });
    return Site.serve(test, app.callback());
  },
  Hono: async (test, limit, options = {}) => {
    const app = new Hono();
    app.use(forHono.rateLimit(limit, options));
    app.get("/denied", denied);
    app.get("/:status", (context) => {
      return new Response(null, { status: Number(context.req.param("status")) });
    });
    const http = serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" });
    await once(http, "listening");
    return onHttp(test, http);
  },
};

const isFailure = ({ status, statusCode }: { status?: unknown; statusCode?: unknown }) =>
  Number(typeof status === "number" ? status : statusCode) >= 500;

for (const [name, serveApp] of Object.entries(FRAMEWORKS)) {
  test(`${name}: requests are refunded by their responses`, async (test) => {
    const limit = bound();
    const statuses: number[] = [];
    const site = await serveApp(test, limit, {
      refund: (response) => {
        statuses.push(1);
        return isFailure(response);
      },
    });
    for (const status of [200, 503, 404, 500]) {
      assert.equal((await site.get(`/${status}`)).status, status);
    }
    await until(() => statuses.length === 4);
    await until(async () => (await limit.peek("127.0.0.1")).remaining === 998);
  });

  test(`${name}: custom denials`, async (test) => {
    const limit = bound(fixed(1, "1h"));
    const site = await serveApp(test, limit, {
      deny: ({ waitMs, reset }) => ({
        status: 420,
        headers: { "X-Calm": "yes" },
        body: { again: reset !== null && waitMs !== null },
      }),
    });
    await site.get("/200");
    const { status, headers, body } = await site.get("/200");
    assert.deepEqual([status, headers["x-calm"], body], [420, "yes", '{"again":true}']);
    assert.match(`${headers["content-type"]}`, /^application\/json/);
    assert.match(`${headers["retry-after"]}`, /^3[56]\d\d$/);
    const plain = await serveApp(test, limit, { deny: () => ({ body: "slow down" }) });
    const response = await plain.get("/200");
    assert.deepEqual([response.status, response.body], [429, "slow down"]);
    assert.match(`${response.headers["content-type"]}`, /^text\/plain/);
    const usual = await serveApp(test, limit, { deny: () => ({ headers: { "X-Calm": "no" } }) });
    assert.match(`${(await usual.get("/200")).headers["content-type"]}`, /problem\+json/);
  });

  test(`${name}: DeniedError is a denied request`, async (test) => {
    const site = await serveApp(test, bound());
    const { status, headers } = await site.get("/denied");
    assert.equal(status, 429);
    assert.ok(Number(headers["retry-after"]) >= 3590);
    assert.match(`${headers["ratelimit-policy"]}`, new RegExp(`^"${full.name}";q=1`));
  });
}

test("NestJS: DeniedError is a denied request", async (test) => {
  class Hello {
    hello(): Promise<void> {
      return denied();
    }
  }
  Controller()(Hello);
  Get()(Hello.prototype, "hello", Object.getOwnPropertyDescriptor(Hello.prototype, "hello")!);
  class App {}
  Module({ controllers: [Hello] })(App);
  const app = await NestFactory.create(App, { logger: false });
  await app.listen(0, "127.0.0.1");
  test.after(() => app.close());
  assert.equal((await fetch(await app.getUrl())).status, 429);
});

test("web requests are refunded, even if their handler throws", async () => {
  const limit = bound();
  const GET = forWeb.rateLimit(limit, { key: () => "ann", refund: isFailure })(async (
    request: Request,
  ) => {
    const status = Number(new URL(request.url).pathname.slice(1));
    if (status === 0) throw new Error("broken");
    return new Response(null, { status });
  });
  const get = (status: number) => GET(new Request(`http://test/${status}`));
  await get(200);
  await get(503);
  await assert.rejects(async () => get(0), /broken/);
  assert.equal((await limit.peek("ann")).remaining, 999);
});

test("failed refund is logged and does not fail the request", async (test) => {
  const log: string[] = [];
  const logging = new Limiter(redis, { timeout: 30, log: (line) => void log.push(line) });
  const refund = () => {
    throw new Error("no such response");
  };
  const site = await FRAMEWORKS["Express 5"]!(test, logging.limit("failing", fixed(9, "1h")), {
    refund,
  });
  assert.equal((await site.get("/200")).status, 200);
  await until(() => log.length > 0);
  assert.match(log[0]!, /not refunded: Error: no such response/);
});

test("charges of several keys are refunded", async () => {
  const limits = () => ({ "{t}:a": fixed(9, "1h"), "{t}:b": "8/hour" });
  const GET = forWeb.rateLimit(limiter, limits, { refund: isFailure, prefix: "several:" })(
    () => new Response(null, { status: 500 }),
  );
  await GET(new Request("http://test/"));
  for (const [key, limit] of Object.entries(limits())) {
    assert.equal((await limiter.peek(`several:${key}`, limit)).resetMs, 0);
  }
});

test("refundable charge is given back, however large its limit is", async () => {
  for (const limit of [fixed(50, "1h"), fixed(1000, "1h"), tokenBucket(1e6, 1e6, "1h")]) {
    const all = bound(limit);
    const decision = await all.take("ann", { refundable: true });
    assert.ok((await decision.settle(0)).allowed);
    assert.equal((await all.peek("ann", { cost: 0 })).resetMs, 0);
  }
  const plain = await bound().take("ann");
  await assert.rejects(plain.settle(0), /no id: take it with \{ refundable: true \}/);
  const both = { refundable: true, once: false };
  await assert.rejects(bound().take("ann", both), /TypeError|not refundable/);
});

test("DeniedError creates a response", async () => {
  const api = bound(fixed(0, "1h"));
  const error = new DeniedError(await api.take("ann"));
  assert.deepEqual([error.status, error.statusCode, error.expose], [429, 429, true]);
  const response = error.getResponse();
  assert.equal(response.status, 429);
  assert.equal(response.headers.get("content-type"), "application/problem+json");
  const { "violated-policies": violated } = (await response.json()) as Record<string, unknown>;
  assert.deepEqual(violated, [api.name]);
});

test("limits in header fields have the name that they are bound to", async () => {
  await limiter.policies.set("plan", [fixed(1, "1h"), fixed(2, "1d", { name: "day" })]);
  for (const [limits, expected] of [
    [fixed(1, "1h"), '"NAME";q=1;w=3600'],
    [fixed(1, "1h", { name: "hour" }), '"hour";q=1;w=3600'],
    [[fixed(1, "1h"), fixed(2, "1d", { name: "day" })], '"NAME-1";q=1;w=3600, "day";q=2;w=86400'],
    [policy("plan"), '"NAME";q=1'],
  ] as const) {
    const name = `told${names++}`;
    const api = limiter.limit(name, limits);
    const GET = forWeb.rateLimit(api, { key: () => "ann" })(() => new Response(null));
    const named = forWeb.rateLimit(limiter, limits, { name, key: () => "bob" })(
      () => new Response(null),
    );
    for (const get of [GET, named]) {
      const { headers } = await get(new Request("http://test/"));
      assert.equal(headers.get("RateLimit-Policy"), expected.replace("NAME", name));
    }
  }
});
