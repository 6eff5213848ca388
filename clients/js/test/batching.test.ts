/** Choices of batches of units, by the table that all packages share: `clients/units.json`. */

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

/** Returns the outcome of a take: spent or asked with the units in hand, or denied with the wait. */
function taken(batching: Batching, cost: number, now: number): [string, number | null] {
  batching.demand(cost, now);
  if (batching.spend(cost, now)) return ["spent", batching.inHand(now)];
  if (!batching.denies(cost, now)) return ["asked", batching.inHand(now)];
  return ["denied", batching.wait(cost, now)];
}

function result(batching: Batching, now: number, name: string, terms: readonly never[]): unknown {
  const [first, ...rest] = terms;
  switch (name) {
    case "spend":
      return batching.spend(first!, now) && batching.inHand(now);
    case "due":
      return batching.isDue(now);
    case "wanted":
      return batching.wanted(first!, now);
    case "received": {
      const [granted, limit, remaining, wait, reset, wanted, sentAt, random] = rest;
      const reply = { id: first!, granted, limit, remaining, wait, reset } as never;
      batching.received(reply, wanted!, sentAt!, now, random!);
      return batching.inHand(now);
    }
    default:
      assert.equal(name, "expired");
      return batching.expired().map(({ id, spent }) => [id, spent]);
  }
}

for (const { name, options, steps } of cases) {
  test(name, () => {
    const batching = new Batching({ keep: 1, ...options });
    for (const [place, [now, name, ...terms]] of steps.entries()) {
      const where = `step ${place}: ${name} at ${now}`;
      const expected: number | null | undefined = terms.at(-1);
      if (name === "failed") {
        batching.failed(now);
      } else if (name === "take") {
        const [cost, outcome] = terms;

        const [found, amount] = taken(batching, cost!, now);
        assert.equal(found, outcome, where);
        if (outcome === "denied" && amount !== null)
          assert.ok(Math.abs(amount - Number(expected)) < 2e-5, where);
        else assert.equal(amount, expected, where);
      } else {
        assert.deepEqual(result(batching, now, name, terms.slice(0, -1)), expected, where);
      }
    }
  });
}
