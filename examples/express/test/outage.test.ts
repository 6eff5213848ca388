/** Redis goes away in the middle of traffic and comes back, and every request gets an answer. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { createApp, type AppOptions } from "../src/app.js";
import type { Report } from "../src/rate-limiter.js";
import { Server } from "../src/server.js";
import { ALICE, PATIENT, perAddress, perUser } from "./support/limits.js";
import { Site, statuses, type Answer } from "./support/http.js";
import { clientFor, serverFor, until } from "./support/redis.js";

/** No call is given up or made in vain for longer than a moment. */
const BRISK = { ...PATIENT, pause: 0.02 };
const DURABLE = { appendonly: "yes", appendfsync: "always" };

async function start(test: TestContext, options: Partial<AppOptions>) {
  const server = await serverFor(test, DURABLE);
  const redis = await clientFor(test, server);
  const reports: Report[] = [];
  const report = (one: Report) => reports.push(one);
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const policies = [perUser(400), perAddress(10_000)];
  const app = createApp({
    redis,
    policies,
    report,
    log,
    ...BRISK,
    onOutage: { share: 1 },
    ...options,
  });
  const api = await Site.serve(test, app);
  const hello = () => api.get("/hello", ALICE);
  const decidedBy = (source: Report["source"]) => reports.filter((one) => one.source === source);
  /** Requests, until one is decided by it. */
  const askUntil = async (source: Report["source"]) => {
    const before = decidedBy(source).length;
    await until(async () => (await hello(), decidedBy(source).length > before));
  };
  return { server, api, hello, decidedBy, askUntil, lines };
}

/**
 * 50 clients. While they ask, the server is killed and, once requests have been decided without
 * it, started again; they stop when Redis has denied some after that.
 */
async function trafficThroughAnOutage(test: TestContext, options: Partial<AppOptions>) {
  const { server, api, hello, decidedBy } = await start(test, options);
  const away = typeof options.onOutage === "string" ? "none" : "local";
  const denied = () => decidedBy("server").filter((one) => !one.allowed).length;
  let over = false;
  const clients = Array.from({ length: 50 }, async () => {
    const answers: Answer[] = [];
    while (!over) answers.push(await hello());
    return answers;
  });
  try {
    await until(() => decidedBy("server").length >= 100);
    await server.stop("SIGKILL");
    await until(() => decidedBy(away).length >= 200);
    await server.start();
    await until(() => denied() >= 50);
  } finally {
    over = true;
  }
  const answers = (await Promise.all(clients)).flat();
  // All that had been charged was still there: across the outage Redis let 400 pass in all, less
  // those that it charged with its last breath, so that the answer never came.
  const passed = decidedBy("server").filter((one) => one.allowed).length;
  const unsent = /did not answer lately/;
  const unsure = decidedBy(away).filter(({ error }) => !unsent.test(`${error}`)).length;
  assert.ok(passed <= 400, `${passed} passed`);
  assert.ok(
    passed + unsure >= 400,
    `${passed} passed, ${unsure} are not known to have been charged`,
  );
  test.diagnostic(
    `${answers.length} requests: ${passed} passed by Redis, ${decidedBy(away).length} decided ` +
      `without it, of which ${unsure} may have been charged; ${JSON.stringify(statuses(answers))}`,
  );
  return { api, answers, passed, decidedBy };
}

test("an outage in mid-traffic, with a local limit", async (test) => {
  const { answers, passed, decidedBy } = await trafficThroughAnOutage(test, {
    onOutage: { share: 0.25 },
  });
  // A quarter of 400: this is one of four processes.
  const local = decidedBy("local").filter((one) => one.allowed).length;
  assert.equal(local, 100);
  const counts = statuses(answers);
  assert.deepEqual(Object.keys(counts), ["200", "429"]);
  assert.equal(counts[200], passed + local);
});

test("an outage in mid-traffic, failing open", async (test) => {
  const { answers, passed, decidedBy } = await trafficThroughAnOutage(test, { onOutage: "open" });
  const counts = statuses(answers);
  assert.deepEqual(Object.keys(counts), ["200", "429"]);
  assert.equal(counts[200], passed + decidedBy("none").length);
});

test("an outage in mid-traffic, failing closed", async (test) => {
  const { answers, passed, decidedBy } = await trafficThroughAnOutage(test, { onOutage: "closed" });
  const counts = statuses(answers);
  assert.deepEqual(Object.keys(counts), ["200", "429", "503"]);
  assert.equal(counts[200], passed);
  assert.equal(counts[503], decidedBy("none").length);
});

/** Checks that a response shows no remaining units: the local share is no client's limit. */
function assertNoNumbers({ headers }: Answer) {
  assert.deepEqual(
    Object.keys(headers).filter((name) => /^(x-)?ratelimit/.test(name)),
    ["ratelimit-policy"],
  );
}

