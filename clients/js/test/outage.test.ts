/** Decisions during an outage, and the number of resends. */

import assert from "node:assert/strict";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { after, test } from "node:test";

import { Redis } from "ioredis";
import { createClient } from "redis";
import {
  CallError,
  FullError,
  Limiter,
  SetupError,
  UnavailableError,
  concurrency,
  fixed,
  policy,
  tokenBucket,
  type Client,
  type LimiterOptions,
} from "redis-ratelimit-client";

import { lossyProxyFor } from "./support/proxy.js";
import { Server, calls, lookInto, serverFor, until, type Scope } from "./support/server.js";

const server = await serverFor({ after });
const LIMIT = fixed(10, "1h");

/** Creates a client that fails at once if it cannot send. */
async function impatient(test: Scope, { port }: Pick<Server, "port">): Promise<Redis> {
  const client = new Redis(port, { enableOfflineQueue: false, retryStrategy: () => 10 });
  client.on("error", () => {});
  test.after(() => client.disconnect());
  await once(client, "ready");
  return client;
}

/** Creates a limiter whose clock the test moves, and whose log it reads. */
function limiterWith(client: Client, options: LimiterOptions = {}) {
  const state = { now: 0, log: [] as string[] };
  const limiter = new Limiter(client, {
    timeout: 30,
    resends: 0,
    now: () => state.now,
    log: (line) => state.log.push(line),
    ...options,
  });
  return { limiter, state };
}

test("open, closed and raise", async (test) => {
  const away = await serverFor(test);
  const client = await impatient(test, away);
  await away.stop();
  const open = await limiterWith(client).limiter.take("k", LIMIT);
  assert.deepEqual([open.allowed, open.source, open.wait], [true, "none", 0]);
  assert.ok(open.error instanceof UnavailableError);
  const closed = await limiterWith(client, { onOutage: "closed" }).limiter.take("k", LIMIT);
  assert.deepEqual([closed.allowed, closed.source, closed.wait], [false, "none", 1]);
  const { limiter } = limiterWith(client, { onOutage: "raise" });
  await assert.rejects(limiter.take("k", LIMIT), UnavailableError);
  await assert.rejects(limiter.check(), UnavailableError);
});

test("local share of a limit recovers", async (test) => {
  const away = await serverFor(test);
  const client = await impatient(test, away);
  await away.stop();
  const { limiter, state } = limiterWith(client, { onOutage: { share: 0.5 } });
  const bucket = tokenBucket(10, 10, "10s", { name: "bucket" });
  const decisions = [];
  for (let i = 0; i < 7; i++) decisions.push(await limiter.take("k", bucket));
  assert.equal(decisions.filter(({ allowed }) => allowed).length, 5);
  const { source, limit, wait, remaining, name } = decisions[6]!;
  assert.deepEqual([source, limit, remaining, name], ["local", 5, 0, "bucket"]);
  // The rest of the pause, after which the server is tried again.
  assert.ok(0 < wait! && wait! <= 1, `${wait}`);
  assert.equal((await limiter.peek("other", bucket)).remaining, 5);
  state.now += 1999;
  assert.equal((await limiter.take("k", bucket)).allowed, false);
  state.now += 1;
  assert.equal((await limiter.take("k", bucket)).allowed, true);
  // All limits are charged, or none.
  const both = { "{t}:a": fixed(10, "1h"), "{t}:b": fixed(4, "1h") };
  const passed = [];
  for (let i = 0; i < 4; i++) passed.push((await limiter.takeAll(both)).allowed);
  assert.deepEqual(passed, [true, true, false, false]);
  assert.equal((await limiter.peek("{t}:a", both["{t}:a"])).remaining, 3);
  const more = await limiter.take("k", bucket, { cost: 6 });
  assert.ok(0 < more.wait! && more.wait! <= 1, "more than the share, and not than the limit");
});

