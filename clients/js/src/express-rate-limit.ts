/**
 * Store for express-rate-limit that admits exactly what the module admits: `rateLimit({ limit: 100,
 * windowMs: 60_000, store: new RateLimitStore(redis) })`.
 *
 * express-rate-limit counts denied hits, too; the module does not charge a denied call. So an
 * allowed call is reported as limit - remaining hits, and a denied call as limit + 1. A denied call
 * was not charged, so `decrement` does not give it back.
 */

import { AsyncLocalStorage } from "node:async_hooks";

import type { ClientRateLimitInfo, Options, Store } from "express-rate-limit";

import type { Client } from "./clients.js";
import { claim } from "./keys.js";
import type { Decision } from "./decision.js";
import { Limiter } from "./limiter.js";
import type { LimiterOptions } from "./options.js";
import { fixed, type Duration, type Limit } from "./limits.js";

export interface RateLimitStoreOptions extends LimiterOptions {
  /**
   * Prefix of every key, "rl-store:" by default. "rl:" is the prefix of rate-limit-redis, which may
   * run at the same time.
   */
  readonly prefix?: string;
  /**
   * Limits of a key: any limit, or a policy of the server. By default `limit` in each window of
   * `windowMs`. If limits differ from key to key, pass `store.limit` to express-rate-limit.
   */
  readonly limits?: Limit | ((key: string) => Limit);
}

/** Charge of a request, for giving it back. */
interface Hit {
  readonly key: string;
  decision?: Decision;
  isGivenBack: boolean;
}

/** Limit of the store when only express-rate-limit knows the limit: practically unbounded. */
const UNBOUNDED = 1_000_000_000_000;

/** Longest time within which the charge of a request can be settled. */
const LONGEST_REQUEST_MS = 600_000;

export class RateLimitStore implements Store {
  readonly localKeys = false;
  readonly prefix: string;
  readonly #limiter: Limiter;
  readonly #hits = new AsyncLocalStorage<Hit>();
  readonly #limits: RateLimitStoreOptions["limits"];
  /** `true` if calls may have ids. */
  readonly #mayHaveIds: boolean;
  /** Options of express-rate-limit. `mayDecrement`: it gives back requests by their responses. */
  #configured: { limit: number | undefined; windowMs: number; mayDecrement: boolean } | undefined;

  /**
   * Creates a store. Unless `onOutage` says otherwise, an outage is an error, and
   * express-rate-limit's `passOnStoreError` decides about the request. Throws a TypeError if
   * another store of the client has the same prefix, as both would count each request.
   */
  constructor(
    client: Client,
    { limits, prefix = "rl-store:", ...options }: RateLimitStoreOptions = {},
  ) {
    claim(client, prefix, this);
    this.prefix = prefix;
    this.#limits = limits;
    this.#mayHaveIds = options.once !== false;
    this.#limiter = new Limiter(client, { onOutage: "raise", ...options, prefix });
  }

  init({ limit, windowMs, skipFailedRequests, skipSuccessfulRequests }: Options): void {
    this.#configured = {
      // express-slow-down sets the limit to 0, so that every request counts as above the limit.
      limit: typeof limit === "number" && limit > 0 ? limit : undefined,
      windowMs,
      mayDecrement: skipFailedRequests || skipSuccessfulRequests,
    };
  }

  /** Limit of the current request, for express-rate-limit's `limit` option. */
  readonly limit = (): number => {
    const decision = this.#hits.getStore()?.decision;
    if (!decision) throw new Error("store.limit is known only behind increment");
    return decision.limit ?? UNBOUNDED;
  };

  async increment(key: string): Promise<ClientRateLimitInfo> {
    const { windowMs, mayDecrement } = this.#options();
    const hit: Hit = { key, isGivenBack: false };
    // Makes the hit available to the rest of this request. After the first await, it would be
    // available to this method only.
    if (mayDecrement || this.#limits) this.#hits.enterWith(hit);
    const ttl: Duration = `${Math.min(Math.max(windowMs, 1000), LONGEST_REQUEST_MS)}ms`;
    const settleable = mayDecrement && this.#mayHaveIds ? { once: true, ttl } : {};
    hit.decision = await this.#limiter.take(key, this.#limitOf(key), settleable);
    return this.#infoOf(hit.decision);
  }

  async get(key: string): Promise<ClientRateLimitInfo | undefined> {
    const decision = await this.#limiter.peek(key, this.#limitOf(key));
    return decision.resetMs === 0 ? undefined : this.#infoOf(decision.but({ allowed: true }));
  }

  /**
   * Gives back the charge of this request. express-rate-limit also decrements denied requests, as
   * they have failed, but they were not charged. Settles by the id, so that the charge is given
   * back once.
   */
  async decrement(key: string): Promise<void> {
    const hit = this.#hits.getStore();
    if (hit?.key !== key || !hit.decision || hit.isGivenBack) {
      await this.#limiter.giveBack(key, this.#limitOf(key), 1);
      return;
    }
    hit.isGivenBack = true;
    const { allowed, id, source } = hit.decision;
    if (!allowed || source !== "server") return;
    const settled =
      id !== undefined && (await this.#limiter.settle(key, this.#limitOf(key), id, 0)).allowed;
    if (!settled) await this.#limiter.giveBack(key, this.#limitOf(key), 1);
  }

  async resetKey(key: string): Promise<void> {
    await this.#limiter.reset(key);
  }

  #options() {
    if (!this.#configured) throw new Error("the store is not in use yet: init has not been called");
    return this.#configured;
  }

  #limitOf(key: string): Limit {
    if (this.#limits) return typeof this.#limits === "function" ? this.#limits(key) : this.#limits;
    const { limit = UNBOUNDED, windowMs } = this.#options();
    return fixed(limit, `${windowMs}ms`);
  }

  #infoOf({ allowed, limit, remaining, resetMs, waitMs }: Decision): ClientRateLimitInfo {
    // express-rate-limit compares the hits with this limit, and shows it to clients.
    const configured = this.#configured?.limit ?? limit ?? UNBOUNDED;
    const used = remaining === null ? 0 : configured - remaining;
    const totalHits = allowed ? Math.min(Math.max(1, used), configured) : configured + 1;
    // express-rate-limit computes Retry-After of a denial from `resetTime`.
    const untilResetMs = (allowed ? resetMs : (waitMs ?? resetMs)) ?? 0;
    return { totalHits, resetTime: new Date(Date.now() + untilResetMs) };
  }
}
