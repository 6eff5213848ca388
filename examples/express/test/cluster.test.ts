/** The limiter on a Redis Cluster of three primaries. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { createApp } from "../src/app.js";
import type { Policy } from "../src/limits.js";
import type { Server } from "../src/server.js";
import { LONG_TIMEOUT, quota } from "./support/limits.js";
import { Site } from "./support/http.js";
import { calls, clientFor, inspect, serverFor, until } from "./support/redis.js";

const SLOTS = 16384;

async function clusterFor(test: TestContext): Promise<Server[]> {
  const servers = await Promise.all(
    [1, 2, 3].map(() => serverFor(test, { "cluster-enabled": "yes" })),
  );
  const nodes = servers.map((server) => inspect(test, server));
  await Promise.all(
    nodes.map(async (node, index) => {
      const first = Math.ceil((index * SLOTS) / 3);
      const next = Math.ceil(((index + 1) * SLOTS) / 3);
      const slots = Array.from({ length: next - first }, (_, slot) => first + slot);
      await node.call("CLUSTER", "ADDSLOTS", ...slots);
      // Distinct epochs from the start, so that the nodes need not agree on them first.
      await node.call("CLUSTER", "SET-CONFIG-EPOCH", index + 1);
    }),
  );
  for (const node of nodes) {
    for (const { port } of servers) await node.call("CLUSTER", "MEET", "127.0.0.1", port);
  }
  for (const node of nodes) {
    await until(async () => {
      const info = `${await node.call("CLUSTER", "INFO")}`;
      return info.includes("cluster_state:ok") && info.includes("cluster_known_nodes:3");
    });
  }
  return servers;
}

/** Serves an application whose tenants and users come from headers. */
async function siteOf(test: TestContext, servers: Server[], ...policies: Policy[]) {
  const redis = await clientFor(test, ...servers);
  const faults: string[] = [];
  const app = createApp({
    redis,
    policies,
    ...LONG_TIMEOUT,
    // Requests without a decision of Redis would make the counts below meaningless.
    report: ({ error }) => void (error && faults.push(`${error}`)),
    identify: (request) => ({
      tenant: request.get("x-tenant")!,
      user: request.get("x-user")!,
      address: request.ip!,
    }),
  });
  return { redis, faults, api: await Site.serve(test, app) };
}

const TENANTS = Array.from({ length: 12 }, (_, n) => `tenant-${n}`);
const CALLERS = TENANTS.flatMap((tenant) => [`${tenant}/ann`, `${tenant}/ben`]);

/** Sends 1200 requests of 50 clients, 50 for each user. Returns the user of each passed request. */
async function passes(api: Site): Promise<string[]> {
  let next = 0;
  const passed: string[] = [];
  await api.burst(50, 24, async () => {
    const who = CALLERS[next++ % CALLERS.length]!;
    const [tenant, user] = who.split("/") as [string, string];
    const answer = await api.get("/hello", { headers: { "x-tenant": tenant, "x-user": user } });
    assert.ok(answer.status === 200 || answer.status === 429, answer.body);
    if (answer.status === 200) passed.push(who);
    return answer;
  });
  return passed;
}

test("tenants are spread over the nodes, and each gets exactly its limits", async (test) => {
  const servers = await clusterFor(test);
  const { redis, faults, api } = await siteOf(
    test,
    servers,
    { name: "service", limit: quota(10_000), of: () => "all", apart: { batch: 50, keep: "1h" } },
    { name: "region", limit: quota(10_000), of: () => "eu", apart: "give-back" },
    { name: "tenant", limit: quota(40), of: () => "all" },
    { name: "endpoint", limit: quota(1000), of: ({ endpoint }) => endpoint },
    { name: "user", limit: quota(30), of: ({ user }) => user },
    { name: "ip", limit: quota(1000), of: ({ address }) => address },
  );

  const passed = await passes(api);

  assert.deepEqual(faults, []);
  for (const tenant of TENANTS) {
    const [ann, ben] = ["ann", "ben"].map(
      (user) => passed.filter((who) => who === `${tenant}/${user}`).length,
    ) as [number, number];
    assert.equal(ann + ben, 40);
    assert.ok(ann <= 30 && ben <= 30, `${ann} and ${ben}`);
  }
  for (const server of servers) {
    const node = inspect(test, server);
    assert.ok((await calls(node, "rl.mtake")) > 0, "a node had no calls");
    // The client finds the right node although it does not know the module's commands.
    assert.doesNotMatch(await node.info("errorstats"), /MOVED/);
  }
  // The region is refunded what tenants and users denied.
  const peeked = await redis.call("RL.PEEK", "rl:region:eu", ...quota(10_000).words);
  assert.equal((peeked as number[])[2], 10_000 - 480);
});

for (const apart of ["give-back", { batch: 20, keep: "1h" }] as const) {
  test(`all tenants share a limit on one node: ${JSON.stringify(apart)}`, async (test) => {
    const { faults, api } = await siteOf(
      test,
      await clusterFor(test),
      { name: "service", limit: quota(300), of: () => "all", apart },
      { name: "tenant", limit: quota(10_000), of: () => "all" },
    );
    const passed = await passes(api);
    assert.deepEqual(faults, []);
    assert.equal(passed.length, 300);
  });
}
