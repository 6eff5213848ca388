/**
 * Keys of limits on the server: their name, or without one their canonical words.
 * `clients/keys.json` has test cases for all packages.
 */

import { seconds, type Duration, type Limit, type PolicyLimit } from "./limits.js";
import { limitsOf, type Limits, type ParsedLimits } from "./rates.js";

/** Prefix of keys by address, for requests without a key. No name begins with it. */
export const OF_ADDRESS = "ip:";

/** Client without an address, such as behind a Unix socket. */
export const UNKNOWN = "unknown";

/** Number of amounts after the algorithm, before its period, where it is not 1. */
const AMOUNTS: Readonly<Record<string, number>> = { TOKENBUCKET: 2, LEAKYBUCKET: 2, SKETCH: 2 };

/** Calendar windows, which stay as they are written. */
const CALENDAR = /^(1w|1mo|3mo|1y)$/;

/** Options that affect only a call, not its usage, and their lengths in words. */
const LEFT_OUT: Readonly<Record<string, number>> = { COST: 2, KEEP: 2, SIZE: 2, SHADOW: 1, NX: 1 };

/** Returns the canonical words of limits, which are the name of unnamed limits. */
export function specOf(limits: Limits): string {
  return [limitsOf(limits)]
    .flat()
    .map((limit: Limit) => canonical(limit).join(" "))
    .join("+");
}

function canonical(limit: Limit): string[] {
  if ("policies" in limit) return [(limit as PolicyLimit).policies.join("+")];
  const [name = "", ...words] = limit.words;
  const kind = name.toUpperCase();
  const count = AMOUNTS[kind] ?? 1;
  const period = words[count] ?? "";
  const rest = words.slice(count + 1);
  // A concurrency limit may name its holder here.
  if (kind === "CONCURRENCY" && rest[0] !== undefined && !isOption(rest[0])) rest.shift();
  const kept: string[] = [];
  while (rest.length > 0) {
    const option = rest[0]!.toUpperCase();
    const length = LEFT_OUT[option] ?? 0;
    if (length > 0) rest.splice(0, length);
    else if (TAKES_WORD.has(option)) kept.push(option, ...rest.splice(0, 2).slice(1));
    else kept.push(option, ...rest.splice(0, 1).slice(1));
  }
  return [kind, ...words.slice(0, count).map(plain), millis(period), ...kept];
}

/** Options that are followed by a value. */
const TAKES_WORD = new Set(["OFFSET", "ANCHOR", "AS"]);

function isOption(word: string): boolean {
  return word in LEFT_OUT || TAKES_WORD.has(word);
}

/** Writes an amount without an exponent and trailing zeros. */
function plain(amount: string): string {
  const value = Number(amount);
  return Number.isNaN(value) ? amount : value.toFixed(6).replace(/\.?0+$/, "");
}

function millis(period: string): string {
  return CALENDAR.test(period) ? period : plain(`${seconds(period as Duration) * 1000}`);
}

/**
 * Throws a TypeError if a name, or a prefix in place of one, could collide with keys by address.
 */
export function checkName(name: string): void {
  if (typeof name !== "string") throw new TypeError(`a name must be a string: ${String(name)}`);
  if (name !== "ip" && !name.startsWith(OF_ADDRESS)) return;
  throw new TypeError(`the name ${name} is taken: keys of addresses begin with ip:`);
}

export function checkPrefix(prefix: string): void {
  if (typeof prefix !== "string") throw new TypeError(`a prefix must be a string: ${prefix}`);
  if (prefix === "" || !(OF_ADDRESS.startsWith(prefix) || prefix.startsWith(OF_ADDRESS))) return;
  throw new TypeError(`the prefix ${prefix} is taken: keys of addresses begin with ip:`);
}

/** Returns limits labelled with a name, which clients see if a limit has none. */
export function labelled(limits: ParsedLimits, label: string): ParsedLimits {
  const one = (limit: Limit): Limit => ({ ...limit, label });
  return Array.isArray(limits) ? limits.map(one) : one(limits as Limit);
}

/** Use of a name. It ends when no holder refers to it. */
interface NameInUse {
  readonly kinds: string;
}

type Names = Map<string, WeakRef<NameInUse>>;

/** Names in use by client, with the limits that they are bound to. */
const NAMES = new WeakMap<object, Names>();

/** Uses by their holders: bound limits and stores. */
const USES = new WeakMap<object, NameInUse>();

const ENDED_USES = new FinalizationRegistry(({ names, name }: { names: Names; name: string }) => {
  if (names.get(name)?.deref() === undefined) names.delete(name);
});

/**
 * Registers a name for as long as the holder is in use. Throws a TypeError if it is bound to limits
 * of another algorithm or window, as they would share a key.
 */
export function bind(client: object, name: string, limits: ParsedLimits, holder: object): void {
  const all = [limits].flat();
  // A sketch has a key of its own: names are only those of its items.
  if (all.some(({ sketchKey }) => sketchKey !== undefined)) return;
  const kinds = all.map(kindOf).join("+");
  const existing = useOf(client, name);
  if (existing !== undefined && existing.kinds !== kinds) {
    throw new TypeError(
      `${name} is bound already to ${existing.kinds}, not ${kinds}: give each limit a name of its own`,
    );
  }
  USES.set(holder, existing ?? beginUse(client, name, kinds));
}

/** Registers the prefix of a store. Throws a TypeError if another store has it. */
export function claim(client: object, prefix: string, store: object): void {
  const name = `store ${prefix}`;
  if (useOf(client, name) !== undefined) {
    throw new TypeError(
      `another store counts under the prefix "${prefix}" of this client: ` +
        "give each store a prefix of its own",
    );
  }
  USES.set(store, beginUse(client, name, ""));
}

function useOf(client: object, name: string): NameInUse | undefined {
  return NAMES.get(client)?.get(name)?.deref();
}

function beginUse(client: object, name: string, kinds: string): NameInUse {
  const names: Names = NAMES.get(client) ?? new Map();
  NAMES.set(client, names);
  const use = { kinds };
  names.set(name, new WeakRef(use));
  ENDED_USES.register(use, { names, name });
  return use;
}

/**
 * Returns the algorithm of a limit, and its window if windows of different lengths have separate
 * usage.
 */
function kindOf(limit: Limit): string {
  const [kind = "", , ...rest] = canonical(limit);
  if ("policies" in limit) return "POLICY";
  return kind.startsWith("FIXED") || kind.startsWith("SLIDING") ? [kind, ...rest].join(" ") : kind;
}
