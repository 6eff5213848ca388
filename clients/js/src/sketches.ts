/** Calls by a sketch, in which the key of the call is an item of the sketch's key. */

import type { Limit } from "./limits.js";
import type { ParsedLimits } from "./rates.js";

export const MERGED =
  "a sketch cannot tell apart again what it has merged: " +
  "no item is settled, given back, reset, banned or charged once";

/** Returns the sketch, or the policy that is a sketch, if the limits are one. */
export function sketchOf(limits: ParsedLimits): Limit | undefined {
  if (!Array.isArray(limits)) {
    const limit = limits as Limit;
    return limit.sketchKey === undefined ? undefined : limit;
  }
  const found = limits.find((limit: Limit) => limit.sketchKey !== undefined) as Limit | undefined;
  if (found && limits.length > 1) {
    throw new TypeError("a sketch is alone in its key: takeAll has several keys");
  }
  return found;
}

/** Throws a TypeError if the limits are a sketch. */
export function refuse(limits: ParsedLimits): void {
  if (sketchOf(limits)) throw new TypeError(MERGED);
}

/** Returns the key of a sketch, and its limit for one item, which has the item among its words. */
export function placed(item: string, { sketchKey, ...sketch }: Limit): [string, Limit] {
  if (typeof sketchKey !== "string") {
    throw new TypeError(
      'a call by a sketch needs its key: sketch(50, 50, "1m", { key: "addresses" })',
    );
  }
  if (typeof item !== "string") throw new TypeError(`a key must be a string: ${String(item)}`);
  const { words } = sketch;
  const named =
    "policies" in sketch
      ? [...words, "ITEM", item]
      : [...words.slice(0, ITEM_AT), item, ...words.slice(ITEM_AT)];
  return [sketchKey, { ...sketch, words: named }];
}

/** Index of the item, after SKETCH, the capacity, the refill and the period. */
const ITEM_AT = 4;
