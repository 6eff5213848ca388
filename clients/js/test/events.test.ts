/** Outcome of each event: `clients/events.json`, the table that all packages share. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { after, test } from "node:test";

import {
  CallError,
  FullError,
  Limiter,
  NoPolicyError,
  SetupError,
  UnavailableError,
  fixed,
  policy,
  type Client,
  type Decision,
  type LimiterOptions,
} from "redis-ratelimit-client";

import { KINDS, clientFor, clusterClientFor, type Kind } from "./support/clients.js";
import { block, networkFor } from "./support/faults.js";
import { lossyProxyFor, refusingProxyFor } from "./support/proxy.js";
import { clusterFor, lookInto, serverFor, until, type Scope } from "./support/server.js";

interface Row {
  readonly event: string;
  readonly by: {
    readonly reply?: string;
    readonly connection?: string;
    readonly process?: string;
    readonly call?: {
      readonly key?: null | number;
      readonly cost?: number | string;
      readonly limits?: [];
    };
  };
  readonly class: "outage" | "caller" | "operator" | "decision";
  readonly does: "on_outage" | "raises" | "denies" | "server" | "server, without an id";
  readonly error: string | null;
  readonly says: readonly string[];
  readonly counts: boolean;
  readonly log: "outage" | "error" | null;
}

/** Returns `true` if a call has an idempotency key. */
interface IdCase {
  readonly limit?: number;
  readonly policy?: string;
  readonly cost?: number;
  readonly once?: boolean | string;
  readonly ttl?: "1m";
  readonly limiter_once?: boolean;
  readonly id: boolean;
}

const TABLE = JSON.parse(
  readFileSync(resolve(import.meta.dirname, "../../events.json"), "utf8"),
) as { defaults: Record<string, unknown>; ids: readonly IdCase[]; events: readonly Row[] };
const ERRORS: Record<string, abstract new (...words: never[]) => Error> = {
  ...{ CallError, FullError, NoPolicyError, SetupError, UnavailableError, TypeError, RangeError },
};
const LIMIT = fixed(5, "1h");

const server = await serverFor({ after });

function limiterOf(client: Client, options: LimiterOptions = {}) {
  const log: { line: string; level: string }[] = [];
  const tell = (line: string, level: string) => log.push({ line, level });
  return { limiter: new Limiter(client, { log: tell, ...options }), log };
}

/** Returns a key of its own for each test. */
let keys = 0;
const freshKey = () => `events:${keys++}`;

function rowsBy(how: keyof Row["by"]): readonly Row[] {
  return TABLE.events.filter(({ by }) => how in by);
}

test("packages have the same defaults", async () => {
  const text = readFileSync(resolve(import.meta.dirname, "../src/limiter.ts"), "utf8");
  const defaultOf = (name: string) =>
    new RegExp(`options\\.${name} (?:\\?\\?|[!=]==) ("?[\\w.]*"?)`).exec(text)?.[1] ??
    new RegExp(`\\b${name} = ("?[\\w.]*"?)`).exec(text)?.[1];
  const inNode: Record<string, string> = { remember_denials: "false" };
  for (const [name, value] of Object.entries(TABLE.defaults)) {
    const camel = name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
    // Disabled by this word.
    assert.equal(defaultOf(camel), inNode[name] ?? JSON.stringify(value), name);
  }
});

for (const kind of KINDS.filter(({ name }) => /^(ioredis|node-redis) 6/.test(name))) {
  test(`${kind.name}: error replies lead to their outcomes`, async (test) => {
    const proxy = await refusingProxyFor(test, server);
    const client = await clientFor(test, kind, proxy.port);
    const address = `127.0.0.1:${proxy.port}`;
    for (const onOutage of ["open", "closed"] as const) {
      for (const row of rowsBy("reply")) {
        const { limiter, log } = limiterOf(client, { onOutage, failures: 1, pause: 3600 });
        proxy.error = row.by.reply;
        proxy.sparesUnnamed = row.event === "full-of-ids";
        // A call with this limit has an id.
        const take = () => limiter.take(freshKey(), LIMIT);
        const outcome = await outcomeOf(row, take, onOutage);
        for (const words of row.says) {
          const output = [outcome, ...log.map(({ line }) => line)].join("\n");
          assert.ok(
            output.includes(words === "address" ? address : words),
            `${row.event}: ${output}`,
          );
        }
        await take().catch(() => {});
        const levels = log.map(({ level }) => level);
        const expected = { outage: ["warn"], error: ["error"] };
        assert.deepEqual(levels, row.log === null ? [] : expected[row.log], row.event);
        // The error does not affect other calls.
        proxy.error = undefined;
        assert.equal((await limiter.take(freshKey(), LIMIT)).source, "server", row.event);
      }
    }
  });
}

