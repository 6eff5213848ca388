/** Rates as text, such as `"100/minute"`. `clients/rates.json` has test cases. */

import { fixed, type Duration, type KnownLimit, type Limit } from "./limits.js";

const AMOUNT = /\d+(?:\.\d+)?/;
const UNIT = /s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|weeks?/;
const RATE = new RegExp(`^(${AMOUNT.source})(?:/|per)(\\d*)(${UNIT.source})$`);

/** Unit of a duration, by the first letter of a unit of rates. Weeks are converted to days. */
const DURATION_UNITS: Readonly<Record<string, "s" | "m" | "h" | "d">> = {
  s: "s",
  m: "m",
  h: "h",
  d: "d",
  w: "d",
};

/** Longest window of a rate. */
const MAX_DAYS = 3650;
/** Days in a unit, by its first letter. */
const DAYS: Readonly<Record<string, number>> = {
  s: 1 / 86_400,
  m: 1 / 1440,
  h: 1 / 24,
  d: 1,
  w: 7,
};

/** Parses a rate: `"100/minute"` is `fixed(100, "1m")`. Throws a RangeError if it is invalid. */
export function rate(text: string): KnownLimit {
  const match = RATE.exec(text.toLowerCase().replace(/\s+/g, ""));
  const [, amount, digits, unit = ""] = match ?? [];
  const count = digits ? Number(digits) : 1;
  const initial = unit.charAt(0);
  const isInRange = count > 0 && count * (DAYS[initial] ?? Infinity) <= MAX_DAYS;
  if (!match || !isInRange) {
    throw new RangeError(`not a rate, such as "100/minute" or "5 per 15 minutes": "${text}"`);
  }
  const units = initial === "w" ? count * 7 : count;
  return fixed(Number(amount), `${units}${DURATION_UNITS[initial]!}` satisfies Duration);
}

/** Limit of a key: an algorithm, a policy, or a rate such as `"100/minute"`. */
export type LimitOrRate = Limit | string;

/** Limits of a key. A call charges all of them or none. */
export type Limits = LimitOrRate | readonly LimitOrRate[];

/** Limits of a key, with rates parsed. */
export type ParsedLimits = Limit | readonly Limit[];

/**
 * Parses the rates among limits. Throws an error that shows the right form if a limit is invalid.
 */
export function limitsOf(limits: Limits): ParsedLimits {
  // Fast path for most calls.
  if (Array.isArray((limits as Limit | undefined)?.words)) return limits as Limit;
  if (!Array.isArray(limits)) return limitOf(limits as LimitOrRate);
  if (limits.length === 0) throw new RangeError("at least one limit is needed");
  return limits.every(isLimit) ? limits : limits.map(limitOf);
}

export function limitOf(limit: LimitOrRate): Limit {
  if (isLimit(limit)) return limit;
  if (typeof limit === "string") return rate(limit);
  const problem = limit === undefined || limit === null ? "a limit is missing" : "not a limit";
  throw new TypeError(
    `${problem}: ${shown(limit)}; give one such as fixed(100, "1m") or "100/minute"`,
  );
}

export function isLimit(limit: unknown): limit is Limit {
  return Array.isArray((limit as Limit | undefined | null)?.words);
}

function shown(value: unknown): string {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);
}
