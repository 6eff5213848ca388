/** Limits. A call brings the limit; the server stores the usage. */

type Unit = "us" | "ms" | "s" | "m" | "h" | "d";

/** Duration in seconds as a number, or a number with a unit: `60`, `0.5`, `"100ms"`, `"1.5h"`. */
export type Duration = number | `${number}` | `${number}${Unit}`;

/** Calendar window, for `fixed` with `aligned`: a week from Monday, a month, a quarter, a year. */
export type CalendarWindow = "1w" | "1mo" | "3mo" | "1y";

export interface LimitOptions {
  /** Units charged to this limit in place of the cost of the call. 0 to 1000000000000. */
  readonly cost?: number;
  /**
   * Name of 1 to 32 letters, digits, `_` and `-`. A limit with a name keeps its usage if its window
   * changes.
   */
  readonly name?: string;
  /** Pass only if this much remains after the call: an amount, or `"20%"` of the limit. */
  readonly keep?: number | `${number}%`;
  /** Shadow limit of a policy: usage is counted, but nothing is denied. */
  readonly shadow?: boolean;
}

export interface FixedOptions extends LimitOptions {
  /**
   * Begin windows at multiples of their length since the Unix epoch. By default a window begins
   * with its first call.
   */
  readonly aligned?: boolean;
  /** With `aligned`: the offset from UTC at which windows begin, such as `"+09:00"`. */
  readonly offset?: string;
  /** With `aligned` months and quarters: the day on which they begin, 1 to 31. */
  readonly anchor?: number;
}

export interface SlidingOptions extends LimitOptions {
  /** Never allow more than the limit in any window. */
  readonly strict?: boolean;
}

export interface ConcurrencyOptions extends LimitOptions {
  /** Holder of the lease, 1 to 256 bytes. Required in `take`; `lease` generates one. */
  readonly holder?: string;
  /** Pass only if this holder has no lease yet. */
  readonly nx?: boolean;
}

export interface SketchOptions extends Omit<LimitOptions, "name"> {
  /** Key of the sketch. The keys of calls are its items. */
  readonly key?: string;
  /**
   * Size when the key is created: `"64kb"` to `"256mb"`, or bytes. By default the server's setting,
   * 1 MB.
   */
  readonly size?: number | `${number}kb` | `${number}mb`;
}

export interface PolicyOptions {
  /** Key of the sketch, for a policy that is a sketch. The keys of calls are its items. */
  readonly key?: string;
}

export interface Limit {
  /** Words of the limit in the module's syntax. */
  readonly words: readonly string[];
  /**
   * Units that recover within `window`. Undefined for a policy, whose limits only the server knows.
   */
  readonly quota?: number;
  /** Seconds until all units have recovered. Undefined for a policy. */
  readonly window?: number;
  readonly cost?: number;
  readonly name?: string;
  /** Name under which the limit is bound, which clients see if the limit has no name. */
  readonly label?: string;
  /** Key of a sketch. null: a sketch without a key, which can only be set as a policy. */
  readonly sketchKey?: string | null;
}

/** Limit whose numbers this process knows, as local limits require. */
export interface KnownLimit extends Limit {
  readonly quota: number;
  readonly window: number;
}

/**
 * Concurrency limit: up to `limit` units at once. A lease expires after `ttl` unless it is renewed.
 */
export interface ConcurrencyLimit extends KnownLimit {
  readonly limit: number;
  readonly ttl: Duration;
}

/** Policy of the server. */
export interface PolicyLimit extends Limit {
  readonly policies: readonly string[];
}

/**
 * Creates a token bucket: bursts of `capacity` units, refilled by `refill` every `period`,
 * continuously.
 */
export function tokenBucket(
  capacity: number,
  refill: number,
  period: Duration,
  options: LimitOptions = {},
): KnownLimit {
  return bucket("TOKENBUCKET", capacity, refill, period, options);
}

