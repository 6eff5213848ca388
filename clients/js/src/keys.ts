/**
 * Names in keys: the canonical words of unnamed limits, and the names in use.
 * `clients/keys.json` has test cases for all packages.
 */

import { seconds, type Duration, type Limit, type PolicyLimit } from "./limits.js";
import { limitsOf, type Limits, type ParsedLimits } from "./rates.js";

/** Prefix of keys by address, for requests without a caller. No name begins with it. */
export const ADDRESS_PREFIX = "ip:";

/** Name in the key of all clients without an address, such as behind a Unix socket. */
export const UNKNOWN = "unknown";

/** Number of amounts between the algorithm and its period. 1 for algorithms that are not listed. */
const AMOUNT_COUNTS: Readonly<Record<string, number>> = {
  TOKENBUCKET: 2,
  LEAKYBUCKET: 2,
  SKETCH: 2,
};

/** Calendar windows, which have no length in milliseconds. */
const CALENDAR = /^(1w|1mo|3mo|1y)$/;

/** Options that are not canonical, as they do not affect the usage, and their lengths in words. */
const OMITTED_OPTIONS: Readonly<Record<string, number>> = {
  COST: 2,
  KEEP: 2,
  SIZE: 2,
  SHADOW: 1,
  NX: 1,
};

/** Returns the canonical words of limits: their name in keys if they have none. */
export function specOf(limits: Limits): string {
  return [limitsOf(limits)]
    .flat()
    .map((limit: Limit) => canonical(limit).join(" "))
    .join("+");
}

function canonical(limit: Limit): string[] {
  if ("policies" in limit) return [(limit as PolicyLimit).policies.join("+")];
  const [first = "", ...words] = limit.words;
  const algorithm = first.toUpperCase();
  const count = AMOUNT_COUNTS[algorithm] ?? 1;
  const period = words[count] ?? "";
  const rest = words.slice(count + 1);
  // A concurrency limit may name its holder before the options.
  if (algorithm === "CONCURRENCY" && rest[0] !== undefined && !isOption(rest[0])) rest.shift();
  const options: string[] = [];
  while (rest.length > 0) {
    const option = rest[0]!.toUpperCase();
    const omittedLength = OMITTED_OPTIONS[option] ?? 0;
    const [, ...values] = rest.splice(0, omittedLength || (OPTIONS_WITH_VALUE.has(option) ? 2 : 1));
    if (omittedLength === 0) options.push(option, ...values);
  }
  return [algorithm, ...words.slice(0, count).map(canonicalAmount), millis(period), ...options];
}

/** Canonical options that are followed by a value. */
const OPTIONS_WITH_VALUE = new Set(["OFFSET", "ANCHOR", "AS"]);

function isOption(word: string): boolean {
  return word in OMITTED_OPTIONS || OPTIONS_WITH_VALUE.has(word);
}

/** Formats an amount without an exponent and without trailing zeros. */
function canonicalAmount(amount: string): string {
  const value = Number(amount);
  return Number.isNaN(value) ? amount : value.toFixed(6).replace(/\.?0+$/, "");
}

function millis(period: string): string {
  return CALENDAR.test(period) ? period : canonicalAmount(`${seconds(period as Duration) * 1000}`);
}

/**
 * Throws a TypeError if a name, or a prefix in place of one, could collide with keys by address.
 */
export function checkName(name: string): void {
  if (typeof name !== "string") throw new TypeError(`a name must be a string: ${String(name)}`);
  if (name !== "ip" && !name.startsWith(ADDRESS_PREFIX)) return;
  throw new TypeError(`the name ${name} is taken: keys of addresses begin with ip:`);
}

export function checkPrefix(prefix: string): void {
  if (typeof prefix !== "string") throw new TypeError(`a prefix must be a string: ${prefix}`);
  if (prefix === "" || !(ADDRESS_PREFIX.startsWith(prefix) || prefix.startsWith(ADDRESS_PREFIX)))
    return;
  throw new TypeError(`the prefix ${prefix} is taken: keys of addresses begin with ip:`);
}

/** Returns limits with a label, which clients see for a limit without a name. */
export function labelled(limits: ParsedLimits, label: string): ParsedLimits {
  const withLabel = (limit: Limit): Limit => ({ ...limit, label });
  return Array.isArray(limits) ? limits.map(withLabel) : withLabel(limits as Limit);
}

/** Use of a name, which ends when no bound limit or store refers to it. */
interface NameInUse {
  /** Algorithms and windows of the limits; empty for a store. */
  readonly kinds: string;
}

type Names = Map<string, WeakRef<NameInUse>>;

/** Names in use, for each client. */
const NAMES = new WeakMap<object, Names>();

/** Use that each bound limit and each store refers to. */
const USES = new WeakMap<object, NameInUse>();

/** Registry that removes a name after its use was garbage-collected. */
const ENDED_USES = new FinalizationRegistry(({ names, name }: { names: Names; name: string }) => {
  if (names.get(name)?.deref() === undefined) names.delete(name);
});

/**
 * Registers a name until no holder of it is in use. Throws a TypeError if the name is bound to
 * limits of another algorithm or window, as they would share a key.
 */
export function bind(client: object, name: string, limits: ParsedLimits, holder: object): void {
  const all = [limits].flat();
  // A sketch has a key of its own: the name is only a prefix of its items.
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

/** Returns the use of a name; undefined if the name is free. */
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
 * Returns the algorithm of a limit, with its window and options for algorithms whose usage depends
 * on the window.
 */
function kindOf(limit: Limit): string {
  if ("policies" in limit) return "POLICY";
  const [algorithm = "", , ...rest] = canonical(limit);
  const dependsOnWindow = algorithm.startsWith("FIXED") || algorithm.startsWith("SLIDING");
  return dependsOnWindow ? [algorithm, ...rest].join(" ") : algorithm;
}
