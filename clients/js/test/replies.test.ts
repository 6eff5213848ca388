/**
 * Outcome of each error reply of a server: `clients/replies.json`, the table that all packages
 * share.
 */

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { after, test } from "node:test";

import { Cluster, Redis } from "ioredis";
import { createClient } from "redis";
import {
  CallError,
  DeniedError,
  FullError,
  Limiter,
  NoPolicyError,
  SetupError,
  UnavailableError,
  concurrency,
  fixed,
  policy,
  sliding,
  slidingLog,
  type Client,
  type LimiterOptions,
} from "redis-ratelimit-client";

import { KINDS, clientFor } from "./support/clients.js";
import { refusingProxyFor } from "./support/proxy.js";
import { clusterFor, lookInto, serverFor, until } from "./support/server.js";

interface Row {
  readonly reply: string;
  readonly kind: "outage" | "caller" | "operator" | "full";
  readonly remedy?: string;
  readonly passesWithoutId?: boolean;
}

const CLIENTS = resolve(import.meta.dirname, "../..");
const ROWS = JSON.parse(readFileSync(resolve(CLIENTS, "replies.json"), "utf8")) as Row[];
const ERRORS = {
  outage: UnavailableError,
  caller: CallError,
  operator: SetupError,
  full: FullError,
};
const LIMIT = fixed(100_000, "1h");
const OUTAGES = ["open", "closed", "raise", { share: 1 }] as const;

const server = await serverFor({ after });

interface Line {
  readonly line: string;
  readonly level: string;
}

/** Options with which a single counted failure would open the breaker. */
function limiterOf(client: Client, options: LimiterOptions = {}) {
  const state = { now: 0, log: [] as Line[] };
  const limiter = new Limiter(client, {
    timeout: 30,
    failures: 1,
    pause: 3600,
    now: () => state.now,
    log: (line, level) => state.log.push({ line, level }),
    ...options,
  });
  return { limiter, state };
}

