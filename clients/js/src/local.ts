/** Stands in while the server is away: this process's share of every limit, each a bucket in memory. */

import type { Keyed } from "./calls.js";
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
  /** Stands in for a policy, whose numbers only the server knows. Its share holds too. */
  readonly policy?: KnownLimit;
}

/** So many callers are remembered; the least recently seen are forgotten. */
const REMEMBERED = 10_000;

export class LocalLimits {
  readonly #share: number;
  readonly #policy: KnownLimit | undefined;
  readonly #now: () => number;
  // In the order in which they were last seen.
  readonly #buckets = new Map<string, Bucket>();

  /** The clock counts milliseconds, and must not jump when the time of day is set. */
  constructor({ share, policy }: LocalOptions, now: () => number) {
    if (!(share > 0 && share <= 1))
      throw new RangeError(`share must be above 0, up to 1: ${share}`);
    this.#share = share;
    this.#policy = policy;
    this.#now = now;
  }

  /** All limits are charged or none is, as on the server. Undefined if one of them is not known. */
  take(keyed: Keyed, cost: number, peeks: boolean): Decision | undefined {
    const now = this.#now();
    const looked = [];
    const limits = keyed.filter(([, { words }]) => words[0] !== "BAN");
    for (const [key, limit] of limits) {
      const { quota, window } = this.#known(limit) ?? {};
      if (quota === undefined || window === undefined) return undefined;
      const capacity = Math.max(1, Math.floor(quota * this.#share));
      const name = `${key} ${limit.words.join(" ")}`;
      const used = this.#used(name, capacity / (window * 1000), now);
      looked.push({ name, limit, used, capacity, window, cost: limit.cost ?? cost });
    }
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
    return { ...governs(each, allowed, (index) => limits[index]?.[1].cost ?? cost), allowed, each };
  }

  #known(limit: Limit): Limit | undefined {
    return "policies" in limit ? this.#policy : limit;
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
