/** Charge of one call: the limits of one key, or one limit for each of several keys. */

import type { Keyed } from "./calls.js";
import type { Limit } from "./limits.js";
import type { Charged } from "./local.js";
import { limitOf, type ParsedLimits } from "./rates.js";
import { keyAndLimitOfItem, sketchOf } from "./sketches.js";

export interface Charge {
  /** Key on the server, for a call with one key. */
  readonly serverKey?: string;
  /** Limits by their keys on the server, for a call with several keys. */
  readonly keyed?: Keyed;
  /** Name of an item of a sketch, under which its denials are remembered. */
  readonly itemKey?: string;
  readonly limits: readonly Limit[];
  /** `true` if the caller wants no id, so that the call must not be resent. */
  readonly isNeverResent?: boolean;
  /** Limits, each with its key without the limiter's prefix, or with its `itemKey`. */
  readonly charged: Charged;
}

/** Function that returns the key on the server for a key without the limiter's prefix. */
type ServerKeyOf = (key: string) => string;

export function chargedOfKey(key: string, limits: ParsedLimits): Charged {
  return [limits].flat().map((limit) => [key, limit]);
}

/** Returns the charge of one key. */
export function chargeOfKey(serverKey: string, key: string, limits: ParsedLimits): Charge {
  return { serverKey, limits: [limits].flat(), charged: chargedOfKey(key, limits) };
}

/** Returns the charge of an item of a sketch. */
export function chargeOfItem(serverKeyOf: ServerKeyOf, item: string, sketch: Limit): Charge {
  const [sketchKey, limit] = keyAndLimitOfItem(item, sketch);
  const serverKey = serverKeyOf(sketchKey);
  const itemKey = `${serverKey} ${item}`;
  return { serverKey, itemKey, limits: [limit], charged: [[itemKey, limit]] };
}

export function chargeOfKeys(serverKeyOf: ServerKeyOf, keyed: Keyed): Charge {
  const parts = Object.entries(keyed).map(([key, limitOrRate]): Charge => {
    const limit = limitOf(limitOrRate);
    if (sketchOf(limit)) return chargeOfItem(serverKeyOf, key, limit);
    return { serverKey: serverKeyOf(key), limits: [limit], charged: [[key, limit]] };
  });
  const limitsByKey = Object.fromEntries(
    parts.map(({ serverKey, limits }) => [serverKey!, limits[0]!]),
  );
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
export function groupByKey(charged: Charged): [key: string, limits: Limit[]][] {
  const groups = new Map<string, Limit[]>();
  for (const [key, limit] of charged) groups.set(key, [...(groups.get(key) ?? []), limit]);
  return [...groups];
}