test("what is decided by the local limit is told no numbers", async (test) => {
  const { server, hello, askUntil } = await start(test, { onOutage: { share: 0.01 } });
  const { headers } = await hello();
  await server.stop();
  await askUntil("local");
  const rest = [await hello(), await hello(), await hello(), await hello()];
  assert.deepEqual(statuses(rest), { 200: 3, 429: 1 });
  for (const answer of rest) {
    assertNoNumbers(answer);
    assert.equal(answer.headers["ratelimit-policy"], headers["ratelimit-policy"]);
  }
  const fifth = rest[3]!;
  assert.deepEqual(JSON.parse(fifth.body)["violated-policies"], ["user"]);
  // Not when a unit is back here, in hours, but when Redis is asked again.
  assert.equal(fifth.headers["retry-after"], "1");
});

test("a cost that fits the limit but not this process's share may be tried again", async (test) => {
  const { server, api, askUntil } = await start(test, { onOutage: { share: 0.01 } });
  await server.stop();
  await askUntil("local");
  const answer = await api.get("/report", ALICE);
  assert.equal(answer.status, 429);
  assert.equal(answer.headers["retry-after"], "1");
  assert.equal(JSON.parse(answer.body).detail, undefined);
});

for (const onOutage of [{ share: 1 }, "open", "closed"] as const) {
  const how = JSON.stringify(onOutage);
  test(`an outage is a line when it begins and one when it is over: ${how}`, async (test) => {
    const { server, api, hello, decidedBy, lines } = await start(test, { onOutage });
    await server.stop("SIGKILL");
    // Longer than a pause, so that it is asked several times.
    const away = typeof onOutage === "string" ? "none" : "local";
    while (decidedBy(away).length < 200) await api.crowd(10, 2, hello);
    assert.equal(lines.length, 1);
    await server.start();
    await until(async () => (await hello(), lines.length > 1));
    await api.crowd(10, 10, hello);
    assert.match(lines[0]!, /^rate limits: 127\.0\.0\.1:\d+ is away: /);
    assert.match(lines[1]!, /^rate limits: 127\.0\.0\.1:\d+ is back$/);
    assert.equal(lines.length, 2);
  });
}

const MISSING =
  /^rate limits: 127\.0\.0\.1:\d+ refuses a call for ".*": the redis-ratelimit module is not loaded: start the server with --loadmodule \/path\/to\/libredis_ratelimit.so policies yes$/;

test("a server without the module is told of at the start, in one line", async (test) => {
  const redis = await clientFor(test, await serverFor(test, { loadmodule: undefined }));
  const lines: string[] = [];
  const log = (line: string) => lines.push(line);
  const policies = [perUser(2)];
  const onOutage = { share: 1 };
  const api = await Site.serve(test, createApp({ redis, policies, log, onOutage, ...BRISK }));
  await until(() => lines.length > 0);
  assert.match(lines[0]!, MISSING);
  // That is no outage: nobody passes until somebody has seen to it.
  const answers = await api.crowd(10, 10, () => api.get("/hello", ALICE));
  assert.deepEqual(statuses(answers), { 500: 100 });
  assert.equal(lines.length, 1);
});

test("a server that comes back without the module is told of in one line", async (test) => {
  const { server, api, hello, lines } = await start(test, {});
  await server.stop("SIGKILL");
  await hello();
  const plain = new Server({ loadmodule: undefined });
  plain.port = server.port;
  test.after(() => plain.stop("SIGKILL"));
  await plain.start();
  await until(async () => (await hello(), lines.some((line) => MISSING.test(line))));
  await api.crowd(10, 10, hello);
  assert.equal(lines.filter((line) => MISSING.test(line)).length, 1);
});

test("failing closed is a 503 that blames no limit", async (test) => {
  const { server, hello, askUntil } = await start(test, { onOutage: "closed" });
  await server.stop();
  await askUntil("none");
  const answer = await hello();
  assert.equal(answer.status, 503);
  assert.equal(answer.headers["retry-after"], "1");
  assert.equal(answer.headers["ratelimit"], undefined);
  const problem = JSON.parse(answer.body);
  assert.match(problem.type, /#temporary-reduced-capacity$/);
  assert.equal(problem["violated-policies"], undefined);
});

test("a server that hangs is waited for three times, and then left alone", async (test) => {
  const patience = { timeout: "50ms", pause: 3600 } as const;
  const { server, hello, decidedBy, askUntil } = await start(test, patience);
  await askUntil("server");
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

test("a server that hung is asked again", async (test) => {
  const { server, askUntil } = await start(test, { timeout: "50ms" });
  server.pause();
  await askUntil("local");
  server.resume();
  await askUntil("server");
});

test("an error that the server sends is one request's failure, and no outage", async (test) => {
  const { server, api, hello, decidedBy, lines } = await start(test, {
    failures: 1,
    pause: 3600,
  });
  const redis = await clientFor(test, server);
  await redis.set("rl:{acme}:user:alice", "not a limiter");
  assert.equal((await hello()).status, 500);
  await api.get("/hello");
  assert.equal(decidedBy("server").length, 1);
  // Nor does one who always has it fill the log.
  for (let i = 0; i < 20; i++) {
    await hello();
    await api.get("/hello");
  }
  assert.equal(decidedBy("server").length, 21);
  assert.equal(lines.length, 1);
  assert.match(lines[0]!, /^rate limits: 127\.0\.0\.1:\d+ refuses a call for "rl:.*": WRONGTYPE/);
});
