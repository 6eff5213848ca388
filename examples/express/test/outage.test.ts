/** Outages of Redis under load. Every request gets a response. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { createApp, type AppOptions } from "../src/app.js";
import type { Report } from "../src/rate-limiter.js";
import { Server } from "../src/server.js";
import { ALICE, LONG_TIMEOUT, perAddress, perUser } from "./support/limits.js";
import { Site, statuses, type Answer } from "./support/http.js";
import { clientFor, serverFor, until } from "./support/redis.js";

/** Settings with a short pause between calls during an outage. */
const SHORT_PAUSE = { ...LONG_TIMEOUT, pause: 0.02 };
const DURABLE = { appendonly: "yes", appendfsync: "always" };

async function start(test: TestContext, options: Partial<AppOptions>) {
  const server = await serverFor(test, DURABLE);
  const redis = await clientFor(test, server);
  const reports: Report[] = [];
  const report = (decision: Report) => reports.push(decision);
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const policies = [perUser(400), perAddress(10_000)];
  const app = createApp({
    redis,
    policies,
    report,
    log,
    ...SHORT_PAUSE,
    onOutage: { share: 1 },
    ...options,
  });
  const api = await Site.serve(test, app);
  const hello = () => api.get("/hello", ALICE);
  const decidedBy = (source: Report["source"]) =>
    reports.filter((report) => report.source === source);
  /** Sends requests until `source` decides one. */
  const requestUntil = async (source: Report["source"]) => {
    const before = decidedBy(source).length;
    await until(async () => (await hello(), decidedBy(source).length > before));
  };
  return { server, api, hello, decidedBy, requestUntil, lines };
}

/**
 * Sends requests of 50 clients. Meanwhile the server is killed, and restarted after 200 decisions
 * without it. The clients stop after 50 denials by Redis.
 */
async function trafficThroughAnOutage(test: TestContext, options: Partial<AppOptions>) {
  const { server, api, hello, decidedBy } = await start(test, options);
  const source = typeof options.onOutage === "string" ? "none" : "local";
  const denied = () => decidedBy("server").filter(({ allowed }) => !allowed).length;
  let over = false;
  const clients = Array.from({ length: 50 }, async () => {
    const answers: Answer[] = [];
    while (!over) answers.push(await hello());
    return answers;
  });
  try {
    await until(() => decidedBy("server").length >= 100);
    await server.stop("SIGKILL");
    await until(() => decidedBy(source).length >= 200);
    await server.start();
    await until(() => denied() >= 50);
  } finally {
    over = true;
  }
  const answers = (await Promise.all(clients)).flat();
  // No charge is lost: Redis admits 400 requests in total, less those that it charged at the kill
  // without a reply.
  const passed = decidedBy("server").filter(({ allowed }) => allowed).length;
  const unsent = /did not answer lately/;
  const unsure = decidedBy(source).filter(({ error }) => !unsent.test(`${error}`)).length;
  assert.ok(passed <= 400, `${passed} passed`);
  assert.ok(
    passed + unsure >= 400,
    `${passed} passed, ${unsure} are not known to have been charged`,
  );
  test.diagnostic(
    `${answers.length} requests: ${passed} passed by Redis, ${decidedBy(source).length} decided ` +
      `without it, of which ${unsure} may have been charged; ${JSON.stringify(statuses(answers))}`,
  );
  return { api, answers, passed, decidedBy };
}

test("an outage under load, with a local limit", async (test) => {
  const { answers, passed, decidedBy } = await trafficThroughAnOutage(test, {
    onOutage: { share: 0.25 },
  });
  // A quarter of 400, the share of one of four processes.
  const local = decidedBy("local").filter(({ allowed }) => allowed).length;
  assert.equal(local, 100);
  const counts = statuses(answers);
  assert.deepEqual(Object.keys(counts), ["200", "429"]);
  assert.equal(counts[200], passed + local);
});

test("an outage under load, failing open", async (test) => {
  const { answers, passed, decidedBy } = await trafficThroughAnOutage(test, { onOutage: "open" });
  const counts = statuses(answers);
  assert.deepEqual(Object.keys(counts), ["200", "429"]);
  assert.equal(counts[200], passed + decidedBy("none").length);
});

test("an outage under load, failing closed", async (test) => {
  const { answers, passed, decidedBy } = await trafficThroughAnOutage(test, { onOutage: "closed" });
  const counts = statuses(answers);
  assert.deepEqual(Object.keys(counts), ["200", "429", "503"]);
  assert.equal(counts[200], passed);
  assert.equal(counts[503], decidedBy("none").length);
});

/** Checks that a response shows no remaining units, because the local share is no limit of clients. */
function assertNoNumbers({ headers }: Answer) {
  assert.deepEqual(
    Object.keys(headers).filter((name) => /^(x-)?ratelimit/.test(name)),
    ["ratelimit-policy"],
  );
}

test("local decisions show no remaining units", async (test) => {
  const { server, hello, requestUntil } = await start(test, { onOutage: { share: 0.01 } });
  const { headers } = await hello();
  await server.stop();
  await requestUntil("local");
  const rest = [await hello(), await hello(), await hello(), await hello()];
  assert.deepEqual(statuses(rest), { 200: 3, 429: 1 });
  for (const answer of rest) {
    assertNoNumbers(answer);
    assert.equal(answer.headers["ratelimit-policy"], headers["ratelimit-policy"]);
  }
  const fifth = rest[3]!;
  assert.deepEqual(JSON.parse(fifth.body)["violated-policies"], ["user"]);
  // Time of the next call to Redis, not of the next local unit.
  assert.equal(fifth.headers["retry-after"], "1");
});

