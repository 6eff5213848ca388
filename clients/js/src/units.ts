/**
 * Units of a hot key, taken from the server in batches and spent in this process. After the server
 * granted less than a batch, calls are denied until it is asked again.
 *
 * Never more units are spent than were granted. Available units count as used for all other
 * processes, so choose a batch that is small compared with the limit. Unspent units are settled by
 * the id of their charge, so that units that have recovered meanwhile are not given back twice.
 */

import { randomUUID } from "node:crypto";

import type { Once } from "./calls.js";
import { Decision } from "./decision.js";
import { FullError, UnavailableError } from "./errors.js";
import { MOST, seconds, type Duration } from "./limits.js";

export interface UnitsOptions {
  /** Number of units taken at a time: whole, from 1. 100 by default. */
  readonly batch?: number;
  /** Time within which they are spent; then the rest is given back. 1 second by default. */
  readonly keep?: Duration;
}

interface Server {
  readonly now: () => number;
  readonly take: (cost: number, once: Once) => Promise<Decision>;
  readonly settle: (id: string, amount: number) => Promise<Decision>;
  /** Returns the fallback decision during an outage. */
  readonly instead: (cost: number, error: unknown) => Decision;
}

/** Units granted to one call. */
interface Grant {
  readonly id: string;
  readonly granted: number;
  readonly expiresAt: number;
  readonly timer: NodeJS.Timeout;
  spent: number;
}

export class Units {
  readonly #batch: number;
  readonly #keepMs: number;
  readonly #server: Server;
  #grant: Grant | undefined;
  #last: Decision | undefined;
  /** Time of the next request after a short grant. */
  #deniedUntil = -Infinity;
  /** Request in flight, for which all callers wait that need units. */
  #inFlight: Promise<void> | undefined;
  /** Settlements in flight. */
  readonly #settling = new Set<Promise<unknown>>();

  constructor({ batch = 100, keep = 1 }: UnitsOptions, server: Server) {
    if (!Number.isInteger(batch) || batch < 1) {
      throw new RangeError(`batch must be a whole number from 1: ${batch}`);
    }
    this.#batch = batch;
    this.#keepMs = seconds(keep) * 1000;
    this.#server = server;
  }

  /** Spends whole units, mostly without a call. */
  async take(cost = 1): Promise<Decision> {
    if (!Number.isInteger(cost) || cost < 1 || cost > MOST) {
      throw new RangeError(`cost must be a whole number from 1: ${cost}`);
    }
    for (;;) {
      const now = this.#server.now();
      const left = this.#left(now);
      if (this.#grant && left >= cost) {
        this.#grant.spent += cost;
        return this.#decision(true, left - cost, 0);
      }
      if (this.#last && cost > (this.#last.limit ?? Infinity))
        return this.#decision(false, left, null);
      if (now < this.#deniedUntil) {
        const wait = this.#deniedUntil === Infinity ? null : Math.ceil(this.#deniedUntil - now);
        return this.#decision(false, left, wait);
      }
      // One caller requests units for all. Each round grants some or denies.
      this.#inFlight ??= this.#request(cost).finally(() => (this.#inFlight = undefined));
      try {
        await this.#inFlight;
      } catch (error) {
        if (!(error instanceof UnavailableError || error instanceof FullError)) throw error;
        return this.#server.instead(cost, error);
      }
    }
  }

  /** Gives unspent units back. */
  async close(): Promise<void> {
    await this.#inFlight?.catch(() => {});
    this.#giveBack();
    await Promise.all(this.#settling);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #left(now: number): number {
    if (this.#grant && now >= this.#grant.expiresAt) this.#giveBack();
    return this.#grant ? this.#grant.granted - this.#grant.spent : 0;
  }

  async #request(cost: number): Promise<void> {
    // The rest of the last grant does not suffice: give it back before a new one.
    this.#giveBack();
    await Promise.all(this.#settling);
    const id = randomUUID();
    const expiresAt = this.#server.now() + this.#keepMs;
    // The id is settled when that time is over, perhaps only after some attempts.
    const ttl: Duration = `${Math.ceil(this.#keepMs) + SETTLE_WITHIN_MS}ms`;
    const wanted = Math.max(cost, this.#batch);
    const decision = await this.#server.take(wanted, { id, ttl });
    this.#last = decision;
    const { granted = 0 } = decision;
    // The limit is exhausted: an immediate retry would only get the units that recover meanwhile.
    if (granted < wanted) this.#deniedUntil = this.#server.now() + this.#pauseMs(decision);
    if (granted === 0) return;
    const timer = setTimeout(() => this.#giveBack(), expiresAt - this.#server.now()).unref();
    this.#grant = { id, granted, expiresAt, timer, spent: 0 };
  }

  /** Returns the pause after a short grant. Random, so that processes do not retry together. */
  #pauseMs({ allowed, waitMs, resetMs }: Decision): number {
    const least = Math.min(this.#keepMs / 10, (resetMs ?? 0) / 4);
    const wait = allowed ? 0 : (waitMs ?? Infinity);
    return Math.max(1, wait, least) + Math.random() * least;
  }

  #giveBack(): void {
    const grant = this.#grant;
    if (!grant) return;
    this.#grant = undefined;
    clearTimeout(grant.timer);
    if (grant.spent === grant.granted) return;
    // Units that cannot be given back recover by themselves.
    const settled = this.#server
      .settle(grant.id, grant.spent)
      .catch(() => {})
      .finally(() => this.#settling.delete(settled));
    this.#settling.add(settled);
  }

  #decision(allowed: boolean, left: number, waitMs: number | null): Decision {
    const { limit = null, remaining, resetMs = null, window } = this.#last ?? {};
    const data = { allowed, limit, remaining: (remaining ?? 0) + left, waitMs, resetMs };
    return new Decision(window === undefined ? data : { ...data, window });
  }
}

const SETTLE_WITHIN_MS = 30_000;
