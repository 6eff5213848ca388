/**
 * Units of a hot key, taken from the server in batches and spent in this process.
 *
 * The server has charged every unit before it is spent here, so all processes together never spend
 * more than it grants. Unspent units are settled by the id of their charge, so that units that have
 * recovered meanwhile are not given back twice.
 */

import { randomUUID } from "node:crypto";

import { Batching, type Grant } from "./batching.js";
import type { Once } from "./calls.js";
import { Decision } from "./decision.js";
import { FullError, UnavailableError } from "./errors.js";
import { MOST, seconds, type Duration } from "./limits.js";

export interface UnitsOptions {
  /** Upper bound of a batch: whole, from 1. By default a hundredth of the limit. */
  readonly batch?: number;
  /** Time within which they are spent; then the rest is given back. 1 second by default. */
  readonly keep?: Duration;
  /**
   * Number of processes that share the limit. In place of a hundredth, a batch is at most the limit
   * divided by four times that number.
   */
  readonly peers?: number;
}

interface Server {
  readonly now: () => number;
  readonly take: (cost: number, once: Once) => Promise<Decision>;
  readonly settle: (id: string, amount: number) => Promise<Decision>;
  /** Returns the fallback decision during an outage. */
  readonly instead: (cost: number, error: unknown) => Decision;
}

/** Take that waits for units. */
interface Waiter {
  readonly cost: number;
  readonly resolve: (decision: Decision) => void;
  readonly reject: (error: unknown) => void;
}

export class Units {
  readonly #keep: number;
  readonly #server: Server;
  readonly #batching: Batching;
  readonly #waiting: Waiter[] = [];
  #last: Decision | undefined;
  /** Requests in flight, until every waiting take is answered. */
  #requests: Promise<void> | undefined;
  /** Timer that gives the oldest units back even if no take follows. */
  #timer: NodeJS.Timeout | undefined;
  /** Settlements in flight. */
  readonly #settling = new Set<Promise<unknown>>();

  constructor({ batch, keep = 1, peers }: UnitsOptions, server: Server) {
    for (const [name, number] of Object.entries({ batch, peers })) {
      if (number !== undefined && (!Number.isInteger(number) || number < 1)) {
        throw new RangeError(`${name} must be a whole number from 1: ${number}`);
      }
    }
    this.#keep = seconds(keep);
    this.#server = server;
    this.#batching = new Batching({ keep: this.#keep, batch, peers });
  }

  /** Spends whole units, mostly without a call. */
  async take(cost = 1): Promise<Decision> {
    if (!Number.isInteger(cost) || cost < 1 || cost > MOST) {
      throw new RangeError(`cost must be a whole number from 1: ${cost}`);
    }
    const now = this.#now();
    this.#batching.demand(cost, now);
    const decision = this.#decided(cost, now);
    this.#giveBack(this.#batching.expired());
    if (decision) {
      if (this.#batching.isDue(now)) this.#requests ??= this.#request();
      return decision;
    }
    return new Promise((resolve, reject) => {
      this.#waiting.push({ cost, resolve, reject });
      this.#requests ??= this.#request();
    });
  }

  /** Gives unspent units back. */
  async close(): Promise<void> {
    await this.#requests;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#giveBack(this.#batching.rest());
    await Promise.all(this.#settling);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #now(): number {
    return this.#server.now() / 1000;
  }

  /** Decides a take without a call, if possible. */
  #decided(cost: number, now: number): Decision | undefined {
    if (this.#batching.spend(cost, now)) {
      return this.#decision(true, (this.#last?.remaining ?? 0) + this.#batching.inHand(now), 0);
    }
    if (!this.#batching.denies(cost, now)) return undefined;
    const wait = this.#batching.wait(cost, now);
    const waitMs = wait === null ? null : Math.max(Math.ceil(wait * 1000), 1);
    return this.#decision(false, this.#batching.inHand(now), waitMs);
  }

  /** Requests units until every waiting take is answered. */
  async #request(): Promise<void> {
    do {
      const sentAt = this.#now();
      const waiting = this.#waiting.reduce((sum, { cost }) => sum + cost, 0);
      const wanted = this.#batching.wanted(waiting, sentAt);
      const id = randomUUID();
      // The id is settled when that time is over, perhaps only after some attempts.
      const ttl: Duration = `${Math.ceil(this.#keep * 1000) + SETTLE_WITHIN_MS}ms`;
      try {
        this.#received(await this.#server.take(wanted, { id, ttl }), id, wanted, sentAt);
      } catch (error) {
        this.#failed(error);
      }
    } while (this.#waiting.length > 0);
    this.#requests = undefined;
  }

  /**
   * Records the reply to a request, and answers the waiting takes, first come, first served. Those
   * that came after a full grant was requested may have to wait for the next.
   */
  #received(decision: Decision, id: string, wanted: number, sentAt: number): void {
    this.#last = decision;
    const { allowed, limit, remaining, waitMs, resetMs } = decision;
    // A policy that has got FORCE meanwhile charges what it denies.
    const granted = allowed ? (decision.granted ?? 0) : 0;
    const reply = {
      id,
      granted,
      limit: limit ?? 0,
      remaining: remaining ?? 0,
      wait: waitMs === null ? null : waitMs / 1000,
      reset: (resetMs ?? 0) / 1000,
    };
    const now = this.#now();
    this.#batching.received(reply, wanted, sentAt, now, Math.random());
    this.#startTimer();
    for (let first; (first = this.#waiting[0]);) {
      const answer = this.#decided(first.cost, now);
      if (!answer) break;
      this.#waiting.shift();
      first.resolve(answer);
    }
  }

  /** Answers all waiting takes after a request that failed. */
  #failed(error: unknown): void {
    this.#batching.failed(this.#now());
    const isOutage = error instanceof UnavailableError || error instanceof FullError;
    for (const { cost, resolve, reject } of this.#waiting.splice(0)) {
      try {
        if (!isOutage) throw error;
        resolve(this.#server.instead(cost, error));
      } catch (raised) {
        reject(raised);
      }
    }
  }

  #startTimer(): void {
    const until = this.#batching.expiresAt;
    if (until === undefined || this.#timer) return;
    const waitMs = Math.min(Math.max(Math.ceil((until - this.#now()) * 1000), 1), LONGEST_TIMER);
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#batching.inHand(this.#now());
      this.#giveBack(this.#batching.expired());
      this.#startTimer();
    }, waitMs).unref();
  }

  #giveBack(grants: Grant[]): void {
    for (const { id, spent, left } of grants) {
      if (left === 0) continue;
      // Units that cannot be given back recover by themselves.
      const settled = this.#server
        .settle(id, spent)
        .catch(() => {})
        .finally(() => this.#settling.delete(settled));
      this.#settling.add(settled);
    }
  }

  #decision(allowed: boolean, remaining: number, waitMs: number | null): Decision {
    const { limit = null, resetMs = null, window } = this.#last ?? {};
    const data = { allowed, limit, remaining, waitMs, resetMs };
    return new Decision(window === undefined ? data : { ...data, window });
  }
}

const SETTLE_WITHIN_MS = 30_000;
/** Longest time in milliseconds that Node.js accepts for a timer. */
const LONGEST_TIMER = 2 ** 31 - 1;
