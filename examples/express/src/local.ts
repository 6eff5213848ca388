/**
 * Stands in while Redis is away: this process's share of every limit, each as a bucket in memory.
 * As in Redis, all limits of a request are charged or none is.
 */

import { LRUCache } from "lru-cache";

import { longestWait, type Decision, type Limit, type Policy, type Verdict } from "./limits.js";

interface Bucket {
  used: number;
  /** Up to when what has recovered is taken off. */
  at: number;
}

export class LocalLimits {
  readonly #share: number;
  /** The least recently seen are forgotten, so that a flood of callers cannot fill the memory. */
  readonly #buckets = new LRUCache<string, Bucket>({ max: 10_000 });

  /** A share of 0.25 is right for four processes. */
  constructor(share: number) {
    this.#share = share;
  }

  take(limits: readonly { policy: Policy; key: string }[], cost: number): Verdict {
    const now = performance.now();
    const looked = limits.map(({ policy, key }) => {
      const bucket = this.#recovered(key, policy.limit, now);
      return { policy, key, bucket, capacity: this.#capacity(policy.limit) };
    });
    const allowed = looked.every(({ bucket, capacity }) => bucket.used + cost <= capacity);
    const decisions = new Map<Policy, Decision>();
    for (const { policy, key, bucket, capacity } of looked) {
      const fits = bucket.used + cost <= capacity;
      if (allowed) bucket.used += cost;
      this.#buckets.set(key, bucket);
      const msPerUnit = (policy.limit.seconds * 1000) / capacity;
      const excess = bucket.used + cost - capacity;
      decisions.set(policy, {
        allowed: fits,
        limit: capacity,
        remaining: Math.max(0, Math.floor(capacity - bucket.used)),
        waitMs: fits ? 0 : cost > capacity ? -1 : Math.ceil(excess * msPerUnit),
        resetMs: Math.ceil(bucket.used * msPerUnit),
      });
    }
    return { allowed, waitMs: longestWait(decisions.values()), decisions, isLocal: true };
  }

  #capacity(limit: Limit): number {
    return Math.max(1, Math.floor(limit.quota * this.#share));
  }

  #recovered(key: string, limit: Limit, now: number): Bucket {
    const { used, at } = this.#buckets.get(key) ?? { used: 0, at: now };
    const recovered = ((now - at) / 1000) * (this.#capacity(limit) / limit.seconds);
    return { used: Math.max(0, used - recovered), at: now };
  }
}