test("calls have an idempotency key where the table says", async (test) => {
  const client = lookInto(test, server);
  await new Limiter(client).policies.set("events:plan", fixed(10, "1h"));
  for (const row of TABLE.ids) {
    const { limit, cost, once, ttl, limiter_once, id } = row;
    const limiter = new Limiter(client, limiter_once === undefined ? {} : { once: limiter_once });
    const limits = limit === undefined ? policy("events:plan") : fixed(limit, "1h");
    const options = Object.entries({ cost, once, ttl }).filter(([, value]) => value !== undefined);
    const decision = await limiter.take(freshKey(), limits, Object.fromEntries(options));
    assert.equal(decision.id !== undefined, id, JSON.stringify(row));
  }
});

/** Triggers an event of the table and returns the error. */
async function outcomeOf(
  { event, does, error }: Row,
  take: () => Promise<Decision>,
  onOutage: "open" | "closed",
): Promise<string> {
  if (does === "raises") {
    let thrown: unknown;
    await assert.rejects(take(), (why) => {
      thrown = why;
      assert.ok(why instanceof ERRORS[error!]!, `${event}: ${String(why)}`);
      return true;
    });
    return `${String(thrown)}`;
  }
  const decision = await take();
  if (does.startsWith("server")) {
    assert.deepEqual([decision.source, decision.error], ["server", undefined], event);
    return "";
  }
  assert.ok(decision.error instanceof ERRORS[error!]!, event);
  assert.ok(decision.degraded && decision.limit === null, event);
  assert.equal(decision.allowed, does === "on_outage" && onOutage === "open", event);
  return `${decision.error}`;
}

test("malformed calls are rejected before anything is sent", async (test) => {
  const client = lookInto(test, server);
  let sent = 0;
  const send = client.sendCommand.bind(client);
  client.sendCommand = (...words) => {
    sent++;
    return send(...words);
  };
  const { limiter, log } = limiterOf(client);
  for (const row of rowsBy("call")) {
    const { key = "k", cost, limits = LIMIT } = row.by.call!;
    const units = cost === "NaN" ? NaN : cost;
    const options = units === undefined ? [] : [{ cost: units as number }];
    for (const call of [limiter.take, limiter.peek] as const) {
      const request = async () => call.call(limiter, key as string, limits, ...options);
      await assert.rejects(request, (why: Error) => {
        assert.ok(why instanceof ERRORS[row.error!]!, `${row.event}: ${why}`);
        for (const words of row.says) assert.ok(why.message.includes(words), why.message);
        return true;
      });
    }
  }
  assert.deepEqual([sent, log], [0, []]);
});

/** Sends fifty calls at once, and asserts that as many pass as the limit allows. */
async function fifty(limiter: Limiter, key: string, meanwhile: () => unknown): Promise<Decision[]> {
  const calls = Array.from({ length: 50 }, () => limiter.take(key, LIMIT));
  await meanwhile();
  return Promise.all(calls);
}

const CONNECTIONS: Record<string, (test: Scope, kind: Kind) => Promise<void>> = {
  refused: async (test, kind) => {
    const stopped = await serverFor(test);
    const client = await clientFor(test, kind, stopped.port);
    await stopped.stop();
    await outage(limiterOf(client, { timeout: "50ms" }), `127.0.0.1:${stopped.port}`, () =>
      stopped.start(),
    );
  },
  "no-reply": async (test, kind) => {
    const network = await networkFor(test, server);
    const client = await clientFor(test, kind, network.port);
    const impatient = limiterOf(client, { timeout: "50ms" });
    await impatient.limiter.take(freshKey(), LIMIT);
    network.isSilent = true;
    await outage(impatient, `127.0.0.1:${network.port}`, () => {
      network.isSilent = false;
      network.cut();
    });
  },
  "lost-replies": async (test, kind) => {
    const proxy = await lossyProxyFor(test, server, 1);
    const client = await clientFor(test, kind, proxy.port);
    const { limiter, log } = limiterOf(client, { timeout: "100ms", connectTimeout: "100ms" });
    const { source, error } = await limiter.take(freshKey(), LIMIT);
    assert.deepEqual([source, error instanceof UnavailableError], ["none", true]);
    assert.match(log[0]!.line, new RegExp(`127\\.0\\.0\\.1:${proxy.port} is away`));
  },
  "lost-reply": async (test, kind) => {
    const proxy = await lossyProxyFor(test, server, 2);
    const { limiter, log } = limiterOf(await clientFor(test, kind, proxy.port));
    const key = freshKey();
    const outcome = [await limiter.take(key, LIMIT), await limiter.take(key, LIMIT)];
    assert.deepEqual(
      outcome.map(({ source, remaining }) => [source, remaining]),
      [
        ["server", 4],
        ["server", 3],
      ],
    );
    assert.deepEqual([proxy.count.lost, log], [1, []]);
  },
  "client-kill": async (test, kind) => {
    const { limiter, log } = limiterOf(await clientFor(test, kind, server.port));
    const admin = lookInto(test, server);
    await admin.ping();
    const outcome = await fifty(limiter, freshKey(), () =>
      admin.call("CLIENT", "KILL", "TYPE", "normal"),
    );
    assert.deepEqual(passedOf(outcome), { passed: 5, undecided: 0 });
    assert.deepEqual(log, []);
  },
  "far-server": async (test, kind) => {
    const network = await networkFor(test, server);
    network.delayMs = 30;
    const { limiter, log } = limiterOf(await clientFor(test, kind, network.port), { timeout: 1 });
    assert.deepEqual(passedOf(await fifty(limiter, freshKey(), () => {})), {
      passed: 5,
      undecided: 0,
    });
    assert.deepEqual(log, []);
  },
};

