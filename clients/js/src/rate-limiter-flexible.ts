/**
 * The class of rate-limiter-flexible:
 * `const limiter = new RateLimiter({ storeClient: redis, points: 10, duration: 1 })`, then
 * `limiter.consume(key)`.
 */

import type { Client } from "./clients.js";
import type { Decision } from "./decision.js";
import { UnavailableError } from "./errors.js";
import { Limiter } from "./limiter.js";
import { MOST, ban, fixed, type Duration, type KnownLimit } from "./limits.js";
import type { LimiterOptions } from "./options.js";

export interface RateLimiterOptions extends Omit<LimiterOptions, "prefix"> {
  readonly storeClient: Client;
  /** How many points there are ... */
  readonly points?: number;
  /** ... in so many seconds. */
  readonly duration?: number;
  /** Seconds for which a key is blocked that consumed too much. 0 by default: until its window ends. */
  readonly blockDuration?: number;
  /** Consumed points from which a key is blocked in this process, without calls: `points` or more. */
  readonly inMemoryBlockOnConsumed?: number;
  /** Seconds for which it is. 0 by default: until its window ends. */
  readonly inMemoryBlockDuration?: number;
  /** "rlflx" by default. */
  readonly keyPrefix?: string;
}

export interface RateLimiterCallOptions {
  /** Seconds of the window of this call, in place of `duration`. */
  readonly customDuration?: number;
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
  ...["insuranceLimiter", "execEvenly", "execEvenlyMinDelayMs", "customIncrTtlLuaScript"],
];

/** Longest window: without a duration points never come back. */
const FOREVER: Duration = "3650d";

/** Times above this are told as -1: for ever. */
const FOREVER_MS = 3000 * 86_400_000;

/** Largest number of keys that are blocked in this process. */
const BLOCKED = 10_000;

/**
 * What is denied is not consumed. An outage rejects with an UnavailableError, unless `onOutage` says
 * otherwise. Of `penalty` and `reward` the window stays as it is.
 */
export class RateLimiter {
  readonly points: number;
  readonly duration: number;
  readonly keyPrefix: string;
  readonly #limiter: Limiter;
  readonly #block: number;
  readonly #blocksFrom: number;
  readonly #blockedFor: number;
  readonly #now: () => number;
  /** Keys that are blocked in this process, and until when. */
  readonly #blocked = new Map<string, number>();

  constructor({
    storeClient,
    points = 4,
    duration = 1,
    blockDuration = 0,
    inMemoryBlockOnConsumed = 0,
    inMemoryBlockDuration = 0,
    keyPrefix = "rlflx",
    ...options
  }: RateLimiterOptions) {
    const unknown = UNKNOWN.filter((name) => name in options);
    if (unknown.length > 0) throw new TypeError(`not an option here: ${unknown.join(", ")}`);
    if (inMemoryBlockOnConsumed > 0 && inMemoryBlockOnConsumed < points) {
      throw new RangeError(
        'inMemoryBlockOnConsumed option must be greater or equal "points" option',
      );
    }
    if (inMemoryBlockDuration > 0 && !(inMemoryBlockOnConsumed > 0)) {
      throw new RangeError("inMemoryBlockOnConsumed option must be set up");
    }
    this.#blocksFrom = inMemoryBlockOnConsumed || Infinity;
    this.#blockedFor = inMemoryBlockDuration * 1000;
    this.#now = options.now ?? (() => performance.now());
    this.points = points;
    this.duration = duration;
    this.keyPrefix = keyPrefix;
    this.#block = blockDuration;
    const prefix = keyPrefix && `${keyPrefix}:`;
    this.#limiter = new Limiter(storeClient, { onOutage: "raise", ...options, prefix });
  }

  /** Returns the key on the server, but for the prefix that the client adds. */
  getKey(key: string | number): string {
    return this.keyPrefix ? `${this.keyPrefix}:${key}` : `${key}`;
  }

