/** Clients cannot evade their limit or use up another's with an X-Forwarded-For header. */

import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";

import { trustProxy } from "../src/address.js";
import { createApp } from "../src/app.js";
import { LONG_TIMEOUT, perAddress } from "./support/limits.js";
import { Site, proxyOf, statuses } from "./support/http.js";
import { clientFor, serverFor } from "./support/redis.js";

const PROXY = "127.0.0.1";
const MALLORY = "127.0.0.66";
const VICTIM = "127.0.0.5";

async function site(test: TestContext, trust: string | undefined) {
  const redis = await clientFor(test, await serverFor(test));
  const policies = [perAddress(5)];
  const app = createApp({ redis, policies, trustProxy: trustProxy(trust), ...LONG_TIMEOUT });
  return Site.serve(test, app);
}

function spoofing(from: string) {
  let n = 0;
  return () => ({ from, headers: { "x-forwarded-for": `203.0.113.${n++}` } });
}

test("without a proxy the header is ignored", async (test) => {
  const api = await site(test, undefined);
  const spoofed = spoofing(MALLORY);
  const answers = await api.burst(10, 2, () => api.get("/hello", spoofed()));
  assert.deepEqual(statuses(answers), { 200: 5, 429: 15 });
});

for (const trust of [PROXY, "1"]) {
  test(`behind a proxy, trusted as ${trust}, each client has its own limit`, async (test) => {
    const proxy = await proxyOf(test, await site(test, trust));
    for (const from of [MALLORY, VICTIM]) {
      const answers = await proxy.burst(10, 1, () => proxy.get("/hello", { from }));
      assert.deepEqual(statuses(answers), { 200: 5, 429: 5 });
    }
  });

  test(`behind a proxy, trusted as ${trust}, a spoofed address does not evade the limit`, async (test) => {
    const proxy = await proxyOf(test, await site(test, trust));
    const spoofed = spoofing(MALLORY);
    const answers = await proxy.burst(10, 2, () => proxy.get("/hello", spoofed()));
    assert.deepEqual(statuses(answers), { 200: 5, 429: 15 });
  });

  test(`behind a proxy, trusted as ${trust}, a client cannot spend another's limit`, async (test) => {
    const proxy = await proxyOf(test, await site(test, trust));
    const headers = { "x-forwarded-for": VICTIM };
    await proxy.burst(10, 2, () => proxy.get("/hello", { from: MALLORY, headers }));
    assert.equal(
      (await proxy.get("/hello", { from: VICTIM })).headers["x-ratelimit-remaining"],
      "4",
    );
  });
}

test("X-Forwarded-For of a client that bypasses the proxy is ignored", async (test) => {
  const api = await site(test, PROXY);
  const spoofed = spoofing(MALLORY);
  const answers = await api.burst(10, 2, () => api.get("/hello", spoofed()));
  assert.deepEqual(statuses(answers), { 200: 5, 429: 15 });
});

test("trust proxy is off, a number or addresses, never true", () => {
  assert.equal(trustProxy(undefined), false);
  assert.equal(trustProxy("false"), false);
  assert.equal(trustProxy("2"), 2);
  assert.deepEqual(trustProxy("10.0.0.0/8, 192.0.2.7"), ["10.0.0.0/8", "192.0.2.7"]);
  assert.throws(() => trustProxy("true"), /not true/);
});
