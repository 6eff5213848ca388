/**
 * Class with the interface of rate-limiter-flexible: `const limiter = new RateLimiter({
 * storeClient: redis, points: 10, duration: 1 })`, then `limiter.consume(key)`.
 */

import type { Client } from "./clients.js";
import type { Decision } from "./decision.js";
import { UnavailableError } from "./errors.js";
import { Limiter } from "./limiter.js";
import { MOST, ban, fixed, type Duration, type KnownLimit } from "./limits.js";
import type { LimiterOptions } from "./options.js";

export interface RateLimiterOptions extends Omit<LimiterOptions, "prefix"> {
  readonly storeClient: Client;
  /** Points per `duration`. */
  readonly points?: number;
  /** Length of the window in seconds. */
  readonly duration?: number;
  /**
   * Seconds for which a key that consumed too much is blocked. 0 by default: until its window ends.
   */
  readonly blockDuration?: number;
  /** Consumed points from which a key is blocked in this process, without calls: `points` or more. */
  readonly inMemoryBlockOnConsumed?: number;
  /** Seconds of blocking in this process. 0 by default: until its window ends. */
  readonly inMemoryBlockDuration?: number;
  /** Prefix of keys, "rlflx" by default. */
  readonly keyPrefix?: string;
}

export interface RateLimiterCallOptions {
  /** Seconds of the window of this call, in place of `duration`. */
  readonly customDuration?: number;
}

/**
 * Result with the fields of rate-limiter-flexible's class, without a dependency on that package.
 */
export class RateLimiterRes {
  /** Number of points left. */
  readonly remainingPoints: number;
  /** Milliseconds until there are points again, or all of them. */
  readonly msBeforeNext: number;
  /** Number of points consumed in this window. */
  readonly consumedPoints: number;
  readonly isFirstInDuration: boolean;

  constructor(remaining: number, msBeforeNext: number, consumed: number, isFirst: boolean) {
    this.remainingPoints = remaining;
    this.msBeforeNext = msBeforeNext;
    this.consumedPoints = consumed;
    this.isFirstInDuration = isFirst;
  }
}

/** Options of rate-limiter-flexible that have no effect here. */
const UNKNOWN = [
  ...["insuranceLimiter", "execEvenly", "execEvenlyMinDelayMs", "customIncrTtlLuaScript"],
];

/** Longest window, for limiters without a duration, whose points never recover. */
const FOREVER: Duration = "3650d";

/** Milliseconds above which a time is reported as -1: for ever. */
const FOREVER_MS = 3000 * 86_400_000;

/** Maximum number of keys that are blocked in this process. */
const BLOCKED = 10_000;