/**
 * Creates a leaky bucket: a queue of `capacity` calls that drains at `leak` every `period`. Hold an
 * allowed call for `decision.wait`.
 */
export function leakyBucket(
  capacity: number,
  leak: number,
  period: Duration,
  options: LimitOptions = {},
): KnownLimit {
  return bucket("LEAKYBUCKET", capacity, leak, period, options);
}

/** Creates a fixed window: `limit` units in each window. */
export function fixed(
  limit: number,
  window: Duration | CalendarWindow,
  options: FixedOptions = {},
): KnownLimit {
  const { aligned, offset, anchor } = options;
  const flags = [
    ...(aligned ? ["ALIGNED"] : []),
    ...(offset === undefined ? [] : ["OFFSET", offset]),
    ...(anchor === undefined ? [] : ["ANCHOR", `${anchor}`]),
  ];
  return knownLimit(
    ["FIXED", amount(limit, "limit"), `${window}`, ...flags],
    limit,
    lengthOf(window),
    options,
  );
}

/**
 * Creates a sliding window: approximately `limit` units in any window, or with `strict` never more.
 * The server's README describes the error.
 */
export function sliding(limit: number, window: Duration, options: SlidingOptions = {}): KnownLimit {
  const flags = options.strict ? ["STRICT"] : [];
  return knownLimit(
    ["SLIDING", amount(limit, "limit"), `${window}`, ...flags],
    limit,
    seconds(window),
    options,
  );
}

/**
 * Creates a sliding log: exactly `limit` units in any window, by storing the time of every call.
 */
export function slidingLog(
  limit: number,
  window: Duration,
  options: LimitOptions = {},
): KnownLimit {
  return knownLimit(
    ["SLIDINGLOG", amount(limit, "limit"), `${window}`],
    limit,
    seconds(window),
    options,
  );
}

/**
 * Creates a concurrency limit: at most `limit` units held at the same time. In a policy's
 * definition it has no holder.
 */
export function concurrency(
  limit: number,
  ttl: Duration,
  options: ConcurrencyOptions = {},
): ConcurrencyLimit {
  const words = ["CONCURRENCY", amount(limit, "limit"), `${ttl}`];
  if (options.holder !== undefined) words.push(options.holder);
  if (options.nx) words.push("NX");
  return { ...knownLimit(words, limit, seconds(ttl), options), limit, ttl };
}

/**
 * Creates a sketch: a token bucket for each of any number of items, such as addresses, in one key
 * of a fixed size: `sketch(50, 50, "1m", { key: "addresses" })`. The key of a call is the item.
 *
 * An item never gets more than its limit, and may be denied too early if the sketch is too small.
 * Charges can be neither settled nor given back. A sketch that is set as a policy has no key: the
 * call names the key, by `policy(name, { key: "addresses" })`.
 */
export function sketch(
  capacity: number,
  refill: number,
  period: Duration,
  { key, size, ...options }: SketchOptions = {},
): KnownLimit {
  if ("name" in options) throw new TypeError("a sketch has no name: it is alone in its key");
  const { words, ...limit } = bucket("SKETCH", capacity, refill, period, options);
  const wordsWithSize = size === undefined ? words : [...words, "SIZE", `${size}`];
  return { ...limit, words: wordsWithSize, sketchKey: sketchKeyOf(key) ?? null };
}

/**
 * Refers to a policy: named limits stored on the server. Of several names, the first policy that
 * exists applies. Options come last: `policy("per-address", { key: "addresses" })`.
 */
export function policy(name: string, ...others: (string | PolicyOptions)[]): PolicyLimit {
  const last = others.at(-1);
  const { key } = typeof last === "object" ? last : ({} as PolicyOptions);
  const fallbacks = typeof last === "object" ? others.slice(0, -1) : others;
  const policies = [name, ...(fallbacks as string[])];
  const sketchKey = sketchKeyOf(key);
  return {
    words: ["POLICY", ...alternatives(policies)],
    policies,
    ...(sketchKey === undefined ? {} : { sketchKey }),
  };
}

