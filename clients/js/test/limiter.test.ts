/** Limiter with every client, alone and in a cluster. */

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { Limiter, NoPolicyError, fixed, policy, tokenBucket } from "redis-ratelimit-client";

import { KINDS, clientFor, clusterClientFor } from "./support/clients.js";
import { lossyProxyFor } from "./support/proxy.js";
import { calls, clusterFor, lookInto, redirects, serverFor, until } from "./support/server.js";

const LIMIT = fixed(100, "1h");

/** Options for calls that must not time out, however busy the machine is. */
const PATIENT = { timeout: 30, onOutage: "raise" } as const;

const server = await serverFor({ after });
// The first node has a replica, for peeks.
const cluster = await clusterFor({ after }, { replicas: 1 });

for (const kind of KINDS) {
  /** Prefix, as each client has keys and policies of its own. */
  const prefix = `${kind.name}:`;
  const options = { ...PATIENT, prefix };

  test(`${kind.name}: decisions contain the server's reply`, async (test) => {
    const limiter = new Limiter(await clientFor(test, kind, server.port), options);
    const bucket = tokenBucket(10, 10, "1d");

    const first = await limiter.take("user:42", bucket, { cost: 4 });
    assert.deepEqual(
      { ...first, id: typeof first.id },
      {
        allowed: true,
        limit: 10,
        remaining: 6,
        wait: 0,
        waitMs: 0,
        reset: 34_560,
        resetMs: 34_560_000,
        each: [],
        window: 86_400,
        source: "server",
        id: "string",
      },
    );

    const denied = await limiter.take("user:42", bucket, { cost: 8 });
    assert.equal(denied.allowed, false);
    assert.ok(denied.wait! > 17_000 && denied.wait! <= 17_280, `${denied.wait}`);
    assert.equal(denied.id, undefined);
    assert.equal((await limiter.take("user:42", bucket, { cost: 11 })).wait, null);
    assert.equal((await limiter.peek("user:42", bucket)).remaining, 6);

    assert.equal((await limiter.settle("user:42", bucket, first.id!, 1)).remaining, 9);
    assert.equal((await limiter.giveBack("user:42", bucket, 1)).remaining, 10);
    assert.equal((await limiter.settle("user:42", bucket, "unknown", 1)).allowed, false);
    assert.deepEqual((await limiter.take("user:42", bucket, { cost: 30, upto: true })).granted, 10);
    assert.equal(await limiter.reset("user:42"), true);
    assert.equal(await limiter.reset("user:42"), false);
  });

  test(`${kind.name}: several limits of a key, and of several keys`, async (test) => {
    const limiter = new Limiter(await clientFor(test, kind, server.port), options);
    const limits = [
      fixed(5, "1h", { name: "requests", cost: 1 }),
      tokenBucket(100, 100, "1h", { name: "tokens" }),
    ];
    const decision = await limiter.take("llm", limits, { cost: 60, each: true });
    assert.deepEqual(
      decision.each.map(({ name, remaining, window }) => [name, remaining, window]),
      [
        ["requests", 4, 3600],
        ["tokens", 40, 3600],
      ],
    );
    // The limit that runs out first under calls like this.
    assert.deepEqual([decision.allowed, decision.name, decision.remaining], [true, "tokens", 40]);
    const denied = await limiter.take("llm", limits, { cost: 60, each: true });
    assert.deepEqual([denied.allowed, denied.name, denied.remaining], [false, "tokens", 40]);
    assert.equal((await limiter.take("llm", limits, { cost: 60 })).remaining, 40);

    const keyed = { "{acme}:ann": fixed(2, "1h"), "{acme}:all": fixed(3, "1h") };
    assert.equal((await limiter.takeAll(keyed)).remaining, 1);
    assert.equal((await limiter.takeAll(keyed)).remaining, 0);
    const over = await limiter.takeAll(keyed);
    assert.deepEqual(
      [over.allowed, ...over.each.map(({ allowed }) => allowed)],
      [false, false, true],
    );
    assert.equal((await limiter.peekAll(keyed)).allowed, false);
  });

  test(`${kind.name}: policies`, async (test) => {
    const limiter = new Limiter(await clientFor(test, kind, server.port), options);
    const { policies } = limiter;
    const pro = `${prefix}plan:pro`;
    const plan = policy(`${prefix}user:42`, pro);

    await assert.rejects(limiter.take("user:42", plan), NoPolicyError);
    const first = await policies.set(pro, fixed(5, "1h", { name: "requests" }));
    const decision = await limiter.take("user:42", plan, { each: true, once: true });
    assert.deepEqual(
      [decision.policy, decision.remaining, decision.each[0]?.name],
      [pro, 4, "requests"],
    );
    assert.equal((await limiter.peek("user:42", plan)).remaining, 4);
    assert.equal((await limiter.settle("user:42", plan, decision.id!, 0)).remaining, 5);
    assert.equal(await policies.set(pro, fixed(9, "1h"), { nx: true }), first);
    const other = policies.set(pro, fixed(9, "1h"), { version: 7 });
    await assert.rejects(other, new RegExp(`version ${first}, not 7`));
    const second = await policies.set(pro, fixed(8, "1h"), { version: first });
    assert.ok(second > first);

    assert.deepEqual(await policies.list(`${prefix}plan:*`), [
      { name: pro, version: second, specs: "FIXED 8 1h", scale: 1, scaleMs: null },
    ]);
    const brake = { every: "1h", duration: "2h" } as const;
    assert.equal((await policies.multiply(pro, 0.5, brake)).factor, 0.5);
    assert.equal((await policies.multiply(pro, 0.5, brake)).factor, 0.5);
    assert.equal((await policies.multiply(pro, 0, { least: 0.1 })).factor, 0.1);
    assert.equal((await policies.add(pro, 0.5, { every: "1h" })).factor, 0.6);
    assert.equal((await policies.add(pro, 5, { most: 3 })).factor, 3);
    assert.equal((await policies.scale(pro, 0.5, "1h")).factor, 0.5);
    const info = await policies.get(pro);
    assert.ok(info && info.scaleMs !== null && info.setAt instanceof Date);
    assert.deepEqual([info.version, info.scale, info.specs], [second, 0.5, "FIXED 8 1h"]);
    assert.equal(info.counts.admitted, 1);
    const stale = policies.delete(pro, { version: first });
    await assert.rejects(stale, new RegExp(`version ${second}, not ${first}`));
    const both = policies.delete(pro, "plan:none", { version: second } as never);
    await assert.rejects(both, /one by its name and version/);
    assert.equal(await policies.delete(pro, { version: second }), 1);
    assert.equal(await policies.get(pro), undefined);
    await policies.set(pro, fixed(7, "1h"));
    assert.equal(await policies.delete(pro, "plan:none"), 1);
  });

  test(`${kind.name}: each call goes to the right node of a cluster`, async (test) => {
    const limiter = new Limiter(await clusterClientFor(test, kind, cluster), options);
    const before = await redirects(test, cluster);
    const users = Array.from({ length: 30 }, (_, n) => `user:${n}`);
    const limit = fixed(2, "1h");

    for (const user of users) {
      const passed = await Promise.all([1, 2, 3].map(() => limiter.take(user, limit)));
      assert.equal(passed.filter(({ allowed }) => allowed).length, 2, user);
      await limiter.peek(user, limit);
      await limiter.takeAll({ [`{${user}}:a`]: limit, [`{${user}}:b`]: limit });
    }
    for (const node of cluster.primaries) {
      assert.ok((await calls(lookInto(test, node))) > 0, "a node had no calls");
    }
    assert.equal(await redirects(test, cluster), before);
  });

  test(`${kind.name}: policy can be read where it was set, and applies on all nodes`, async (test) => {
    const limiter = new Limiter(await clusterClientFor(test, kind, cluster), options);
    for (const name of ["a", "b", "c", "d", "e", "f"].map((name) => prefix + name)) {
      const first = await limiter.policies.set(name, fixed(5, "1h"));
      const second = await limiter.policies.set(name, fixed(6, "1h"), { version: first });
      assert.equal((await limiter.policies.get(name))?.version, second);
    }
    for (const node of cluster.primaries) {
      const admin = lookInto(test, node);
      const version = async () =>
        (await admin.call("RL.POLICYLIST", "MATCH", `${prefix}*`)) as unknown[];
      await until(async () => (await version()).length === 6);
    }
    assert.equal(await limiter.policies.delete(prefix + "a", prefix + "b"), 2);
  });

  test(`${kind.name}: peeks go to replicas if the client reads there`, async (test) => {
    const client = await clusterClientFor(test, kind, cluster, true);
    const limiter = new Limiter(client, options);
    const replica = lookInto(test, cluster.replicas[0]!);
    const before = await peeks(replica);
    // For any key on the node that has a replica.
    for (let i = 0; i < 100; i++) await limiter.peek(`user:${i}`, fixed(5, "1h"));
    assert.ok((await peeks(replica)) > before, "no peek came to the replica");
  });

  test(`${kind.name}: lost replies are resent, and exactly the limit is charged`, async (test) => {
    const proxy = await lossyProxyFor(test, server, 5);
    const limiter = new Limiter(await clientFor(test, kind, proxy.port), {
      ...options,
      resends: 50,
      failures: Infinity,
    });
    let passed = 0;
    for (let round = 0; round < 20; round++) {
      const decision = await Promise.all(
        Array.from({ length: 10 }, () => limiter.take("lossy", LIMIT, { once: true })),
      );
      passed += decision.filter(({ allowed }) => allowed).length;
    }
    assert.ok(proxy.count.lost > 10, `only ${proxy.count.lost} replies were lost`);
    assert.equal(passed, 100);
    const remaining = await lookInto(test, server).call(
      "RL.PEEK",
      `${prefix}lossy`,
      "FIXED",
      "100",
      "1h",
    );
    assert.equal((remaining as number[])[2], 0);
  });
}

test("without ids, ioredis charges its own resends twice", async (test) => {
  const proxy = await lossyProxyFor(test, server, 5);
  const client = await clientFor(test, KINDS[0]!, proxy.port);
  const limiter = new Limiter(client, { ...PATIENT, once: false, failures: Infinity });
  let passed = 0;
  for (let i = 0; i < 200; i++) passed += Number((await limiter.take("no ids", LIMIT)).allowed);
  assert.ok(proxy.count.lost > 10);
  assert.ok(passed < 100, `${passed} passed`);
});

async function peeks(redis: ReturnType<typeof lookInto>): Promise<number> {
  const stats = await redis.info("commandstats");
  return Number(/cmdstat_rl\.peek:calls=(\d+)/i.exec(stats)?.[1] ?? 0);
}
