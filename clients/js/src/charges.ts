/** What one call charges: the limits of one key, or one limit for each of several. */

import type { Keyed } from "./calls.js";
import type { Limit } from "./limits.js";
import type { Charged } from "./local.js";
import { limitOf, type ParsedLimits } from "./rates.js";
import { placed, sketchOf } from "./sketches.js";

export interface Charge {
  readonly full?: string;
  readonly keyed?: Keyed;
  /** Of an item of a sketch: whose denials are remembered. */
  readonly whose?: string;
  readonly limits: readonly Limit[];
  /** The caller wants no id, and so no call that could count twice. */
  readonly isSentOnce?: boolean;
  /** The limits, with their keys as the caller has them. */
  readonly charged: Charged;
}

/** The key on the server, of one that the caller has. */
type KeyOf = (key: string) => string;

export function ofKey(key: string, limits: ParsedLimits): Charged {
  return [limits].flat().map((limit) => [key, limit]);
}

/** An item, by the key of its sketch. */
export function ofItem(keyOf: KeyOf, item: string, sketch: Limit): Charge {
  const [key, limit] = placed(item, sketch);
  const full = keyOf(key);
  const whose = `${full} ${item}`;
  return { full, whose, limits: [limit], charged: [[whose, limit]] };
}

export function ofKeys(keyOf: KeyOf, keyed: Keyed): Charge {
  const parts = Object.entries(keyed).map(([key, given]): Charge => {
    const limit = limitOf(given);
    if (sketchOf(limit)) return ofItem(keyOf, key, limit);
    return { full: keyOf(key), limits: [limit], charged: [[key, limit]] };
  });
  const asked = Object.fromEntries(parts.map(({ full, limits }) => [full!, limits[0]!]));
  if (Object.keys(asked).length < parts.length) {
    throw new RangeError("a call has each key once, and so one item of a sketch");
  }
  const item = parts.find(({ whose }) => whose !== undefined);
  return {
    keyed: asked,
    ...(item?.whose === undefined ? {} : { whose: item.whose }),
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
