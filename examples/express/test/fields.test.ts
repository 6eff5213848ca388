/** Responses over real HTTP have the rate limit fields. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { sliding } from "redis-ratelimit-client";
import { parseList } from "structured-headers";

import { createApp } from "../src/app.js";
import type { Policy } from "../src/limits.js";
import { ALICE, BOB, DAY, LONG_TIMEOUT, perAddress, perUser, quota } from "./support/limits.js";
import { Site, type Answer } from "./support/http.js";
import { clientFor, serverFor } from "./support/redis.js";

/** Returns the parameters of a RateLimit field by item. */
function items({ headers }: Answer, field: "ratelimit" | "ratelimit-policy") {
  const list = parseList((headers[field] as string | undefined) ?? "");
  return Object.fromEntries(
    list.map(([name, parameters]) => [name as string, Object.fromEntries(parameters)]),
  );
}

/** Checks that `seconds` are `wait` days, less at most an hour that the test has taken. */
function assertDays(seconds: unknown, wait: number) {
  assert.ok(Number(seconds) <= wait * DAY, `${seconds} s are more than ${wait} days`);
  assert.ok(Number(seconds) > wait * DAY - 3600, `${seconds} s are less than ${wait} days`);
}

const SECRET: Policy = {
  name: "service",
  limit: quota(1000),
  of: () => "all",
  apart: "give-back",
  hidden: true,
};

async function site(test: TestContext, ...policies: Policy[]) {
  const redis = await clientFor(test, await serverFor(test));
  return Site.serve(test, createApp({ redis, policies, ...LONG_TIMEOUT }));
}

test("a response has the limits, the remaining units and the reset", async (test) => {
  const api = await site(test, SECRET, perUser(3), perAddress(50));
  await api.get("/hello", ALICE);
  const answer = await api.get("/hello", ALICE);

  assert.equal(answer.status, 200);
  assert.deepEqual(JSON.parse(answer.body), { hello: "alice" });
  assert.equal(answer.headers["x-ratelimit-limit"], "3");
  assert.equal(answer.headers["x-ratelimit-remaining"], "1");
  assertDays(answer.headers["x-ratelimit-reset"], 2);
  assert.equal(answer.headers["retry-after"], undefined);
  assert.deepEqual(items(answer, "ratelimit-policy"), {
    user: { q: 3, w: 3 * DAY },
    ip: { q: 50, w: 50 * DAY },
  });
  const { user, ip } = items(answer, "ratelimit");
  assert.equal(user?.["r"], 1);
  assert.equal(ip?.["r"], 48);
  assertDays(user?.["t"], 2);
  assertDays(ip?.["t"], 2);
});

test("a denial is a 429 with Retry-After and the violated limit", async (test) => {
  const api = await site(test, SECRET, perUser(3), perAddress(50));
  for (let i = 0; i < 3; i++) await api.get("/hello", ALICE);
  const answer = await api.get("/hello", ALICE);

  assert.equal(answer.status, 429);
  assert.equal(answer.headers["x-ratelimit-limit"], "3");
  assert.equal(answer.headers["x-ratelimit-remaining"], "0");
  assertDays(answer.headers["x-ratelimit-reset"], 3);
  assertDays(answer.headers["retry-after"], 1);
  assert.deepEqual(items(answer, "ratelimit"), {
    user: { r: 0, t: Number(answer.headers["retry-after"]) },
  });
  assert.deepEqual(Object.keys(items(answer, "ratelimit-policy")), ["user", "ip"]);
  assert.match(answer.headers["content-type"]!, /^application\/problem\+json/);
  assert.deepEqual(JSON.parse(answer.body), {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Too many requests",
    status: 429,
    "violated-policies": ["user"],
  });
});

test("a request that one limit denies is charged to none", async (test) => {
  const api = await site(test, SECRET, perUser(3), perAddress(50));
  for (let i = 0; i < 10; i++) await api.get("/hello", ALICE);
  // Three of the ten passed. Another user of the same address finds 47 left, and takes one.
  assert.equal(items(await api.get("/hello", BOB), "ratelimit")["ip"]?.["r"], 46);
});

test("a request may cost more than one unit", async (test) => {
  const api = await site(test, perAddress(25));
  assert.equal(items(await api.get("/report"), "ratelimit")["ip"]?.["r"], 15);
  assert.equal((await api.get("/report")).status, 401);
  const answer = await api.get("/report");
  assert.equal(answer.status, 429);
  assert.equal(items(answer, "ratelimit")["ip"]?.["r"], 5);
  assertDays(answer.headers["retry-after"], 5);
  assert.equal((await api.get("/hello")).status, 200);
});

test("a request above its limit has no Retry-After", async (test) => {
  const api = await site(test, perAddress(5));
  const answer = await api.get("/report");
  assert.equal(answer.status, 429);
  assert.equal(answer.headers["retry-after"], undefined);
  assert.deepEqual(items(answer, "ratelimit"), { ip: { r: 5 } });
  assert.match(JSON.parse(answer.body).detail, /more than the limit ever allows/);
});

test("a hidden limit denies without showing its numbers", async (test) => {
  const api = await site(test, { ...SECRET, limit: quota(1) }, perAddress(50));
  const passed = await api.get("/hello");
  assert.deepEqual(Object.keys(items(passed, "ratelimit-policy")), ["ip"]);
  const answer = await api.get("/hello");
  assert.equal(answer.status, 429);
  assert.equal(answer.headers["ratelimit"], undefined);
  assert.equal(answer.headers["x-ratelimit-limit"], undefined);
  assertDays(answer.headers["retry-after"], 1);
});

test("no window is shown longer than that of its policy", async (test) => {
  const api = await site(test, { ...perAddress(1), limit: sliding(50, DAY) });
  const answer = await api.get("/hello");
  assertDays(answer.headers["x-ratelimit-reset"], 2);
  assert.deepEqual(items(answer, "ratelimit-policy"), { ip: { q: 50, w: DAY } });
  assert.deepEqual(items(answer, "ratelimit"), { ip: { r: 49, t: DAY } });
});

test("unlimited routes have no such fields", async (test) => {
  const api = await site(test, perAddress(1));
  for (let i = 0; i < 3; i++) {
    const answer = await api.get("/health");
    assert.equal(answer.status, 200);
    assert.equal(answer.headers["ratelimit"], undefined);
  }
});
