/** Stands in while the server is away: this process's share of every limit, each a bucket in memory. */

import type { PeekOptions } from "./calls.js";
import { Decision, governs } from "./decision.js";
import type { KnownLimit, Limit } from "./limits.js";

interface Bucket {
  used: number;
  /** Up to when what has recovered is taken off. */
  at: number;
}

export interface LocalOptions {
  /** This process's part of each limit: 0.25 for four processes. */
  readonly share: number;
  /**
   * Stands in for a policy, whose numbers only the server knows; its share holds too. Without it
   * calls by a policy pass. So do leases, which nobody here could release.
   */
  readonly otherwise?: KnownLimit;
}

/** The limits of a call, each with its key. */
export type Charged = readonly (readonly [key: string, limit: Limit])[];

/** How many callers are remembered; the least recently seen are forgotten. */
const REMEMBERED = 10_000;

export class LocalLimits {
  readonly #share: number;
  readonly #otherwise: KnownLimit | undefined;
  readonly #now: () => number;
  // In the order in which they were last seen.
  readonly #buckets = new Map<string, Bucket>();

  /** The clock counts milliseconds, and must not jump when the time of day is set. */
  constructor({ share, otherwise }: LocalOptions, now: () => number) {
    if (!(share > 0 && share <= 1))
      throw new RangeError(`share must be above 0, up to 1: ${share}`);
    this.#share = share;
    this.#otherwise = otherwise;
    this.#now = now;
  }

  /**
   * All limits are charged or none is, as on the server; a negative cost gives back. Undefined if
   * none of them is known.
   */
  take(
    charged: Charged,
    { cost = 1, upto = false, force = false }: Pick<PeekOptions, "cost" | "upto" | "force">,
    peeks = false,
  ): Decision | undefined {
    const now = this.#now();
    const found = charged.flatMap(([key, limit]) => {
      const known = this.#known(limit);
      if (!known) return [];
      const quota = roundedDown(known.quota);
      // A share of a small limit is one unit still; a limit of 0 stays 0.
      const capacity = Math.min(quota, Math.max(roundedNear(quota * this.#share), 1));
      const perMs = (capacity || 1) / (known.window * 1000);
      const name = `${key} ${known.words.join(" ")}`;
      const used = this.#used(name, perMs, now);
      const own = limit.cost === undefined ? undefined : roundedUp(limit.cost);
      return [{ name, limit, used, capacity, perMs, window: known.window, own }];
    });
    if (found.length === 0) return undefined;
    const asked = cost < 0 ? -roundedDown(-cost) : roundedUp(cost);
    const units = upto ? unitsThatFit(found, asked) : asked;
    const looked = found.map((one) => ({
      ...one,
      cost: one.own ?? units,
      givesBack: one.own === undefined && cost < 0,
    }));
    const isAllowed = looked.every(fits);
    const charges = !peeks && (isAllowed || force);
    const granted = upto ? { granted: isAllowed ? units : 0 } : {};
    const each = looked.map((one) => {
      const { name, limit, used, capacity, perMs, window, cost } = one;
      const after = charges ? Math.max(0, used + cost) : used;
      if (charges) this.#remember(name, { used: after, at: now });
      // Of what was forced, until usage is within the limit again.
      const over = (charges ? after : used + cost) - capacity;
      const isNever = cost > capacity && !force;
      return new Decision({
        allowed: fits(one),
        limit: Math.floor(capacity),
        remaining: Math.max(0, Math.floor(capacity - after + slackOf(capacity))),
        waitMs: fits(one) ? 0 : isNever ? null : msOf(over - slackOf(capacity), perMs),
        resetMs: msOf(after - slackOf(after), perMs),
        source: "local",
        window,
        ...granted,
        ...(limit.name === undefined ? {} : { name: limit.name }),
        ...(limit.label === undefined ? {} : { label: limit.label }),
      });
    });
    const governing = governs(each, isAllowed, (index) => looked[index]?.cost ?? cost);
    return governing.but({ allowed: isAllowed, each });
  }

  #known(limit: Limit): KnownLimit | undefined {
    if ("policies" in limit) return this.#otherwise;
    const { quota, window } = limit;
    const isKnown = quota !== undefined && window !== undefined && !("ttl" in limit);
    return isKnown ? { ...limit, quota, window } : undefined;
  }

  #used(name: string, unitsPerMs: number, now: number): number {
    const bucket = this.#buckets.get(name);
    if (!bucket) return 0;
    // It was seen again.
    this.#remember(name, bucket);
    const { used, at } = bucket;
    return Math.max(0, used - Math.max(0, now - at) * unitsPerMs);
  }

  #remember(name: string, bucket: Bucket): void {
    this.#buckets.delete(name);
    this.#buckets.set(name, bucket);
    if (this.#buckets.size <= REMEMBERED) return;
    for (const oldest of this.#buckets.keys()) {
      this.#buckets.delete(oldest);
      break;
    }
  }
}

interface Looked {
  readonly used: number;
  readonly capacity: number;
  readonly cost: number;
  readonly givesBack: boolean;
}

function fits({ used, capacity, cost, givesBack }: Looked): boolean {
  return givesBack || used + cost <= capacity + slackOf(Math.max(capacity, used));
}

/** At least 1: if there is none, that is what would be granted first. */
function unitsThatFit(
  found: readonly (Omit<Looked, "cost" | "givesBack"> & { own: number | undefined })[],
  most: number,
): number {
  const own = found.filter(({ own }) => own === undefined);
  const free = (own.length > 0 ? own : found).map(
    ({ used, capacity }) => capacity - used + slackOf(capacity),
  );
  return Math.max(1, Math.floor(Math.min(most, ...free)));
}

/** The server counts in millionths. Sums of them as floats are off by less than this. */
function slackOf(units: number): number {
  return 1e-9 + 1e-15 * units;
}

/** No longer time is told. */
const LONGEST_MS = 365_000 * 86_400_000;

function msOf(units: number, perMs: number): number {
  return Math.min(LONGEST_MS, Math.max(0, Math.ceil(units / perMs)));
}

function roundedNear(units: number): number {
  return Number(units.toFixed(6));
}

function roundedUp(units: number): number {
  const near = roundedNear(units);
  return near >= units ? near : roundedNear(near + 1e-6);
}

function roundedDown(units: number): number {
  const near = roundedNear(units);
  return near <= units ? near : roundedNear(near - 1e-6);
}