  /** Resolves if there are so many points, and rejects with a RateLimiterRes if not. */
  async consume(
    key: string | number,
    points: number | string = 1,
    options: RateLimiterCallOptions = {},
  ): Promise<RateLimiterRes> {
    const name = `${key}`;
    const cost = whole(points);
    const blockedMs = (this.#blocked.get(name) ?? -Infinity) - this.#now();
    if (blockedMs > 0) throw new RateLimiterRes(0, Math.ceil(blockedMs), this.points + 1, false);
    const limit = this.#limitFor(options);
    const bans = this.#block
      ? { ban: ban(1, `${this.duration || 1}s`, `${this.#block}s`) }
      : undefined;
    const decision =
      cost === 1 && !bans
        ? await this.#limiter.take(name, limit)
        : await this.#limiter.take(name, limit, { cost, ...bans });
    if (decision.allowed) {
      const told = this.#told(decision, cost);
      this.#blockFrom(name, told);
      return told;
    }
    if (decision.error !== undefined) throw decision.error;
    // What never fits is no strike to the server.
    if (decision.waitMs === null && this.#block) await this.#limiter.ban(name, this.#block);
    const waitMs = decision.waitMs ?? (this.#block || this.duration) * 1000;
    throw this.#blockFrom(name, new RateLimiterRes(0, waitMs, this.points + cost, false));
  }

  /** Consumes points even if there are none. */
  async penalty(
    key: string | number,
    points: number | string = 1,
    options: RateLimiterCallOptions = {},
  ): Promise<RateLimiterRes> {
    const cost = whole(points);
    const decision = await this.#limiter.take(`${key}`, this.#limitFor(options, MOST), { cost });
    return this.#told(decision, cost, MOST);
  }

  /** Gives points back. */
  async reward(
    key: string | number,
    points: number | string = 1,
    options: RateLimiterCallOptions = {},
  ): Promise<RateLimiterRes> {
    const cost = whole(points);
    const decision = await this.#limiter.giveBack(`${key}`, this.#limitFor(options, MOST), cost);
    return this.#told(decision, cost, MOST);
  }

  /**
   * Returns what is known of a key; null if nothing is. A key whose next point would be denied has
   * consumed `points` + 1 at least, as denials consume nothing here: so `consumedPoints > points` tells
   * that it is denied.
   */
  async get(key: string | number): Promise<RateLimiterRes | null> {
    const all = this.#limitFor({}, MOST);
    const decision = await this.#limiter.peek(`${key}`, all, { cost: 0 });
    if (decision.allowed && decision.resetMs === 0) return null;
    const told = this.#told(decision, 0, MOST);
    if (told.remainingPoints > 0) return told;
    return new RateLimiterRes(
      0,
      told.msBeforeNext,
      Math.max(told.consumedPoints, this.points + 1),
      false,
    );
  }

  /**
   * Sets the consumed points of a key, for so many seconds; 0: for as long as the server takes. A
   * window that is not `duration` lasts if the key is denied by it, and until `duration` is over if not.
   */
  async set(
    key: string | number,
    points: number | string,
    secDuration = this.duration,
  ): Promise<RateLimiterRes> {
    const name = `${key}`;
    const cost = Number(points);
    await this.delete(name);
    const limit = this.#limitFor({ customDuration: secDuration }, MOST);
    if (cost > 0) await this.#limiter.take(name, limit, { cost });
    // A window of another length is not kept by the calls that follow.
    if (cost >= this.points && secDuration !== this.duration) {
      await this.#limiter.ban(name, secDuration || FOREVER);
    }
    return new RateLimiterRes(0, secDuration > 0 ? secDuration * 1000 : -1, cost, false);
  }

  /** Forgets all of the key. Returns whether there was anything. */
  async delete(key: string | number): Promise<boolean> {
    this.#blocked.delete(`${key}`);
    return this.#limiter.reset(`${key}`);
  }

  /** Forgets which keys are blocked in this process. */
  deleteInMemoryBlockedAll(): void {
    this.#blocked.clear();
  }

  /** Blocks the key for so many seconds; 0: for as long as the server takes. */
  async block(key: string | number, seconds: number): Promise<RateLimiterRes> {
    const blockedMs = await this.#limiter.ban(`${key}`, seconds || FOREVER);
    return new RateLimiterRes(0, timeOf(blockedMs), this.points + 1, false);
  }

  #limitFor({ customDuration }: RateLimiterCallOptions, points = this.points): KnownLimit {
    return fixed(points, (customDuration ?? this.duration) || FOREVER);
  }

  /** Blocks a key in this process once it has consumed enough. */
  #blockFrom(name: string, told: RateLimiterRes): RateLimiterRes {
    if (told.consumedPoints < this.#blocksFrom) return told;
    const isDenied = told.consumedPoints > this.points;
    const blockedMs = (isDenied && this.#blockedFor) || told.msBeforeNext;
    // A duration of its own is that of a denial.
    if (!isDenied && this.#blockedFor) return told;
    this.#blocked.delete(name);
    this.#blocked.set(name, blockedMs < 0 ? Infinity : this.#now() + blockedMs);
    if (this.#blocked.size > BLOCKED) this.#blocked.delete(this.#blocked.keys().next().value!);
    const { remainingPoints, consumedPoints, isFirstInDuration } = told;
    return new RateLimiterRes(remainingPoints, blockedMs, consumedPoints, isFirstInDuration);
  }

  /** `points`: those of the limit that was asked, which may have room for any number. */
  #told(decision: Decision, cost: number, points = this.points): RateLimiterRes {
    if (decision.degraded && decision.error instanceof UnavailableError && !decision.allowed) {
      throw decision.error;
    }
    // A key that is blocked does not tell what it has consumed.
    if (!decision.allowed) {
      return new RateLimiterRes(0, timeOf(decision.waitMs), this.points + 1, false);
    }
    const consumed = decision.remaining === null ? 0 : points - decision.remaining;
    const remaining = Math.max(0, this.points - consumed);
    const isFirst = consumed === cost;
    return new RateLimiterRes(remaining, timeOf(decision.resetMs), consumed, isFirst);
  }
}

/** Returns a time as the peer has it: -1 for ever. */
function timeOf(ms: number | null): number {
  return ms !== null && ms > FOREVER_MS ? -1 : (ms ?? 0);
}

/** Reads points, which may be text. */
function whole(points: number | string): number {
  if (typeof points === "number") return points;
  if (/^[1-9]\d*$/.test(points)) return Number(points);
  throw new TypeError(
    "Consuming string different than integer values is not supported by this package",
  );
}
