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
import { MAX_AMOUNT, seconds, type Duration } from "./limits.js";

export interface UnitsOptions {
  /**
   * Largest batch, unless waiting takes need more: a whole number from 1. By default a hundredth of
   * the limit.
   */
  readonly batch?: number;
  /** Time after which unspent units are given back. 1 second by default. */
  readonly keep?: Duration;
  /**
   * Number of processes that share the limit. The largest batch is then the limit divided by four
   * times this number.
   */
  readonly peers?: number;
}

interface Server {
  readonly now: () => number;
  readonly take: (cost: number, once: Once) => Promise<Decision>;
  readonly settle: (id: string, amount: number) => Promise<Decision>;
  /** Returns the fallback decision during an outage. */
  readonly fallback: (cost: number, error: unknown) => Decision;
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
  #lastReply: Decision | undefined;
  /** Loop of requests, which ends when every waiting take is answered. */
  #requests: Promise<void> | undefined;
  /** Timer that gives expired units back even if no take follows. */
  #timer: NodeJS.Timeout | undefined;
  /** Settlements in flight. */
  readonly #settling = new Set<Promise<unknown>>();

  constructor({ batch, keep = 1, peers }: UnitsOptions, server: Server) {
    for (const [name, value] of Object.entries({ batch, peers })) {
      if (value !== undefined && (!Number.isInteger(value) || value < 1)) {
        throw new RangeError(`${name} must be a whole number from 1: ${value}`);
      }
    }
    this.#keep = seconds(keep);
    this.#server = server;
    this.#batching = new Batching({ keep: this.#keep, batch, peers });
  }

  /** Spends a whole number of units, mostly without a call to the server. */
  async take(cost = 1): Promise<Decision> {
    if (!Number.isInteger(cost) || cost < 1 || cost > MAX_AMOUNT) {
      throw new RangeError(`cost must be a whole number from 1: ${cost}`);
    }
    const now = this.#now();
    this.#batching.recordDemand(cost, now);
    const decision = this.#decideLocally(cost, now);
    this.#giveBack(this.#batching.takeExpired());
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
    this.#giveBack(this.#batching.takeAll());
    await Promise.all(this.#settling);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #now(): number {
    return this.#server.now() / 1000;
  }

  /** Decides a take without a call, if possible. */
  #decideLocally(cost: number, now: number): Decision | undefined {
    if (this.#batching.spend(cost, now)) {
      return this.#decision(
        true,
        (this.#lastReply?.remaining ?? 0) + this.#batching.inHand(now),
        0,
      );
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
      const waitingCost = this.#waiting.reduce((sum, { cost }) => sum + cost, 0);
      const requested = this.#batching.planRequest(waitingCost, sentAt);
      const id = randomUUID();
      // The id must outlive `keep`, after which the charge is settled, perhaps by several attempts.
      const ttl: Duration = `${Math.ceil(this.#keep * 1000) + SETTLE_WITHIN_MS}ms`;
      try {
        this.#received(await this.#server.take(requested, { id, ttl }), id, requested, sentAt);
      } catch (error) {
        this.#failed(error);
      }
    } while (this.#waiting.length > 0);
    this.#requests = undefined;
  }

  /**
   * Records the reply to a request, and answers the waiting takes in the order of arrival. Takes
   * that came after the request was sent may have to wait for the next one.
   */
  #received(serverDecision: Decision, id: string, requested: number, sentAt: number): void {
    this.#lastReply = serverDecision;
    const { allowed, limit, remaining, waitMs, resetMs } = serverDecision;
    // If the policy has FORCE since the last check, a denied call may have been charged: spend
    // nothing.
    const granted = allowed ? (serverDecision.granted ?? 0) : 0;
    const reply = {
      id,
      granted,
      limit: limit ?? 0,
      remaining: remaining ?? 0,
      wait: waitMs === null ? null : waitMs / 1000,
      reset: (resetMs ?? 0) / 1000,
    };
    const now = this.#now();
    this.#batching.recordReply(reply, requested, sentAt, now, Math.random());
    this.#startTimer();
    for (let first; (first = this.#waiting[0]);) {
      const decision = this.#decideLocally(first.cost, now);
      if (!decision) break;
      this.#waiting.shift();
      first.resolve(decision);
    }
  }

  /** Answers all waiting takes after a request that failed. */
  #failed(error: unknown): void {
    this.#batching.recordFailure(this.#now());
    const isOutage = error instanceof UnavailableError || error instanceof FullError;
    for (const { cost, resolve, reject } of this.#waiting.splice(0)) {
      try {
        if (!isOutage) throw error;
        resolve(this.#server.fallback(cost, error));
      } catch (reason) {
        reject(reason);
      }
    }
  }

  #startTimer(): void {
    const expiresAt = this.#batching.expiresAt;
    if (expiresAt === undefined || this.#timer) return;
    const waitMs = Math.min(
      Math.max(Math.ceil((expiresAt - this.#now()) * 1000), 1),
      LONGEST_TIMER_MS,
    );
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      this.#batching.inHand(this.#now());
      this.#giveBack(this.#batching.takeExpired());
      this.#startTimer();
    }, waitMs).unref();
  }

  #giveBack(grants: Grant[]): void {
    for (const { id, spent, unspent } of grants) {
      if (unspent === 0) continue;
      // Units that cannot be given back recover by themselves.
      const settled = this.#server
        .settle(id, spent)
        .catch(() => {})
        .finally(() => this.#settling.delete(settled));
      this.#settling.add(settled);
    }
  }

  #decision(allowed: boolean, remaining: number, waitMs: number | null): Decision {
    const { limit = null, resetMs = null, window } = this.#lastReply ?? {};
    const data = { allowed, limit, remaining, waitMs, resetMs };
    return new Decision(window === undefined ? data : { ...data, window });
  }
}

/** Milliseconds after `keep` within which the attempts to settle a charge must succeed. */
const SETTLE_WITHIN_MS = 30_000;
/** Longest time in milliseconds that Node.js accepts for a timer. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
