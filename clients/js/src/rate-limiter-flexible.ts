/**
 * The class of rate-limiter-flexible:
 * `const limiter = new RateLimiter({ storeClient: redis, points: 10, duration: 1 })`, then
 * `limiter.consume(key)`.
 */

import type { Client } from "./clients.js";
import type { Decision } from "./decision.js";
import { UnavailableError } from "./errors.js";
import { Limiter } from "./limiter.js";
import { ban, fixed, type KnownLimit } from "./limits.js";
import type { LimiterOptions } from "./options.js";

export interface RateLimiterOptions extends Omit<LimiterOptions, "prefix"> {
  readonly storeClient: Client;
  /** How many points there are ... */
  readonly points?: number;
  /** ... in so many seconds. */
  readonly duration?: number;
  /** Seconds for which a key is blocked that consumed too much. 0 by default: until its window ends. */
  readonly blockDuration?: number;
  /** "rlflx" by default. */
  readonly keyPrefix?: string;
}

/** What rate-limiter-flexible's has: so this needs no other package. */
export class RateLimiterRes {
  /** How many points are left. */
  readonly remainingPoints: number;
  /** Milliseconds until there are points again, or all of them. */
  readonly msBeforeNext: number;
  /** How many points were consumed in this window. */
  readonly consumedPoints: number;
  readonly isFirstInDuration: boolean;

  constructor(remaining: number, msBeforeNext: number, consumed: number, isFirst: boolean) {
    this.remainingPoints = remaining;
    this.msBeforeNext = msBeforeNext;
    this.consumedPoints = consumed;
    this.isFirstInDuration = isFirst;
  }
}

/** Options of rate-limiter-flexible that would be without effect here. */
const UNKNOWN = [
  ...["inMemoryBlockOnConsumed", "inMemoryBlockDuration", "insuranceLimiter", "execEvenly"],
  ...["execEvenlyMinDelayMs", "customIncrTtlLuaScript"],
];

/**
 * What is denied is not consumed. An outage rejects with an UnavailableError, unless `onOutage` says
 * otherwise. Of `penalty` and `reward` the window stays as it is.
 */
export class RateLimiter {
  readonly points: number;
  readonly duration: number;
  readonly keyPrefix: string;
  readonly #limiter: Limiter;
  readonly #limit: KnownLimit;
  readonly #block: number;

  constructor({
    storeClient,
    points = 4,
    duration = 1,
    blockDuration = 0,
    keyPrefix = "rlflx",
    ...options
  }: RateLimiterOptions) {
    const unknown = UNKNOWN.filter((name) => name in options);
    if (unknown.length > 0) throw new TypeError(`not an option here: ${unknown.join(", ")}`);
    this.points = points;
    this.duration = duration;
    this.keyPrefix = keyPrefix;
    this.#block = blockDuration;
    // Without a duration points never come back: as long as the server takes.
    this.#limit = fixed(points, duration || "3650d");
    const prefix = keyPrefix && `${keyPrefix}:`;
    this.#limiter = new Limiter(storeClient, { onOutage: "raise", ...options, prefix });
  }

  /** Resolves if there are so many points, and rejects with a RateLimiterRes if not. */
  async consume(key: string | number, points = 1): Promise<RateLimiterRes> {
    const options = this.#block
      ? { ban: ban(1, `${this.duration || 1}s`, `${this.#block}s`) }
      : undefined;
    const name = `${key}`;
    const decision =
      points === 1 && !options
        ? await this.#limiter.take(name, this.#limit)
        : await this.#limiter.take(name, this.#limit, { cost: points, ...options });
    if (decision.allowed) return this.#told(decision, points);
    if (decision.error !== undefined) throw decision.error;
    // What never fits is no strike to the server.
    if (decision.waitMs === null && this.#block) await this.#limiter.ban(name, this.#block);
    const waitMs = decision.waitMs ?? (this.#block || this.duration) * 1000;
    throw new RateLimiterRes(0, waitMs, this.points + points, false);
  }

  /** Consumes points even if there are none. */
  async penalty(key: string | number, points = 1): Promise<RateLimiterRes> {
    const options = { cost: points, force: true };
    return this.#told(await this.#limiter.take(`${key}`, this.#limit, options), points);
  }

  /** Gives points back. */
  async reward(key: string | number, points = 1): Promise<RateLimiterRes> {
    return this.#told(await this.#limiter.giveBack(`${key}`, this.#limit, points), points);
  }

  /** null: nothing is known of the key. */
  async get(key: string | number): Promise<RateLimiterRes | null> {
    const decision = await this.#limiter.peek(`${key}`, this.#limit, { cost: 0 });
    if (decision.allowed && decision.resetMs === 0) return null;
    const { allowed, waitMs } = decision;
    return allowed
      ? this.#told(decision, 0)
      : new RateLimiterRes(0, waitMs ?? this.duration * 1000, this.points + 1, false);
  }

  /** Forgets all of the key. Whether there was anything. */
  async delete(key: string | number): Promise<boolean> {
    return this.#limiter.reset(`${key}`);
  }

  /** Blocks the key for so many seconds; 0: for as long as the server takes. */
  async block(key: string | number, seconds: number): Promise<RateLimiterRes> {
    const blockedMs = await this.#limiter.ban(`${key}`, seconds || "3650d");
    return new RateLimiterRes(0, blockedMs, this.points + 1, false);
  }

  #told(decision: Decision, points: number): RateLimiterRes {
    if (decision.degraded && decision.error instanceof UnavailableError && !decision.allowed) {
      throw decision.error;
    }
    const remaining = decision.remaining ?? this.points;
    const consumed = this.points - remaining;
    const msBeforeNext = decision.resetMs ?? 0;
    return new RateLimiterRes(remaining, msBeforeNext, consumed, consumed === points);
  }
}