test("local policy uses otherwise, or passes", async (test) => {
  const away = await serverFor(test);
  const client = await impatient(test, away);
  await away.stop();
  const plan = policy("plan:pro");
  const passing = limiterWith(client, { onOutage: { share: 1 } }).limiter;
  assert.equal((await passing.take("k", plan)).source, "none");
  assert.ok((await passing.lease("pool", concurrency(1, "1h"))).decision.allowed);
  const otherwise = fixed(2, "1h");
  const { limiter } = limiterWith(client, { onOutage: { share: 1, otherwise } });
  const decisions = await Promise.all([1, 2, 3].map(() => limiter.take("k", plan)));
  assert.deepEqual(
    decisions.map(({ allowed }) => allowed),
    [true, true, false],
  );
  assert.throws(() => new Limiter(client, { onOutage: { share: 2 } }), RangeError);
});

test("unreachable server is spared, and its outage logged once", async (test) => {
  const server = await serverFor(test);
  const client = await impatient(test, server);
  let sent = 0;
  const send = client.sendCommand.bind(client);
  client.sendCommand = (...words) => {
    sent++;
    return send(...words);
  };
  const { limiter, state } = limiterWith(client, { failures: 3, pause: 10 });
  await server.stop();
  await once(client, "error");
  for (let i = 0; i < 20; i++) assert.equal((await limiter.take("k", LIMIT)).source, "none");
  assert.equal(sent, 3);
  state.now += 10_000;
  for (let i = 0; i < 20; i++) await limiter.take("k", LIMIT);
  assert.equal(sent, 4);

  await server.start();
  await until(() => client.status === "ready");
  // No call is sent before the pause is over ...
  assert.equal((await limiter.take("k", LIMIT)).source, "none");
  state.now += 10_000;
  // ... and then all calls are.
  for (let i = 0; i < 5; i++) assert.equal((await limiter.take("k", LIMIT)).source, "server");
  state.now += 10_000;
  await limiter.take("k", LIMIT);
  assert.equal(state.log.length, 2);
  assert.match(state.log[0]!, /away/);
  assert.match(state.log[1]!, /back/);
});

test("breaker opens for a hanging server", async (test) => {
  const server = await serverFor(test);
  for (const open of [
    () => lookInto(test, server),
    async () => {
      const client = createClient({ url: server.url });
      client.on("error", () => {});
      await client.connect();
      test.after(() => client.destroy());
      return client;
    },
  ]) {
    const client = await open();
    const { limiter } = limiterWith(client, { timeout: "100ms", failures: 2 });
    assert.equal((await limiter.take("k", LIMIT)).source, "server");
    server.pause();
    for (let i = 0; i < 10; i++) {
      const decisions = await limiter.take("k", LIMIT);
      assert.equal(decisions.source, "none");
      assert.match(`${decisions.error}`, i < 2 ? /no answer within 100 ms/ : /lately/);
    }
    server.resume();
  }
});

test("server that refuses calls is an outage, and is asked again at once", async (test) => {
  const server = await serverFor(test);
  const client = lookInto(test, server);
  const { limiter, state } = limiterWith(client, { failures: 2 });
  await client.config("SET", "min-replicas-to-write", "1");
  for (let i = 0; i < 10; i++) assert.equal((await limiter.take("k", LIMIT)).source, "none");
  await client.config("SET", "min-replicas-to-write", "0");
  assert.equal((await limiter.take("k", LIMIT)).source, "server");
  assert.match(state.log[0]!, /NOREPLICAS/);
});

test("full memory denies new keys and serves existing ones", async (test) => {
  const server = await serverFor(test);
  const client = lookInto(test, server);
  const { limiter, state } = limiterWith(client, { failures: 1 });
  await limiter.take("there", LIMIT, { once: false });
  await client.config("SET", "maxmemory", "1");
  for (let i = 0; i < 3; i++) {
    assert.equal((await limiter.take("there", LIMIT)).source, "server");
    const { allowed, source, wait, error } = await limiter.take("new", LIMIT);
    assert.deepEqual([allowed, source, wait], [false, "none", 1]);
    assert.ok(error instanceof FullError);
  }
  await client.config("SET", "maxmemory", "0");
  assert.ok((await limiter.take("new", LIMIT)).allowed);
  assert.equal(state.log.length, 1);
  assert.match(state.log[0]!, /OOM.*maxmemory/);
});