function passedOf(outcome: readonly Decision[]) {
  const passed = outcome.filter(({ allowed }) => allowed).length;
  return { passed, undecided: outcome.filter(({ degraded }) => degraded).length };
}

/** Asserts a fallback by onOutage, with one log message at its begin and one at its end. */
async function outage(
  { limiter, log }: ReturnType<typeof limiterOf>,
  address: string,
  end: () => unknown,
): Promise<void> {
  const outcome = await fifty(limiter, freshKey(), () => {});
  for (const { source, error } of outcome) {
    assert.deepEqual([source, error instanceof UnavailableError], ["none", true]);
  }
  await end();
  await until(async () => (await limiter.take(freshKey(), LIMIT)).source === "server");
  await until(async () => {
    await limiter.take(freshKey(), LIMIT);
    return log.length > 1;
  });
  assert.match(log[0]!.line, new RegExp(`^rate limits: ${address} is away: .`));
  assert.equal(log[1]!.line, `rate limits: ${address} is back`);
  assert.equal(log.length, 2);
}

for (const kind of KINDS) {
  for (const { event } of rowsBy("connection")) {
    test(`${kind.name}: ${event}`, (test) => CONNECTIONS[event]!(test, kind));
  }

  test(`${kind.name}: blocked-process`, async (test) => {
    const { limiter, log } = limiterOf(await clientFor(test, kind, server.port));
    await limiter.take(freshKey(), LIMIT);
    const key = freshKey();
    const outcome: Promise<Decision>[] = [];
    // Calls in flight, and calls that begin as soon as the event loop is free, repeatedly.
    for (let round = 0; round < 2; round++) {
      for (let i = 0; i < 500; i++) outcome.push(limiter.take(key, LIMIT));
      if (round > 0) await new Promise(setImmediate);
      block(250);
    }
    assert.deepEqual(passedOf(await Promise.all(outcome)), { passed: 5, undecided: 0 });
    assert.deepEqual(log, []);
  });
}

for (const kind of KINDS.filter(({ name }) => /^(ioredis|node-redis) 6/.test(name))) {
  test(`${kind.name}: outage of a cluster node is logged once and delays no other node`, async (test) => {
    const cluster = await clusterFor(test);
    const client = await clusterClientFor(test, kind, cluster);
    const { limiter, log } = limiterOf(client, { timeout: "100ms", pause: 0.2 });
    const users = Array.from({ length: 30 }, (_, user) => `${user}`);
    const request = () => Promise.all(users.map((user) => limiter.take(user, fixed(1000, "1h"))));
    assert.deepEqual(passedOf(await request()), { passed: 30, undecided: 0 });
    const [stopped] = cluster.primaries;
    await stopped!.stop();
    await until(async () => (await request()).some(({ degraded }) => degraded));
    for (let round = 0; round < 10; round++) {
      const { undecided } = passedOf(await request());
      assert.ok(0 < undecided && undecided < 30, `${undecided}`);
    }
    assert.deepEqual(log.length, 1, JSON.stringify(log));
    assert.ok(
      log[0]!.line.startsWith(`rate limits: 127.0.0.1:${stopped!.port} is away: `),
      log[0]!.line,
    );
    await stopped!.start();
    const isOver = () => / (is back|decides again)$/.test(log.at(-1)!.line);
    await until(async () => (await request(), isOver()));
    // In between, a node that has just started may report that its cluster is down.
    assert.ok(log.length <= 3, JSON.stringify(log));
    assert.ok(log.every(({ line }) => line.startsWith(`rate limits: 127.0.0.1:${stopped!.port} `)));
  });
}
