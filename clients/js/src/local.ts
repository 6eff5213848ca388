/**
 * Limits of this process, as a fallback during an outage: a bucket in memory for each limit of each
 * key, with this process's share of the limit.
 */

import type { PeekOptions } from "./calls.js";
import { Decision, governingDecision } from "./decision.js";
import type { KnownLimit, Limit } from "./limits.js";
import { Bucket } from "./memory/pools.js";
import { ceilDiv, max, min, UNIT } from "./memory/rule.js";

type Usage = ReturnType<Bucket["unused"]>;

export interface LocalOptions {
  /** Share of this process in each limit: 0.25 for four processes. */
  readonly share: number;
  /**
   * Limit that applies in place of a policy, whose limits only the server knows. The share applies
   * to this limit, too. Without it, calls by a policy are allowed. Leases are always allowed, as
   * they could not be released here.
   */
  readonly otherwise?: KnownLimit;
}

/** Limits of a call, each with its key. */
export type Charged = readonly (readonly [key: string, limit: Limit])[];

/** Maximum number of buckets. The least recently used ones are evicted. */
const MAX_USAGES = 10_000;

export class LocalLimits {
  readonly #share: number;
  readonly #otherwise: KnownLimit | undefined;
  readonly #now: () => number;
  /** Usage by key and limit, least recently used first. */
  readonly #usages = new Map<string, Usage>();
  readonly #buckets = new WeakMap<Limit, Bucket>();

  /** Creates the limits. `now` returns milliseconds, and must be monotonic. */
  constructor({ share, otherwise }: LocalOptions, now: () => number) {
    if (!(share > 0 && share <= 1))
      throw new RangeError(`share must be above 0, up to 1: ${share}`);
    this.#share = share;
    this.#otherwise = otherwise;
    this.#now = now;
  }

  /**
   * Charges all limits that this process knows, or none; a negative cost gives back. Returns
   * undefined if this process knows none of the limits.
   */
  take(
    charged: Charged,
    { cost = 1, upto = false, force = false }: Pick<PeekOptions, "cost" | "upto" | "force">,
    isPeek = false,
  ): Decision | undefined {
    const now = BigInt(Math.round(this.#now() * 1000));
    const entries = charged.flatMap(([key, limit]) => {
      const knownLimit = this.#knownLimit(limit);
      if (!knownLimit) return [];
      const bucket = this.#bucketOf(limit, knownLimit);
      const usageKey = `${key} ${knownLimit.words.join(" ")}`;
      const limitCost = limit.cost === undefined ? undefined : millionths(limit.cost, ceilDiv);
      const usage = this.#usageOf(usageKey, bucket);
      const remaining = bucket.remaining(usage, now);
      const { window } = knownLimit;
      return [{ usageKey, limit, bucket, usage, remaining, window, limitCost }];
    });
    if (entries.length === 0) return undefined;
    const fullCost = cost < 0 ? -millionths(-cost, floorDiv) : millionths(cost, ceilDiv);
    const callCost = upto ? unitsThatFit(entries, fullCost) : fullCost;
    const evaluations = entries.map((entry) => {
      const { bucket, usage, limitCost } = entry;
      const units = limitCost ?? callCost;
      const givesBack = limitCost === undefined && cost < 0;
      const fits = givesBack || bucket.verdict(usage, now, units).kind === "allowed";
      return { ...entry, units, givesBack, fits };
    });
    const isAllowed = evaluations.every(({ fits }) => fits);
    const isCharged = !isPeek && (isAllowed || force);
    const granted = upto ? { granted: isAllowed ? Number(callCost / UNIT) : 0 } : {};
    const each = evaluations.map((evaluation) => {
      const { usageKey, limit, bucket, usage, window, units, givesBack, fits } = evaluation;
      if (isCharged) {
        usage.moveBack(now);
        if (givesBack) bucket.giveBack(usage, now, -units);
        else bucket.charge(usage, now, units);
        this.#remember(usageKey, usage);
      }
      const neverFits = units > bucket.limit && !force;
      // The wait of a forced charge lasts until usage is within the limit again.
      const waitMs = () => msOf(bucket.debtAfter(usage, now, isCharged ? 0n : units));
      return new Decision({
        allowed: fits,
        limit: Number(bucket.limit / UNIT),
        remaining: Number(bucket.remaining(usage, now) / UNIT),
        waitMs: fits ? 0 : neverFits ? null : waitMs(),
        resetMs: msOf(bucket.reset(usage, now)),
        source: "local",
        window,
        ...granted,
        ...(limit.name === undefined ? {} : { name: limit.name }),
        ...(limit.label === undefined ? {} : { label: limit.label }),
      });
    });
    const costOf = (index: number) => Number(evaluations[index]!.units) / 1e6;
    return governingDecision(each, isAllowed, costOf).but({ allowed: isAllowed, each });
  }

  /** Returns the limit that this process applies; undefined if it cannot decide. */
  #knownLimit(limit: Limit): KnownLimit | undefined {
    if ("policies" in limit) return this.#otherwise;
    const { quota, window } = limit;
    const isKnown = quota !== undefined && window !== undefined && !("ttl" in limit);
    return isKnown ? { ...limit, quota, window } : undefined;
  }

  #bucketOf(limit: Limit, { quota, window }: KnownLimit): Bucket {
    const existing = this.#buckets.get(limit);
    if (existing) return existing;
    const total = millionths(quota, floorDiv);
    const share = this.#share === 1 ? total : BigInt(Math.round(Number(total) * this.#share));
    // The share of a small limit is at least one unit; a limit of 0 stays 0.
    const capacity = min(total, max(share, UNIT));
    // The window in microseconds is `digits` times a power of ten. If the power is a fraction, the
    // refill is scaled up instead.
    const [digits, exponent] = decimal(window);
    const power = exponent + 6;
    const periodScale = 10n ** BigInt(Math.max(power, 0));
    const refillScale = 10n ** BigInt(Math.max(-power, 0));
    const refill = (capacity || UNIT) * refillScale;
    const bucket = new Bucket(capacity, refill, digits * periodScale, false);
    this.#buckets.set(limit, bucket);
    return bucket;
  }

