/** Limits in shadow mode decide and report, and deny nothing. */

import assert from "node:assert/strict";
import { test } from "node:test";

import express from "express";

import { createApp, identify } from "../src/app.js";
import { rateLimiter, type Report } from "../src/rate-limiter.js";
import { ALICE, LONG_TIMEOUT, perUser } from "./support/limits.js";
import { Site, statuses } from "./support/http.js";
import { clientFor, serverFor, until } from "./support/redis.js";

test("every request passes, and denials are reported", async (test) => {
  const redis = await clientFor(test, await serverFor(test));
  const reports: Report[] = [];
  const report = (decision: Report) => reports.push(decision);
  const policies = [perUser(137)];
  const app = createApp({ redis, policies, report, shadow: true, ...LONG_TIMEOUT });
  const api = await Site.serve(test, app);

  const answers = await api.burst(50, 10, () => api.get("/hello", ALICE));

  assert.deepEqual(statuses(answers), { 200: 500 });
  assert.ok(answers.every(({ headers }) => !headers["ratelimit"] && !headers["x-ratelimit-limit"]));
  await until(() => reports.length === 500);
  const denied = reports.filter(({ allowed }) => !allowed);
  assert.equal(denied.length, 500 - 137);
  assert.ok(denied.every(({ shadow, violated }) => shadow && violated[0] === "user"));
});

test("a limiter in shadow mode does not affect another limiter", async (test) => {
  const redis = await clientFor(test, await serverFor(test));
  const reports: Report[] = [];
  const report = (decision: Report) => reports.push(decision);
  const common = { redis, identify, ...LONG_TIMEOUT };
  const limit = rateLimiter({ ...common, policies: [perUser(20)] });
  const trial = rateLimiter({
    ...common,
    policies: [perUser(10)],
    prefix: "trial:",
    shadow: true,
    report,
  });
  const app = express();
  app.get("/", limit({ endpoint: "home" }), trial({ endpoint: "home" }), (_, response) => {
    response.send("home");
  });
  const api = await Site.serve(test, app);

  const answers = await api.burst(10, 3, () => api.get("/", ALICE));

  assert.deepEqual(statuses(answers), { 200: 20, 429: 10 });
  await until(() => reports.length === 20);
  assert.equal(reports.filter(({ allowed }) => allowed).length, 10);
});

test("an outage or an error in identify does not affect requests", async (test) => {
  const server = await serverFor(test);
  const redis = await clientFor(test, server);
  const faults = test.mock.method(console, "error", () => {});
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const options = { redis, policies: [perUser(1)], shadow: true, onOutage: "closed" as const, log };
  const outage = await Site.serve(test, createApp(options));
  const faulty = () => {
    throw new Error("who is this?");
  };
  const broken = await Site.serve(test, createApp({ ...options, identify: faulty }));
  // Both limiters are connected by then.
  await redis.ping();
  await server.stop();
  for (let i = 0; i < 10; i++) {
    assert.equal((await outage.get("/hello", ALICE)).status, 200);
    assert.equal((await broken.get("/hello", ALICE)).status, 200);
  }
  assert.equal(faults.mock.callCount(), 10);
  await until(() => lines.length > 0);
  assert.equal(lines.length, 1);
});
