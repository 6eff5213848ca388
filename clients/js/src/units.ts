/**
 * Units of a hot key, taken from the server by the batch and spent here. Once the server grants less
 * than a batch, calls are denied until it is asked again.
 *
 * Never more are spent than were granted. What is in hand counts as used for all other processes, so
 * take few compared to the limit. What is left over is settled by the id of its charge: so nobody is
 * given again what has recovered in the meantime.
 */

import { randomUUID } from "node:crypto";

import type { Once } from "./calls.js";
import { Decision } from "./decision.js";
import { FullError, UnavailableError } from "./errors.js";
import { MOST, seconds, type Duration } from "./limits.js";

export interface UnitsOptions {
  /** How many units are taken at a time: whole, from 1. 100 by default. */
  readonly batch?: number;
  /** How long they are kept to be spent: then what is left is given back. 1 second by default. */
  readonly keep?: Duration;
}

interface Server {
  readonly now: () => number;
  readonly take: (cost: number, once: Once) => Promise<Decision>;
  readonly settle: (id: string, amount: number) => Promise<Decision>;
  /** What holds while the server is away. */
  readonly instead: (cost: number, error: unknown) => Decision;
}

/** What was granted by one call. */
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
  #said: Decision | undefined;
  /** Time before which the server is not asked, since its last grant was short. */
  #askAgain = -Infinity;
  /** Call in flight, for which all wait that need units. */
  #asking: Promise<void> | undefined;
  /** What is being given back. */
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
        return this.#told(true, left - cost, 0);
      }
      if (this.#said && cost > (this.#said.limit ?? Infinity)) return this.#told(false, left, null);
      if (now < this.#askAgain) {
        const wait = this.#askAgain === Infinity ? null : Math.ceil(this.#askAgain - now);
        return this.#told(false, left, wait);
      }
      // One asks, however many wait. Each round grants something or denies.
      this.#asking ??= this.#ask(cost).finally(() => (this.#asking = undefined));
      try {
        await this.#asking;
      } catch (error) {
        if (!(error instanceof UnavailableError || error instanceof FullError)) throw error;
        return this.#server.instead(cost, error);
      }
    }
  }

  /** Gives back what is not spent. */
  async close(): Promise<void> {
    await this.#asking?.catch(() => {});
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

  async #ask(cost: number): Promise<void> {
    // What is left of the last grant does not suffice: a new one is for all of it.
    this.#giveBack();
    await Promise.all(this.#settling);
    const id = randomUUID();
    const expiresAt = this.#server.now() + this.#keepMs;
    // The id is settled when that time is over, perhaps only after some attempts.
    const ttl: Duration = `${Math.ceil(this.#keepMs) + SETTLE_WITHIN_MS}ms`;
    const asked = Math.max(cost, this.#batch);
    const decision = await this.#server.take(asked, { id, ttl });
    this.#said = decision;
    const { granted = 0 } = decision;
    // The limit has no more: to ask at once would only get what recovers meanwhile, call by call.
    if (granted < asked) this.#askAgain = this.#server.now() + this.#pauseMs(decision);
    if (granted === 0) return;
    const timer = setTimeout(() => this.#giveBack(), expiresAt - this.#server.now()).unref();
    this.#grant = { id, granted, expiresAt, timer, spent: 0 };
  }

  /** Returns how long to wait after a short grant. Random, so that processes do not ask together. */
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
    // What could not be given back recovers by itself.
    const settled = this.#server
      .settle(grant.id, grant.spent)
      .catch(() => {})
      .finally(() => this.#settling.delete(settled));
    this.#settling.add(settled);
  }

  #told(allowed: boolean, left: number, waitMs: number | null): Decision {
    const { limit = null, remaining, resetMs = null, window } = this.#said ?? {};
    const told = { allowed, limit, remaining: (remaining ?? 0) + left, waitMs, resetMs };
    return new Decision(window === undefined ? told : { ...told, window });
  }
}

const SETTLE_WITHIN_MS = 30_000;
