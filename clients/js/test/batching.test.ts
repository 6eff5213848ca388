/** Decisions on batches of units match `clients/units.json`, the table of all packages. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { test } from "node:test";

import { Batching } from "../dist/batching.js";

interface Case {
  readonly name: string;
  readonly options: { readonly keep?: number; readonly batch?: number; readonly peers?: number };
  readonly steps: readonly (readonly [now: number, name: string, ...terms: never[]])[];
}

const FILE = resolve(import.meta.dirname, "../../units.json");
const { cases } = JSON.parse(readFileSync(FILE, "utf8")) as { cases: Case[] };

/**
 * Returns the outcome of a take: spent or asked with the units in hand, or denied with the wait.
 */
function outcomeOfTake(batching: Batching, cost: number, now: number): [string, number | null] {
  batching.recordDemand(cost, now);
  if (batching.spend(cost, now)) return ["spent", batching.inHand(now)];
  if (!batching.denies(cost, now)) return ["asked", batching.inHand(now)];
  return ["denied", batching.wait(cost, now)];
}

function resultOfStep(
  batching: Batching,
  now: number,
  name: string,
  terms: readonly never[],
): unknown {
  const [first, ...rest] = terms;
  switch (name) {
    case "spend":
      return batching.spend(first!, now) && batching.inHand(now);
    case "due":
      return batching.isDue(now);
    case "wanted":
      return batching.planRequest(first!, now);
    case "received": {
      const [granted, limit, remaining, wait, reset, requested, sentAt, random] = rest;
      const reply = { id: first!, granted, limit, remaining, wait, reset } as never;
      batching.recordReply(reply, requested!, sentAt!, now, random!);
      return batching.inHand(now);
    }
    default:
      assert.equal(name, "expired");
      return batching.takeExpired().map(({ id, spent }) => [id, spent]);
  }
}

for (const { name, options, steps } of cases) {
  test(name, () => {
    const batching = new Batching({ keep: 1, ...options });
    for (const [index, [now, name, ...terms]] of steps.entries()) {
      const where = `step ${index}: ${name} at ${now}`;
      const expected: number | null | undefined = terms.at(-1);
      if (name === "failed") {
        batching.recordFailure(now);
      } else if (name === "take") {
        const [cost, expectedOutcome] = terms;
        const [outcome, amount] = outcomeOfTake(batching, cost!, now);
        assert.equal(outcome, expectedOutcome, where);
        if (outcome === "denied" && amount !== null)
          assert.ok(Math.abs(amount - Number(expected)) < 2e-5, where);
        else assert.equal(amount, expected, where);
      } else {
        assert.deepEqual(resultOfStep(batching, now, name, terms.slice(0, -1)), expected, where);
      }
    }
  });
}
