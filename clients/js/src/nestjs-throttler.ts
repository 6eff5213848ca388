/**
 * Storage for @nestjs/throttler: `ThrottlerModule.forRoot({ throttlers: [{ ttl: 60_000, limit: 10
 * }], storage: new ThrottlerStorage(redis) })`.
 */

import type { ThrottlerStorage as Storage } from "@nestjs/throttler";

import type { Client } from "./clients.js";
import { Limiter } from "./limiter.js";
import { ban, fixed } from "./limits.js";
import type { LimiterOptions } from "./options.js";

type Hits = Awaited<ReturnType<Storage["increment"]>>;

/**
 * Storage for throttlers. A denied request is not charged. Its key is denied until the window is
 * over, or for `blockDuration` if that is longer than `ttl`. A shorter `blockDuration` has no
 * effect. In @nestjs/throttler's own storage, it would admit more than `limit` in a `ttl`.
 */
export class ThrottlerStorage implements Storage {
  readonly #limiter: Limiter;

  /**
   * Creates a storage. `prefix` is "throttler:" by default. The other options are the limiter's.
   */
  constructor(client: Client, { prefix = "throttler:", ...options }: LimiterOptions = {}) {
    this.#limiter = new Limiter(client, { ...options, prefix });
  }

  /** Charges a hit. `ttl` and `blockDuration` are milliseconds, and the results are seconds. */
  async increment(
    key: string,
    ttl: number,
    limit: number,
    blockDuration: number,
    throttlerName: string,
  ): Promise<Hits> {
    const window = `${ttl}ms` as const;
    const options = blockDuration === ttl ? [] : [{ ban: ban(1, window, `${blockDuration}ms`) }];
    const { allowed, remaining, resetMs, waitMs } = await this.#limiter.take(
      `${throttlerName}:${key}`,
      fixed(limit, window),
      ...options,
    );
    const wait = seconds(allowed ? 0 : (waitMs ?? ttl));
    return {
      totalHits: allowed ? limit - (remaining ?? limit) : limit + 1,
      timeToExpire: allowed ? seconds(resetMs ?? 0) : wait,
      isBlocked: !allowed,
      timeToBlockExpire: wait,
    };
  }
}

function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
