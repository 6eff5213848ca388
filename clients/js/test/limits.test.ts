/** Tests without a server: words, durations, header fields and addresses. */

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  concurrency,
  fields,
  fixed,
  leakyBucket,
  policy,
  sliding,
  slidingLog,
  tokenBucket,
  type DecisionData,
  type Limit,
} from "redis-ratelimit-client";

test("limits have the module's syntax", () => {
  const cases: [Limit, string, number | undefined][] = [
    [tokenBucket(200, 100, 60), "TOKENBUCKET 200 100 60", 120],
    [leakyBucket(10, 2, "1m", { cost: 0.5 }), "LEAKYBUCKET 10 2 1m COST 0.5", 300],
    [fixed(5, "1mo", { aligned: true, anchor: 15 }), "FIXED 5 1mo ALIGNED ANCHOR 15", 2_678_400],
    [
      fixed(5, "1d", { aligned: true, offset: "+09:00" }),
      "FIXED 5 1d ALIGNED OFFSET +09:00",
      86_400,
    ],
    [sliding(5, "1.5h", { strict: true, name: "s" }), "SLIDING 5 1.5h STRICT AS s", 5400],
    [slidingLog(5, "100ms", { keep: "20%" }), "SLIDINGLOG 5 100ms KEEP 20%", 0.1],
    [fixed(5, 60, { name: "new", shadow: true }), "FIXED 5 60 AS new SHADOW", 60],
    [concurrency(5, "30s", { holder: "me", nx: true }), "CONCURRENCY 5 30s me NX", 30],
    [policy("user:42", "plan:pro", "default"), "POLICY user:42 OR plan:pro OR default", undefined],
  ];
  for (const [limit, words, window] of cases) {
    assert.equal(limit.words.join(" "), words);
    assert.equal(limit.window, window, words);
  }
});

test("invalid duration is rejected", () => {
  for (const wrong of ["", "soon", "1mo ", "1 s", "s", "-1s", "1..2s", Number.NaN, Infinity, -1]) {
    assert.throws(() => fixed(5, wrong as "1s"), RangeError);
  }
});

const DECISION: DecisionData = {
  allowed: true,
  limit: 10,
  remaining: 7,
  waitMs: 0,
  resetMs: 17_200,
};

test("header fields", () => {
  assert.deepEqual(fields({ ...DECISION, window: 60 }), {
    "RateLimit-Policy": '"default";q=10;w=60',
    RateLimit: '"default";r=7;t=18',
    "X-RateLimit-Limit": "10",
    "X-RateLimit-Remaining": "7",
    "X-RateLimit-Reset": "18",
  });
  const before = Math.floor(Date.now() / 1000);
  const at = Number(fields(DECISION, { unixReset: true })["X-RateLimit-Reset"]);
  assert.ok(at >= before + 17 && at <= before + 120, `${at}`);
  // This process does not know the window of a policy.
  assert.equal(fields(DECISION)["RateLimit-Policy"], '"default";q=10');
  // A sliding window takes up to two windows to recover fully, but one to make room.
  assert.equal(fields({ ...DECISION, window: 10 })["RateLimit"], '"default";r=7;t=10');

  const denied = { ...DECISION, allowed: false, remaining: 0, waitMs: 2100 };
  const header = fields({
    ...denied,
    each: [
      { ...DECISION, name: "day" },
      { ...denied, name: 'a "name"' },
      { ...denied, waitMs: null },
    ],
  });
  assert.equal(header["RateLimit-Policy"], '"day";q=10, "a \\"name\\"";q=10, "default-3";q=10');
  // A denial lists only limits that denied, without a time if it never passes.
  assert.equal(header["RateLimit"], '"a \\"name\\"";r=0;t=3, "default-3";r=0');
  assert.equal(header["Retry-After"], "3");

  assert.deepEqual(fields({ ...denied, source: "none", waitMs: 1000 }), { "Retry-After": "1" });
  assert.deepEqual(fields({ ...DECISION, source: "local" }), {});
});