test("a cost that fits the limit but not this process's share has Retry-After", async (test) => {
  const { server, api, requestUntil } = await start(test, { onOutage: { share: 0.01 } });
  await server.stop();
  await requestUntil("local");
  const answer = await api.get("/report", ALICE);
  assert.equal(answer.status, 429);
  assert.equal(answer.headers["retry-after"], "1");
  assert.equal(JSON.parse(answer.body).detail, undefined);
});

for (const onOutage of [{ share: 1 }, "open", "closed"] as const) {
  const mode = JSON.stringify(onOutage);
  test(`begin and end of an outage are logged once: ${mode}`, async (test) => {
    const { server, api, hello, decidedBy, lines } = await start(test, { onOutage });
    await server.stop("SIGKILL");
    // Longer than a pause, so that several calls are tried.
    const source = typeof onOutage === "string" ? "none" : "local";
    while (decidedBy(source).length < 200) await api.burst(10, 2, hello);
    assert.equal(lines.length, 1);
    await server.start();
    await until(async () => (await hello(), lines.length > 1));
    await api.burst(10, 10, hello);
    assert.match(lines[0]!, /^rate limits: 127\.0\.0\.1:\d+ is away: /);
    assert.match(lines[1]!, /^rate limits: 127\.0\.0\.1:\d+ is back$/);
    assert.equal(lines.length, 2);
  });
}

const MISSING =
  /^rate limits: 127\.0\.0\.1:\d+ refuses a call for ".*": the redis-ratelimit module is not loaded: start the server with --loadmodule \/path\/to\/libredis_ratelimit.so policies yes$/;

test("a missing module is logged once at the start", async (test) => {
  const redis = await clientFor(test, await serverFor(test, { loadmodule: undefined }));
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const policies = [perUser(2)];
  const onOutage = { share: 1 };
  const api = await Site.serve(test, createApp({ redis, policies, log, onOutage, ...SHORT_PAUSE }));
  await until(() => lines.length > 0);
  assert.match(lines[0]!, MISSING);
  // A missing module is not an outage, so no request passes.
  const answers = await api.burst(10, 10, () => api.get("/hello", ALICE));
  assert.deepEqual(statuses(answers), { 500: 100 });
  assert.equal(lines.length, 1);
});

test("a restart without the module is logged once", async (test) => {
  const { server, api, hello, lines } = await start(test, {});
  await server.stop("SIGKILL");
  await hello();
  const plain = new Server({ loadmodule: undefined });
  plain.port = server.port;
  test.after(() => plain.stop("SIGKILL"));
  await plain.start();
  await until(async () => (await hello(), lines.some((line) => MISSING.test(line))));
  await api.burst(10, 10, hello);
  assert.equal(lines.filter((line) => MISSING.test(line)).length, 1);
});

test("failing closed is a 503 without a violated limit", async (test) => {
  const { server, hello, requestUntil } = await start(test, { onOutage: "closed" });
  await server.stop();
  await requestUntil("none");
  const answer = await hello();
  assert.equal(answer.status, 503);
  assert.equal(answer.headers["retry-after"], "1");
  assert.equal(answer.headers["ratelimit"], undefined);
  const problem = JSON.parse(answer.body);
  assert.match(problem.type, /#temporary-reduced-capacity$/);
  assert.equal(problem["violated-policies"], undefined);
});

test("three timeouts begin an outage", async (test) => {
  const options = { timeout: "50ms", pause: 3600 } as const;
  const { server, hello, decidedBy, requestUntil } = await start(test, options);
  await requestUntil("server");
  server.pause();
  for (let i = 0; i < 20; i++) assert.equal((await hello()).status, 200);
  const errors = decidedBy("local")
    .slice(-20)
    .map(({ error }) => (error as Error).message);
  assert.deepEqual(errors, [
    ...Array<string>(3).fill("no answer within 50 ms"),
    ...Array<string>(17).fill("the server did not answer lately: no answer within 50 ms"),
  ]);
});

test("a resumed server is used again", async (test) => {
  const { server, requestUntil } = await start(test, { timeout: "50ms" });
  server.pause();
  await requestUntil("local");
  server.resume();
  await requestUntil("server");
});

test("an error of the server fails one request and is not an outage", async (test) => {
  const { server, api, hello, decidedBy, lines } = await start(test, {
    failures: 1,
    pause: 3600,
  });
  const redis = await clientFor(test, server);
  await redis.set("rl:{acme}:user:alice", "not a limiter");
  assert.equal((await hello()).status, 500);
  await api.get("/hello");
  assert.equal(decidedBy("server").length, 1);
  // A repeated error is logged once.
  for (let i = 0; i < 20; i++) {
    await hello();
    await api.get("/hello");
  }
  assert.equal(decidedBy("server").length, 21);
  assert.equal(lines.length, 1);
  assert.match(lines[0]!, /^rate limits: 127\.0\.0\.1:\d+ refuses a call for "rl:.*": WRONGTYPE/);
});
