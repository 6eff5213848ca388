/** Charges of one call: the limits of one key, or one limit for each of several keys. */

import type { Keyed } from "./calls.js";
import type { Limit } from "./limits.js";
import type { Charged } from "./local.js";
import { limitOf, type ParsedLimits } from "./rates.js";
import { placed, sketchOf } from "./sketches.js";

export interface Charge {
  readonly full?: string;
  readonly keyed?: Keyed;
  /** Key of an item of a sketch, under which its denials are remembered. */
  readonly itemKey?: string;
  readonly limits: readonly Limit[];
  /** `true` if the caller wants no id, so that the call must not be resent. */
  readonly isSentOnce?: boolean;
  /** Limits with their keys as the caller knows them. */
  readonly charged: Charged;
}

/** Function that returns the key on the server for a key of the caller. */
type KeyOf = (key: string) => string;

export function ofKey(key: string, limits: ParsedLimits): Charged {
  return [limits].flat().map((limit) => [key, limit]);
}

/** Returns the charge of an item by the key of its sketch. */
export function ofItem(keyOf: KeyOf, item: string, sketch: Limit): Charge {
  const [key, limit] = placed(item, sketch);
  const full = keyOf(key);
  const itemKey = `${full} ${item}`;
  return { full, itemKey, limits: [limit], charged: [[itemKey, limit]] };
}

export function ofKeys(keyOf: KeyOf, keyed: Keyed): Charge {
  const parts = Object.entries(keyed).map(([key, given]): Charge => {
    const limit = limitOf(given);
    if (sketchOf(limit)) return ofItem(keyOf, key, limit);
    return { full: keyOf(key), limits: [limit], charged: [[key, limit]] };
  });
  const limitsByKey = Object.fromEntries(parts.map(({ full, limits }) => [full!, limits[0]!]));
  if (Object.keys(limitsByKey).length < parts.length) {
    throw new RangeError("a call has each key once, and so one item of a sketch");
  }
  const item = parts.find(({ itemKey }) => itemKey !== undefined);
  return {
    keyed: limitsByKey,
    ...(item?.itemKey === undefined ? {} : { itemKey: item.itemKey }),
    limits: parts.flatMap(({ limits }) => limits),
    charged: parts.flatMap(({ charged }) => charged),
  };
}

/** Groups charged limits by their keys. */
export function byKey(charged: Charged): [key: string, limits: Limit[]][] {
  const groups = new Map<string, Limit[]>();
  for (const [key, limit] of charged) groups.set(key, [...(groups.get(key) ?? []), limit]);
  return [...groups];
}
