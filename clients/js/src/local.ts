/** Stands in while the server is away: this process's share of every limit, each a bucket in memory. */

import { decisionOf, governs, type Decision } from "./decision.js";
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

/** So many callers are remembered; the least recently seen are forgotten. */
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

  /** All limits are charged or none is, as on the server. Undefined if one of them is not known. */
  take(charged: Charged, cost: number, peeks: boolean): Decision | undefined {
    const now = this.#now();
    const looked = charged.flatMap(([key, limit]) => {
      const known = this.#known(limit);
      if (!known) return [];
      const { quota, window, words } = known;
      const capacity = Math.max(1, Math.floor(quota * this.#share));
      const name = `${key} ${words.join(" ")}`;
      const used = this.#used(name, capacity / (window * 1000), now);
      return [{ name, limit, used, capacity, window, cost: limit.cost ?? cost }];
    });
    if (looked.length === 0) return undefined;
    const allowed = looked.every(
      ({ used, capacity, cost }) => cost <= 0 || used + cost <= capacity,
    );
    const each = looked.map(({ name, limit, used, capacity, window, cost }) => {
      const after = allowed && !peeks ? Math.max(0, used + cost) : used;
      this.#remember(name, { used: after, at: now });
      const msPerUnit = (window * 1000) / capacity;
      const fits = cost <= 0 || used + cost <= capacity;
      const wait = cost > capacity ? null : Math.ceil((used + cost - capacity) * msPerUnit);
      return decisionOf(
        {
          allowed: fits,
          limit: capacity,
          remaining: Math.floor(capacity - after),
          waitMs: fits ? 0 : wait,
          resetMs: Math.ceil(after * msPerUnit),
        },
        { source: "local", window, ...(limit.name === undefined ? {} : { name: limit.name }) },
      );
    });
    return { ...governs(each, allowed, (index) => looked[index]?.cost ?? cost), allowed, each };
  }

  #known(limit: Limit): KnownLimit | undefined {
    if ("policies" in limit) return this.#otherwise;
    const { quota, window } = limit;
    const isKnown = quota !== undefined && window !== undefined && !("ttl" in limit);
    return isKnown ? { ...limit, quota, window } : undefined;
  }

  #used(name: string, unitsPerMs: number, now: number): number {
    const { used, at } = this.#buckets.get(name) ?? { used: 0, at: now };
    return Math.max(0, used - (now - at) * unitsPerMs);
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