/**
 * Limiter with the interface of rate-limiter-flexible. Denied points are not consumed. An outage
 * rejects with an UnavailableError, unless `onOutage` says otherwise. `penalty` and `reward` do not
 * change the window.
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
  /** Keys that are blocked in this process, with the end of the block. */
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

  /** Returns the key on the server, without the prefix that the client adds. */
  getKey(key: string | number): string {
    return this.keyPrefix ? `${this.keyPrefix}:${key}` : `${key}`;
  }

  /** Consumes points. Rejects with a RateLimiterRes if there are not enough. */
  async consume(
    key: string | number,
    points: number | string = 1,
    options: RateLimiterCallOptions = {},
  ): Promise<RateLimiterRes> {
    const name = `${key}`;
    const cost = wholePoints(points);
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
      const result = this.#resultOf(decision, cost);
      this.#blockFrom(name, result);
      return result;
    }
    if (decision.error !== undefined) throw decision.error;
    // A cost above the limit is not a strike for the server.
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
    const cost = wholePoints(points);
    const decision = await this.#limiter.take(`${key}`, this.#limitFor(options, MOST), { cost });
    return this.#resultOf(decision, cost, MOST);
  }

  /** Gives points back. */
  async reward(
    key: string | number,
    points: number | string = 1,
    options: RateLimiterCallOptions = {},
  ): Promise<RateLimiterRes> {
    const cost = wholePoints(points);
    const decision = await this.#limiter.giveBack(`${key}`, this.#limitFor(options, MOST), cost);
    return this.#resultOf(decision, cost, MOST);
  }

  /**
   * Returns the state of a key, or null if there is none. A key whose next point would be denied
   * has consumed at least `points` + 1, as denials consume nothing here: so `consumedPoints >
   * points` means that it is denied.
   */
  async get(key: string | number): Promise<RateLimiterRes | null> {
    const all = this.#limitFor({}, MOST);
    const decision = await this.#limiter.peek(`${key}`, all, { cost: 0 });
    if (decision.allowed && decision.resetMs === 0) return null;
    const result = this.#resultOf(decision, 0, MOST);
    if (result.remainingPoints > 0) return result;
    return new RateLimiterRes(
      0,
      result.msBeforeNext,
      Math.max(result.consumedPoints, this.points + 1),
      false,
    );
  }

  /**
   * Sets the consumed points of a key for `secDuration` seconds; 0: for as long as the server
   * accepts. A window that is not `duration` applies if the key is denied by it, and otherwise ends
   * after `duration`.
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
    // Later calls would not keep a window of another length.
    if (cost >= this.points && secDuration !== this.duration) {
      await this.#limiter.ban(name, secDuration || FOREVER);
    }
    return new RateLimiterRes(0, secDuration > 0 ? secDuration * 1000 : -1, cost, false);
  }

  /** Deletes the state of the key. Returns `true` if there was any. */
  async delete(key: string | number): Promise<boolean> {
    this.#blocked.delete(`${key}`);
    return this.#limiter.reset(`${key}`);
  }

  /** Forgets which keys are blocked in this process. */
  deleteInMemoryBlockedAll(): void {
    this.#blocked.clear();
  }

  /** Blocks the key for `seconds`; 0: for as long as the server accepts. */
  async block(key: string | number, seconds: number): Promise<RateLimiterRes> {
    const blockedMs = await this.#limiter.ban(`${key}`, seconds || FOREVER);
    return new RateLimiterRes(0, timeOf(blockedMs), this.points + 1, false);
  }

  #limitFor({ customDuration }: RateLimiterCallOptions, points = this.points): KnownLimit {
    return fixed(points, (customDuration ?? this.duration) || FOREVER);
  }

  /** Blocks a key in this process after it has consumed enough. */
  #blockFrom(name: string, result: RateLimiterRes): RateLimiterRes {
    if (result.consumedPoints < this.#blocksFrom) return result;
    const isDenied = result.consumedPoints > this.points;
    const blockedMs = (isDenied && this.#blockedFor) || result.msBeforeNext;
    // `inMemoryBlockDuration` is only for denied keys.
    if (!isDenied && this.#blockedFor) return result;
    this.#blocked.delete(name);
    this.#blocked.set(name, blockedMs < 0 ? Infinity : this.#now() + blockedMs);
    if (this.#blocked.size > BLOCKED) this.#blocked.delete(this.#blocked.keys().next().value!);
    const { remainingPoints, consumedPoints, isFirstInDuration } = result;
    return new RateLimiterRes(remainingPoints, blockedMs, consumedPoints, isFirstInDuration);
  }

  /** Converts a decision. `points` are those of the limit of the call, which may be unbounded. */
  #resultOf(decision: Decision, cost: number, points = this.points): RateLimiterRes {
    if (decision.degraded && decision.error instanceof UnavailableError && !decision.allowed) {
      throw decision.error;
    }
    // A blocked key does not report its consumption.
    if (!decision.allowed) {
      return new RateLimiterRes(0, timeOf(decision.waitMs), this.points + 1, false);
    }
    const consumed = decision.remaining === null ? 0 : points - decision.remaining;
    const remaining = Math.max(0, this.points - consumed);
    const isFirst = consumed === cost;
    return new RateLimiterRes(remaining, timeOf(decision.resetMs), consumed, isFirst);
  }
}

/** Converts a time to rate-limiter-flexible's form: -1 for ever. */
function timeOf(ms: number | null): number {
  return ms !== null && ms > FOREVER_MS ? -1 : (ms ?? 0);
}

/** Parses points, which may be text. */
function wholePoints(points: number | string): number {
  if (typeof points === "number") return points;
  if (/^[1-9]\d*$/.test(points)) return Number(points);
  throw new TypeError(
    "Consuming string different than integer values is not supported by this package",
  );
}