function sketchKeyOf(key: string | undefined): string | undefined {
  if (key === undefined || typeof key === "string") return key;
  throw new TypeError(`a key must be a string: ${String(key)}`);
}

/** Ban, an option of a call or of a policy. */
export interface Ban {
  readonly words: readonly string[];
}

/**
 * Creates a ban: after `strikes` denied calls within `window` the key is banned for `block`. With
 * `longest`, each ban that soon follows another lasts twice as long, up to `longest`.
 */
export function ban(strikes: number, window: Duration, block: Duration, longest?: Duration): Ban {
  const maxWords = longest === undefined ? [] : ["MAX", `${longest}`];
  return { words: ["BAN", `${strikes}`, `${window}`, `${block}`, ...maxWords] };
}

/** Returns the words of alternative policies: `a OR b`. */
export function alternatives(names: readonly string[]): string[] {
  return names.flatMap((name, index) => (index === 0 ? [name] : ["OR", name]));
}

/** Largest amount that the server accepts. */
export const MAX_AMOUNT = 1_000_000_000_000;

/**
 * Formats an amount. Throws a RangeError unless it is from 0 to 10^12, or with `zero` false above
 * 0. `description` names the amount in the error.
 */
export function amount(value: number, description: string, { zero = true } = {}): string {
  if (typeof value !== "number" || !(zero ? value >= 0 : value > 0) || value > MAX_AMOUNT) {
    const lowerBound = zero ? "from 0" : "above 0,";
    throw new RangeError(
      `${description} must be a number ${lowerBound} to ${MAX_AMOUNT}: ${String(value)}`,
    );
  }
  return `${value}`;
}

const SECONDS: Readonly<Record<Unit, number>> = {
  us: 1e-6,
  ms: 1e-3,
  s: 1,
  m: 60,
  h: 3600,
  d: 86_400,
};

/** Returns the seconds of a duration. Throws a RangeError if it is invalid. */
export function seconds(duration: Duration): number {
  const match = /^([\d.]+(?:e[+-]?\d+)?)(us|ms|s|m|h|d)?$/.exec(`${duration}`);
  const count = Number(match?.[1]);
  if (!match || !Number.isFinite(count)) {
    throw new RangeError(`not a duration, such as 60 or "100ms": ${duration}`);
  }
  return count * SECONDS[(match[2] ?? "s") as Unit];
}

const CALENDAR_DAYS: Readonly<Record<CalendarWindow, number>> = {
  "1w": 7,
  "1mo": 31,
  "3mo": 92,
  "1y": 366,
};

/**
 * Returns the length of a window in seconds; for a calendar window, the longest possible length.
 */
function lengthOf(window: Duration | CalendarWindow): number {
  const days = CALENDAR_DAYS[window as CalendarWindow] as number | undefined;
  return days === undefined ? seconds(window as Duration) : days * SECONDS.d;
}

function bucket(
  kind: string,
  capacity: number,
  rate: number,
  period: Duration,
  options: LimitOptions,
): KnownLimit {
  const words = [kind, amount(capacity, "capacity"), amount(rate, "rate", { zero: false })];
  // For a capacity of 0, the window is the time in which a forced unit drains.
  const window = ((capacity || 1) / rate) * seconds(period);
  return knownLimit([...words, `${period}`], capacity, window, options);
}

function knownLimit(
  words: readonly string[],
  quota: number,
  window: number,
  { cost, name, keep, shadow }: LimitOptions,
): KnownLimit {
  return {
    words: [
      ...words,
      ...(cost === undefined ? [] : ["COST", amount(cost, "cost")]),
      ...(keep === undefined ? [] : ["KEEP", `${keep}`]),
      ...(name === undefined ? [] : ["AS", name]),
      ...(shadow ? ["SHADOW"] : []),
    ],
    quota,
    window,
    ...(cost === undefined ? {} : { cost }),
    ...(name === undefined ? {} : { name }),
  };
}