test("table has every error of the module", () => {
  const documents = readFileSync(resolve(CLIENTS, "../docs/commands.md"), "utf8");
  const lines = documents.split("\n## Errors\n")[1]!.split("\n");
  const listed = lines.flatMap((line) => /^\| `([^`]+)` \|/.exec(line)?.[1] ?? []);
  const table = new Set(ROWS.map(({ reply }) => reply));
  // The list of syntax errors is open-ended.
  const wording = /^ERR (syntax error|wrong number|(a )?\w+ (must be|is missing))/;
  const ofTheModule = listed.filter((one) => !wording.test(one));
  assert.ok(ofTheModule.length >= 15);
  assert.deepEqual(
    ofTheModule.filter((one) => !table.has(one)),
    [],
  );
});

for (const kind of KINDS) {
  test(`${kind.name}: each reply has the outcome of the table`, async (test) => {
    const proxy = await refusingProxyFor(test, server);
    const client = await clientFor(test, kind, proxy.port);
    for (const onOutage of OUTAGES) {
      const { limiter, state } = limiterOf(client, { onOutage });
      for (const { reply, kind, remedy = "", passesWithoutId } of ROWS) {
        state.log.length = 0;
        state.now += 60_000;
        proxy.error = reply;
        const wrong = (error: unknown) => {
          assert.ok(error instanceof ERRORS[kind], `${reply}: ${error}`);
          assert.ok(error.message.includes(remedy), error.message);
          assert.equal(error instanceof NoPolicyError, reply.startsWith("NOPOLICY"));
          return true;
        };
        await assert.rejects(limiter.policies.get("plan"), wrong);
        const decided = [
          () => limiter.take("k", LIMIT),
          () => limiter.peek("k", LIMIT),
          () => limiter.takeAll({ "{a}1": LIMIT, "{a}2": LIMIT }),
        ];
        const isThrown = kind === "caller" || kind === "operator";
        for (const decide of decided) {
          if (isThrown || (kind === "outage" && onOutage === "raise")) {
            await assert.rejects(decide(), wrong);
            continue;
          }
          const { allowed, source, error } = await decide();
          const local = kind === "outage" && typeof onOutage === "object";
          assert.equal(allowed, kind === "outage" && onOutage !== "closed", reply);
          assert.equal(source, local ? "local" : "none", reply);
          wrong(error);
        }
        // Errors that need an operator are logged, but not once a call.
        const errors = state.log.filter(({ level }) => level === "error");
        const isLoud = kind === "operator" || kind === "full";
        assert.equal(errors.length, isLoud ? 1 : 0, reply);
        proxy.error = undefined;
        // The error does not affect other calls.
        assert.equal((await limiter.take("other", LIMIT)).source, "server", reply);
        assert.equal(passesWithoutId === undefined, kind !== "full");
      }
    }
  });
}

test("key full of ids is charged without a generated id", async (test) => {
  const proxy = await refusingProxyFor(test, server);
  const client = new Redis(proxy.port);
  test.after(() => client.disconnect());
  const { limiter } = limiterOf(client);
  await limiter.policies.set("jobs", [concurrency(5, "1h"), LIMIT]);
  proxy.sparesUnnamed = true;
  for (const { reply, kind, passesWithoutId = false } of ROWS) {
    if (kind !== "full") continue;
    proxy.error = reply;
    const decision = await limiter.take("k", LIMIT, { once: true });
    assert.deepEqual(
      [decision.allowed, decision.source, decision.id],
      [passesWithoutId, passesWithoutId ? "server" : "none", undefined],
    );
    const both = await limiter.takeAll({ "{a}1": LIMIT, "{a}2": LIMIT }, { once: true });
    assert.equal(both.allowed, passesWithoutId);
    // An id of the caller's cannot be left out.
    assert.equal((await limiter.take("k", LIMIT, { once: "req-1" })).allowed, false);
    const some = await limiter.take("k", LIMIT, { cost: 3, upto: true });
    assert.deepEqual([some.allowed, some.granted], [false, 0]);
    const units = limiter.units("k", LIMIT);
    assert.equal((await units.take()).allowed, false);
    await units.close();
    // Nor can the id of a policy with a concurrency limit, which is the holder.
    const { allowed, source, error } = await limiter.take("k", policy("jobs"), { once: true });
    assert.deepEqual([allowed, source], [false, "none"]);
    assert.ok(error instanceof FullError);
  }
});

test("full key is not an outage", async (test) => {
  const module = ["max-ids", "3", "max-log-entries", "3", "max-leases", "3"];
  const small = await serverFor(test, {}, module);
  for (const onOutage of OUTAGES) {
    const client = lookInto(test, small);
    await client.flushall();
    const { limiter } = limiterOf(client, { onOutage });
    const takes = async (count: number, take: () => Promise<{ allowed: boolean }>) => {
      let passed = 0;
      for (let i = 0; i < count; i++) passed += Number((await take()).allowed);
      return passed;
    };
    assert.equal(await takes(15, () => limiter.take("ids", fixed(10, "1h"))), 10);
    const log = slidingLog(100, "1h");
    assert.equal(await takes(5, () => limiter.take("log", log, { once: false })), 3);
    const pool = concurrency(9, "1h");
    for (const holder of ["a", "b", "c"]) await limiter.lease("pool", pool, { holder });
    await assert.rejects(limiter.lease("pool", pool, { holder: "d" }), (error: unknown) => {
      assert.ok(error instanceof DeniedError);
      return /max-leases/.test(error.message);
    });
    assert.equal((await limiter.take("other", LIMIT)).source, "server");
  }
});

test("key of another algorithm is a setup error", async (test) => {
  const client = lookInto(test, server);
  for (const onOutage of OUTAGES) {
    await client.flushall();
    const { limiter, state } = limiterOf(client, { onOutage, once: false });
    for (const key of ["a", "b", "c"]) {
      await limiter.take(key, fixed(5, "1h"));
      await assert.rejects(limiter.take(key, sliding(5, "1h")), SetupError);
    }
    assert.equal((await limiter.take("other", LIMIT)).source, "server");
    assert.deepEqual(
      state.log.map(({ level }) => level),
      ["error"],
    );
    assert.match(state.log[0]!.line, /"a": WRONGTYPE.*another key/);
  }
});

test("wrong or missing password is reported by every call", async (test) => {
  const guarded = await serverFor(test, { requirepass: "secret" });
  const clients: Client[] = [];
  for (const password of [undefined, "wrong"]) {
    for (const enableOfflineQueue of [true, false]) {
      const options = { password, enableOfflineQueue, retryStrategy: () => 20 };
      const client = new Redis(guarded.port, options as object);
      client.on("error", () => {});
      test.after(() => client.disconnect());
      clients.push(client);
      if (!enableOfflineQueue) await once(client, "error");
    }
    const cluster = new Cluster([guarded.at], {
      redisOptions: { password } as object,
      clusterRetryStrategy: () => 20,
    });
    cluster.on("error", () => {});
    test.after(() => cluster.disconnect());
    clients.push(cluster);
  }
  const bare = createClient({ url: guarded.url, RESP: 2 });
  bare.on("error", () => {});
  await bare.connect();
  test.after(() => bare.destroy());
  for (const client of [...clients, bare]) {
    const { limiter, state } = limiterOf(client, { timeout: "300ms" });
    const wrong = (error: unknown) => {
      assert.ok(error instanceof SetupError, `${error}`);
      return /redis:\/\/user:password@host/.test(error.message);
    };
    // The first call may come before the server has replied.
    await limiter.take("k", LIMIT).catch(() => {});
    const { limiter: later } = limiterOf(client, { timeout: "300ms" });
    for (let i = 0; i < 3; i++) await assert.rejects(later.take("k", LIMIT), wrong);
    assert.ok(state.log.length <= 2);
  }
});

test("changed password is not an outage", async (test) => {
  const guarded = await serverFor(test, { requirepass: "secret" });
  const admin = new Redis(guarded.port, { password: "secret" });
  test.after(() => admin.disconnect());
  const client = createClient({ url: guarded.url, password: "right", username: "app" });
  client.on("error", () => {});
  await admin.call("ACL", "SETUSER", "app", "on", ">right", "~*", "+@all");
  await client.connect();
  test.after(() => client.destroy());
  const { limiter } = limiterOf(client, { timeout: "300ms" });
  assert.equal((await limiter.take("k", LIMIT)).source, "server");
  await admin.call("ACL", "SETUSER", "app", "<right", ">other");
  await admin.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
  await once(client, "error");
  const { limiter: later } = limiterOf(client, { timeout: "300ms" });
  const isRefused = () =>
    later.take("k", LIMIT).then(
      () => false,
      (error) => error instanceof SetupError,
    );
  await until(isRefused);
  assert.ok(await isRefused());
  await admin.call("ACL", "SETUSER", "app", ">right");
  await once(client, "ready");
  assert.equal((await later.take("k", LIMIT)).source, "server");
});

test("missing permission is a setup error", async (test) => {
  const admin = lookInto(test, server);
  await admin.call("ACL", "SETUSER", "app", "on", ">right", "~app:*", "+rl.peek", "+info");
  const client = new Redis(server.port, { username: "app", password: "right" });
  client.on("error", () => {});
  test.after(() => client.disconnect());
  const { limiter } = limiterOf(client);
  for (const key of ["app:k", "k"]) {
    await assert.rejects(limiter.take(key, LIMIT), { name: "SetupError", message: /ACL SETUSER/ });
  }
  assert.equal((await limiter.peek("app:k", LIMIT)).source, "server");
  client.disconnect();
  await admin.call("ACL", "DELUSER", "app");
});

test("cluster reached by a client of one server is a setup error", async (test) => {
  const cluster = await clusterFor(test);
  const { limiter } = limiterOf(lookInto(test, cluster.primaries[0]!));
  const outcomes = new Set<string>();
  for (let i = 0; i < 20; i++) {
    const name = await limiter.take(`k${i}`, LIMIT).then(
      ({ source }) => source,
      (error: Error) => `${error.name}: ${error.message.split(": ").at(-1)}`,
    );
    outcomes.add(name);
  }
  assert.deepEqual([...outcomes].sort(), ["SetupError: use a client for clusters", "server"]);
});

test("invalid key, amount or word is rejected before anything is sent", async (test) => {
  const client = lookInto(test, server);
  const { limiter } = limiterOf(client);
  let sent = 0;
  const send = client.sendCommand.bind(client);
  client.sendCommand = (...words) => {
    sent++;
    return send(...words);
  };
  const { limiter: watched } = limiterOf(client);
  for (const key of [undefined, null, 42, {}] as never[]) {
    for (const call of [
      () => watched.take(key, LIMIT),
      () => watched.peek(key, LIMIT),
      () => watched.settle(key, LIMIT, "id", 1),
      () => watched.giveBack(key, LIMIT),
      () => watched.reset(key),
      () => watched.release(key, "me"),
      () => watched.release("pool", key),
      () => watched.ban(key, 60),
      () => watched.lease(key, concurrency(1, 30)),
      () => watched.lease("pool", concurrency(1, 30), { holder: key ?? (7 as never) }),
      () => watched.take("k", policy(key)),
      () => watched.take("k", LIMIT, { once: key ?? (7 as never), ttl: 5 }),
      async () => watched.units(key, LIMIT).take(),
    ]) {
      await assert.rejects(call, TypeError);
    }
  }
  for (const cost of [NaN, Infinity, -1, 1e13, "1" as never]) {
    for (const call of [
      () => watched.take("k", LIMIT, { cost }),
      () => watched.peek("k", LIMIT, { cost }),
      () => watched.takeAll({ k: LIMIT }, { cost }),
      () => watched.peekAll({ k: LIMIT }, { cost }),
      () => watched.settle("k", LIMIT, "id", cost),
      () => watched.giveBack("k", LIMIT, cost),
      () => watched.units("k", LIMIT).take(cost),
    ]) {
      await assert.rejects(call, RangeError);
    }
    assert.throws(() => fixed(cost, "1m"), RangeError);
    assert.throws(() => fixed(1, "1m", { cost }), RangeError);
  }
  assert.equal(sent, 0);
  assert.equal((await limiter.take("k", LIMIT)).source, "server");
});