test("error of a server without the module says what to do", async (test) => {
  const bare = await serverFor(test, {}, null);
  const { limiter } = limiterWith(lookInto(test, bare), { onOutage: "raise" });
  await assert.rejects(limiter.take("k", LIMIT), /module is not loaded: start the server with/);
});

test("restart without the module is logged once", async (test) => {
  const server = await serverFor(test);
  const client = await impatient(test, server);
  const { limiter, state } = limiterWith(client, { failures: 2, pause: 10 });
  await server.stop();
  for (let i = 0; i < 5; i++) await limiter.take("k", LIMIT);
  const bare = new Server({}, {}, null);
  bare.port = server.port;
  test.after(() => bare.stop());
  await bare.start();
  await until(() => client.status === "ready");
  state.now += 10_000;
  for (let i = 0; i < 5; i++) await assert.rejects(limiter.take("k", LIMIT), SetupError);
  assert.equal(state.log.length, 2);
  assert.match(state.log[1]!, /refuses a call for "k": the redis-ratelimit module is not loaded/);
});

test("malformed call is an error, not an outage", async (test) => {
  const client = lookInto(test, server);
  const { limiter, state } = limiterWith(client, { failures: 1 });
  await assert.rejects(limiter.take("k", { words: ["FIXED", "many", "1h"] }), CallError);
  assert.equal((await limiter.take("k", LIMIT)).source, "server");
  assert.deepEqual(state.log, []);
});

test("key full of ids is charged without an id", async (test) => {
  const server = await serverFor(test, {}, ["max-ids", "3"]);
  const { limiter } = limiterWith(lookInto(test, server));
  const decisions = [];
  for (let i = 0; i < 12; i++) decisions.push(await limiter.take("k", LIMIT));
  assert.equal(decisions.filter(({ allowed }) => allowed).length, 10);
  // Only recorded charges can be settled.
  assert.equal(decisions.filter(({ id }) => id !== undefined).length, 3);
  await assert.rejects(limiter.take("other", fixed(9, "1h"), { once: "" }), CallError);
});

test("call without an id is not resent, and its key stays small", async (test) => {
  const admin = lookInto(test, server);
  const proxy = await lossyProxyFor(test, server, 1);
  const client = createClient({ url: `redis://127.0.0.1:${proxy.port}` });
  client.on("error", () => {});
  await client.connect();
  test.after(() => client.destroy());
  const before = await calls(admin);
  const { limiter } = limiterWith(client, { once: false, resends: 3, onOutage: "raise" });
  await assert.rejects(limiter.take("small", LIMIT), UnavailableError);
  assert.equal((await calls(admin)) - before, 1);
  assert.equal(await admin.call("TYPE", "small"), "rl-window");
  // Also for a single call.
  const { limiter: dogged } = limiterWith(client, { resends: 3, onOutage: "raise" });
  const sent = await calls(admin);
  await assert.rejects(dogged.take("small", fixed(1000, "1h"), { once: false }), UnavailableError);
  assert.equal((await calls(admin)) - sent, 1);
  await assert.rejects(dogged.take("small", fixed(1000, "1h")), UnavailableError);
  assert.equal((await calls(admin)) - sent, 5);
});

test("id of the caller is charged once and settled once", async (test) => {
  const { limiter } = limiterWith(lookInto(test, server));
  const tokens = tokenBucket(10_000, 10_000, "1d");
  for (let i = 0; i < 3; i++)
    await limiter.take("llm", tokens, { cost: 4000, once: "req-17", ttl: "5m" });
  assert.equal((await limiter.peek("llm", tokens)).remaining, 6000);
  for (let i = 0; i < 3; i++) await limiter.settle("llm", tokens, "req-17", 1200);
  const { remaining } = await limiter.peek("llm", tokens);
  assert.ok(remaining! >= 8800 && remaining! < 8900, `${remaining}`);
});

test("port of a stopped server is not reused by another fixture", async (test) => {
  const server = await serverFor(test);
  await server.stop();
  const other = createSocket("udp4").bind(server.port, "127.0.0.1");
  test.after(() => other.close());
  await assert.rejects(once(other, "listening"), { code: "EADDRINUSE" });
});
