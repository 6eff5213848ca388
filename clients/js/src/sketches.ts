/** Calls with a sketch as their limit: the key of the call is an item of the sketch's key. */

import type { Limit } from "./limits.js";
import type { ParsedLimits } from "./rates.js";

/** Error text for options and methods that a sketch does not support. */
export const MERGED =
  "a sketch cannot tell apart again what it has merged: " +
  "no item is settled, given back, reset, banned or charged once";

/** Returns the limit of a sketch, or of a policy with a sketch key; undefined for other limits. */
export function sketchOf(limits: ParsedLimits): Limit | undefined {
  if (!Array.isArray(limits)) {
    const limit = limits as Limit;
    return limit.sketchKey === undefined ? undefined : limit;
  }
  const sketch = limits.find((limit: Limit) => limit.sketchKey !== undefined) as Limit | undefined;
  if (sketch && limits.length > 1) {
    throw new TypeError("a sketch is alone in its key: takeAll has several keys");
  }
  return sketch;
}

/** Throws a TypeError if the limits are a sketch. */
export function refuseSketch(limits: ParsedLimits): void {
  if (sketchOf(limits)) throw new TypeError(MERGED);
}

/** Returns the key of a sketch, and the limit of one item, with the item among its words. */
export function keyAndLimitOfItem(
  item: string,
  { sketchKey, ...sketch }: Limit,
): [sketchKey: string, limit: Limit] {
  if (typeof sketchKey !== "string") {
    throw new TypeError(
      'a call by a sketch needs its key: sketch(50, 50, "1m", { key: "addresses" })',
    );
  }
  if (typeof item !== "string") throw new TypeError(`a key must be a string: ${String(item)}`);
  const { words } = sketch;
  const wordsWithItem =
    "policies" in sketch
      ? [...words, "ITEM", item]
      : [...words.slice(0, ITEM_INDEX), item, ...words.slice(ITEM_INDEX)];
  return [sketchKey, { ...sketch, words: wordsWithItem }];
}

/** Index of the item, after SKETCH, the capacity, the refill and the period. */
const ITEM_INDEX = 4;