  #usageOf(usageKey: string, bucket: Bucket): Usage {
    const usage = this.#usages.get(usageKey);
    // Marks the usage as most recently used.
    if (usage) this.#remember(usageKey, usage);
    return usage ?? bucket.unused();
  }

  #remember(usageKey: string, usage: Usage): void {
    this.#usages.delete(usageKey);
    this.#usages.set(usageKey, usage);
    if (this.#usages.size <= MAX_USAGES) return;
    for (const oldest of this.#usages.keys()) {
      this.#usages.delete(oldest);
      break;
    }
  }
}

/**
 * Returns the whole units, up to `cost`, that all limits have left. Returns one unit if there is
 * less: then the decision is the denial of one unit.
 */
function unitsThatFit(
  entries: readonly { readonly remaining: bigint; readonly limitCost: bigint | undefined }[],
  cost: bigint,
): bigint {
  // Limits with a cost of their own do not lower the units, unless there are no others.
  const adjustable = entries.filter(({ limitCost }) => limitCost === undefined);
  const free = (adjustable.length > 0 ? adjustable : entries).map(({ remaining }) => remaining);
  return max(UNIT, (free.reduce(min, cost) / UNIT) * UNIT);
}

function msOf(micros: bigint): number {
  return Number(ceilDiv(micros, 1000n));
}

/** Splits the shortest decimal form of a number into its digits and a power of ten. */
function decimal(number: number): [digits: bigint, exponent: number] {
  const [, whole = "0", fraction = "", power = "0"] =
    /^(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(`${number}`) ?? [];
  return [BigInt(whole + fraction), Number(power) - fraction.length];
}

/** Converts units to millionths, in which the server counts. `divide` determines the rounding. */
function millionths(units: number, divide: (number: bigint, divisor: bigint) => bigint): bigint {
  const [digits, exponent] = decimal(units);
  const power = exponent + 6;
  if (power >= 0) return digits * 10n ** BigInt(power);
  return divide(digits, 10n ** BigInt(-power));
}

function floorDiv(number: bigint, divisor: bigint): bigint {
  return number / divisor;
}
