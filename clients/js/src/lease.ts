/** Lease of a concurrency limit, renewed while the work runs. */

import { randomUUID } from "node:crypto";

import type { AcquireOptions, Call } from "./calls.js";
import { DeniedError, type Decision } from "./decision.js";
import { LeaseLostError } from "./errors.js";
import { seconds, type ConcurrencyLimit, type Duration } from "./limits.js";
import type { Wait } from "./sending.js";
import { unbounded } from "./waits.js";

export interface LeaseOptions {
  /**
   * Holder of the lease, 1 to 256 bytes. A new name by default: calls with one holder share one
   * lease.
   */
  readonly holder?: string;
  /** Units to hold, above 0. 1 by default. */
  readonly cost?: number;
  /** Deny the lease if this holder has one already, for locks. */
  readonly nx?: boolean;
  /**
   * Time to wait for a lease in the server's queue. 0 by default; Infinity waits without a timeout.
   */
  readonly wait?: Duration;
  /**
   * Request a fencing `token`: storage that compares it can reject a stale holder. false by
   * default.
   */
  readonly fence?: boolean;
  /** Signal that ends the wait. */
  readonly signal?: AbortSignal;
}

interface Server {
  readonly holder: string;
  readonly ttlMs: number;
  /** Time when the lease was requested, from which its ttl may count. */
  readonly sentAt: number;
  readonly now: () => number;
  readonly renew: () => Promise<Decision>;
  readonly release: () => Promise<number>;
}

const RENEWALS_IN_A_TTL = 3;

export class Lease {
  readonly decision: Decision;
  readonly holder: string;
  /** Fencing token, larger than that of every earlier lease. */
  readonly token: number | undefined;
  /** Signal that is aborted with a LeaseLostError when the lease is lost: stop the work. */
  readonly signal: AbortSignal;
  readonly #server: Server;
  readonly #lost = new AbortController();
  #renewal: NodeJS.Timeout | undefined;
  #expiry: NodeJS.Timeout | undefined;
  #isOver = false;

  constructor(decision: Decision, server: Server) {
    this.decision = decision;
    this.holder = server.holder;
    this.token = decision.token;
    this.signal = this.#lost.signal;
    this.#server = server;
    // A lease that the server did not grant, during an outage, is not renewed.
    if (decision.source === "server") this.#holds(server.sentAt);
  }

  /** Releases the lease. If the server cannot be reached, it expires after its ttl. */
  async release(): Promise<void> {
    const isHeld = this.#renewal !== undefined && !this.#isOver;
    this.#end();
    if (isHeld) await this.#server.release().catch(() => {});
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  #holds(since: number): void {
    clearTimeout(this.#renewal);
    clearTimeout(this.#expiry);
    const { ttlMs, now } = this.#server;
    const passed = now() - since;
    this.#expiry = setTimeout(() => this.#lose("was not renewed in time"), ttlMs - passed).unref();
    const next = Math.max(0, ttlMs / RENEWALS_IN_A_TTL - passed);
    this.#renewal = setTimeout(() => void this.#renew(), next).unref();
  }

  async #renew(): Promise<void> {
    const sentAt = this.#server.now();
    try {
      const { allowed, token } = await this.#server.renew();
      if (this.#isOver) return;
      if (!allowed) this.#lose("expired, and others hold all there is");
      // Another token means a new lease: the first had expired, and others may have had its place.
      else if (token !== this.token) await this.#giveBack("expired");
      else this.#holds(sentAt);
    } catch {
      if (this.#isOver) return;
      // It may still be renewed until it expires.
      const soon = this.#server.ttlMs / RENEWALS_IN_A_TTL / 4;
      this.#renewal = setTimeout(() => void this.#renew(), soon).unref();
    }
  }

  async #giveBack(how: string): Promise<void> {
    this.#lose(how);
    await this.#server.release().catch(() => {});
  }

  #lose(how: string): void {
    this.#end();
    this.#lost.abort(new LeaseLostError(`the lease of ${this.holder} ${how}`));
  }

  #end(): void {
    this.#isOver = true;
    clearTimeout(this.#renewal);
    clearTimeout(this.#expiry);
  }
}

/** Dependencies of acquiring a lease. */
interface AcquireContext {
  readonly now: () => number;
  /** Aborted when the limiter is closed. */
  readonly closing: AbortSignal;
  readonly acquire: (holder: string, how: AcquireOptions) => Call<Decision>;
  readonly answer: (call: Call<Decision>) => Promise<Decision>;
  readonly decide: (call: Call<Decision>, wait?: Wait<Decision>) => Promise<Decision>;
  readonly release: (holder: string) => Promise<number>;
}

/** Acquires a lease as soon as there is room. Throws a DeniedError after the timeout. */
export async function acquired(
  limit: ConcurrencyLimit,
  { holder = randomUUID(), cost, nx = false, wait = 0, fence = false, signal }: LeaseOptions,
  { now, closing, acquire, answer, decide, release }: AcquireContext,
): Promise<Lease> {
  const acquireCall = (again: boolean, block?: Duration) =>
    acquire(holder, {
      ...(cost === undefined ? {} : { cost }),
      ...(block === undefined ? {} : { block }),
      nx: nx && !again,
      fence,
    });
  const ttlMs = seconds(limit.ttl) * 1000;
  const waitMs = wait === Infinity ? Infinity : seconds(wait) * 1000;
  const until = now() + waitMs;
  const ending = new AbortController();
  const signals = [closing, ...(signal ? [unbounded(signal)] : [])];
  const ends = signals.map((one) => () => ending.abort(one.reason));
  signals.forEach((one, index) => {
    if (one.aborted) ending.abort(one.reason);
    one.addEventListener("abort", ends[index]!);
  });
  try {
    for (let again = false; ; again = true) {
      const sentAt = now();
      const blocking = (block: Duration) => acquireCall(again, block);
      ending.signal.throwIfAborted();
      const decision = await decide(
        acquireCall(again),
        waitMs > 0 ? { until, blocking, signal: ending.signal } : undefined,
      ).catch(async (error: unknown) => {
        // The lease may have been granted nevertheless.
        if (ending.signal.aborted) await release(holder).catch(() => {});
        throw error;
      });
      if (!decision.allowed) throw new DeniedError(decision);
      // The time of the grant is unknown, only that of the request: if much of the ttl may be over,
      // the lease is renewed first.
      if (decision.source !== "server" || now() - sentAt < ttlMs / 2) {
        const renew = () => answer(acquireCall(true));
        const server = { holder, ttlMs, sentAt, now, renew, release: () => release(holder) };
        return new Lease(decision, server);
      }
    }
  } finally {
    signals.forEach((one, index) => one.removeEventListener("abort", ends[index]!));
  }
}
