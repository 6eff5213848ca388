/**
 * Class with the interface of rate-limiter-flexible: `const limiter = new RateLimiter({
 * storeClient: redis, points: 10, duration: 1 })`, then `limiter.consume(key)`.
 */

import type { Client } from "./clients.js";
import type { Decision } from "./decision.js";
import { UnavailableError } from "./errors.js";
import { Limiter } from "./limiter.js";
import { MAX_AMOUNT, ban, fixed, type Duration, type KnownLimit } from "./limits.js";
import type { LimiterOptions } from "./options.js";

export interface RateLimiterOptions extends Omit<LimiterOptions, "prefix"> {
  readonly storeClient: Client;
  /** Points per `duration`. */
  readonly points?: number;
  /** Length of the window in seconds. */
  readonly duration?: number;
  /**
   * Seconds for which a denied key is blocked. 0 by default: a key is denied until its window ends.
   */
  readonly blockDuration?: number;
  /**
   * Consumed points from which a key is blocked in this process, without calls: `points` or more.
   */
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
  /** Milliseconds until a denied call may pass; for an allowed call, until all points are back. */
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
const UNSUPPORTED = [
  ...["insuranceLimiter", "execEvenly", "execEvenlyMinDelayMs", "customIncrTtlLuaScript"],
];

/** Longest duration that the server accepts, for windows and blocks without end. */
const FOREVER: Duration = "3650d";

/** Milliseconds above which a time is reported as -1: without end. */
const REPORTED_FOREVER_MS = 3000 * 86_400_000;

/** Maximum number of keys that are blocked in this process. */
const MAX_BLOCKED = 10_000;

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
  /** Seconds of `blockDuration`. */
  readonly #blockSeconds: number;
  /** Consumed points from which a key is blocked in this process. */
  readonly #localBlockPoints: number;
  /** Milliseconds of blocking in this process; 0: until the window ends. */
  readonly #localBlockMs: number;
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
    const unsupported = UNSUPPORTED.filter((name) => name in options);
    if (unsupported.length > 0) {
      throw new TypeError(`not an option here: ${unsupported.join(", ")}`);
    }
    if (inMemoryBlockOnConsumed > 0 && inMemoryBlockOnConsumed < points) {
      throw new RangeError(
        'inMemoryBlockOnConsumed option must be greater or equal "points" option',
      );
    }
    if (inMemoryBlockDuration > 0 && !(inMemoryBlockOnConsumed > 0)) {
      throw new RangeError("inMemoryBlockOnConsumed option must be set up");
    }
    this.#localBlockPoints = inMemoryBlockOnConsumed || Infinity;
    this.#localBlockMs = inMemoryBlockDuration * 1000;
    this.#now = options.now ?? (() => performance.now());
    this.points = points;
    this.duration = duration;
    this.keyPrefix = keyPrefix;
    this.#blockSeconds = blockDuration;
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
    const banOptions = this.#blockSeconds
      ? { ban: ban(1, `${this.duration || 1}s`, `${this.#blockSeconds}s`) }
      : undefined;
    const decision =
      cost === 1 && !banOptions
        ? await this.#limiter.take(name, limit)
        : await this.#limiter.take(name, limit, { cost, ...banOptions });
    if (decision.allowed) {
      const result = this.#resultOf(decision, cost);
      this.#blockLocally(name, result);
      return result;
    }
    if (decision.error !== undefined) throw decision.error;
    // The server counts no strike for a cost above the limit.
    if (decision.waitMs === null && this.#blockSeconds)
      await this.#limiter.ban(name, this.#blockSeconds);
    const waitMs = decision.waitMs ?? (this.#blockSeconds || this.duration) * 1000;
    throw this.#blockLocally(name, new RateLimiterRes(0, waitMs, this.points + cost, false));
  }

  /** Consumes points even if there are none. */
  async penalty(
    key: string | number,
    points: number | string = 1,
    options: RateLimiterCallOptions = {},
  ): Promise<RateLimiterRes> {
    const cost = wholePoints(points);
    const decision = await this.#limiter.take(`${key}`, this.#limitFor(options, MAX_AMOUNT), {
      cost,
    });
    return this.#resultOf(decision, cost, MAX_AMOUNT);
  }

  /** Gives points back. */
  async reward(
    key: string | number,
    points: number | string = 1,
    options: RateLimiterCallOptions = {},
  ): Promise<RateLimiterRes> {
    const cost = wholePoints(points);
    const decision = await this.#limiter.giveBack(
      `${key}`,
      this.#limitFor(options, MAX_AMOUNT),
      cost,
    );
    return this.#resultOf(decision, cost, MAX_AMOUNT);
  }

  /**
   * Returns the state of a key, or null if there is none. For a key whose next point would be
   * denied, `consumedPoints` is at least `points` + 1, although denials consume nothing here:
   * callers check `consumedPoints > points`.
   */
  async get(key: string | number): Promise<RateLimiterRes | null> {
    const unbounded = this.#limitFor({}, MAX_AMOUNT);
    const decision = await this.#limiter.peek(`${key}`, unbounded, { cost: 0 });
    if (decision.allowed && decision.resetMs === 0) return null;
    const result = this.#resultOf(decision, 0, MAX_AMOUNT);
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
   * accepts. If `secDuration` is not `duration`, it applies only to a key without points left;
   * other keys recover after `duration`.
   */
  async set(
    key: string | number,
    points: number | string,
    secDuration = this.duration,
  ): Promise<RateLimiterRes> {
    const name = `${key}`;
    const cost = Number(points);
    await this.delete(name);
    const limit = this.#limitFor({ customDuration: secDuration }, MAX_AMOUNT);
    if (cost > 0) await this.#limiter.take(name, limit, { cost });
    // Later calls have a window of `duration`, so a ban denies them for `secDuration`.
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
    return new RateLimiterRes(0, reportedMs(blockedMs), this.points + 1, false);
  }

  #limitFor({ customDuration }: RateLimiterCallOptions, points = this.points): KnownLimit {
    return fixed(points, (customDuration ?? this.duration) || FOREVER);
  }

  /**
   * Blocks a key in this process if it has consumed enough points. Returns the result to report.
   */
  #blockLocally(name: string, result: RateLimiterRes): RateLimiterRes {
    if (result.consumedPoints < this.#localBlockPoints) return result;
    const isDenied = result.consumedPoints > this.points;
    const blockedMs = (isDenied && this.#localBlockMs) || result.msBeforeNext;
    // `inMemoryBlockDuration` is only for denied keys.
    if (!isDenied && this.#localBlockMs) return result;
    this.#blocked.delete(name);
    this.#blocked.set(name, blockedMs < 0 ? Infinity : this.#now() + blockedMs);
    if (this.#blocked.size > MAX_BLOCKED) this.#blocked.delete(this.#blocked.keys().next().value!);
    const { remainingPoints, consumedPoints, isFirstInDuration } = result;
    return new RateLimiterRes(remainingPoints, blockedMs, consumedPoints, isFirstInDuration);
  }

  /** Converts a decision. `points` is the limit of the call, which may be unbounded. */
  #resultOf(decision: Decision, cost: number, points = this.points): RateLimiterRes {
    if (decision.degraded && decision.error instanceof UnavailableError && !decision.allowed) {
      throw decision.error;
    }
    // The reply for a banned key does not contain the consumption.
    if (!decision.allowed) {
      return new RateLimiterRes(0, reportedMs(decision.waitMs), this.points + 1, false);
    }
    const consumed = decision.remaining === null ? 0 : points - decision.remaining;
    const remaining = Math.max(0, this.points - consumed);
    const isFirst = consumed === cost;
    return new RateLimiterRes(remaining, reportedMs(decision.resetMs), consumed, isFirst);
  }
}

/** Returns a time as rate-limiter-flexible reports it: -1 for a time without end. */
function reportedMs(ms: number | null): number {
  return ms !== null && ms > REPORTED_FOREVER_MS ? -1 : (ms ?? 0);
}

/** Parses points, which may be text. */
function wholePoints(points: number | string): number {
  if (typeof points === "number") return points;
  if (/^[1-9]\d*$/.test(points)) return Number(points);
  throw new TypeError(
    "Consuming string different than integer values is not supported by this package",
  );
}
