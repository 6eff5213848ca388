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
   * Holder of the lease, 1 to 256 bytes. A new name by default. Calls with the same holder share
   * one lease.
   */
  readonly holder?: string;
  /** Units to hold, above 0. 1 by default. */
  readonly cost?: number;
  /** Deny the lease if this holder has a lease already, for locks. */
  readonly nx?: boolean;
  /**
   * Time to wait for a lease in the server's queue. 0 by default; Infinity waits without a timeout.
   */
  readonly wait?: Duration;
  /**
   * Request a fencing `token`: storage that compares tokens can reject a stale holder. false by
   * default.
   */
  readonly fence?: boolean;
  /** Signal that ends the wait. */
  readonly signal?: AbortSignal;
}

/** Dependencies of a lease. */
interface LeaseContext {
  readonly holder: string;
  readonly ttlMs: number;
  /** Time when the lease was requested: its ttl began no earlier. */
  readonly sentAt: number;
  readonly now: () => number;
  readonly renew: () => Promise<Decision>;
  readonly release: () => Promise<number>;
}

const RENEWALS_PER_TTL = 3;
/** Number of attempts in the time between two renewals, after a failed renewal. */
const ATTEMPTS_PER_RENEWAL = 4;

export class Lease {
  readonly decision: Decision;
  readonly holder: string;
  /** Fencing token, larger than that of every earlier lease. */
  readonly token: number | undefined;
  /** Signal that is aborted with a LeaseLostError when the lease is lost: stop the work. */
  readonly signal: AbortSignal;
  readonly #context: LeaseContext;
  readonly #lossController = new AbortController();
  #renewal: NodeJS.Timeout | undefined;
  #expiry: NodeJS.Timeout | undefined;
  #isOver = false;

  constructor(decision: Decision, context: LeaseContext) {
    this.decision = decision;
    this.holder = context.holder;
    this.token = decision.token;
    this.signal = this.#lossController.signal;
    this.#context = context;
    // A lease that the fallback granted during an outage is not renewed.
    if (decision.source === "server") this.#startTimers(context.sentAt);
  }

  /** Releases the lease. If the server cannot be reached, it expires after its ttl. */
  async release(): Promise<void> {
    const isHeld = this.#renewal !== undefined && !this.#isOver;
    this.#end();
    if (isHeld) await this.#context.release().catch(() => {});
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  /** Starts the timers of the next renewal and of the expiry of a lease requested at `sentAt`. */
  #startTimers(sentAt: number): void {
    clearTimeout(this.#renewal);
    clearTimeout(this.#expiry);
    const { ttlMs, now } = this.#context;
    const passed = now() - sentAt;
    this.#expiry = setTimeout(() => this.#lose("was not renewed in time"), ttlMs - passed).unref();
    const untilRenewal = Math.max(0, ttlMs / RENEWALS_PER_TTL - passed);
    this.#renewal = setTimeout(() => void this.#renew(), untilRenewal).unref();
  }

  async #renew(): Promise<void> {
    const sentAt = this.#context.now();
    try {
      const { allowed, token } = await this.#context.renew();
      if (this.#isOver) return;
      if (!allowed) this.#lose("expired, and others hold all there is");
      // Another token means a new lease: the first expired, and others may have had a lease
      // meanwhile.
      else if (token !== this.token) await this.#loseAndRelease("expired");
      else this.#startTimers(sentAt);
    } catch {
      if (this.#isOver) return;
      // The lease may still be renewed until it expires.
      const pause = this.#context.ttlMs / RENEWALS_PER_TTL / ATTEMPTS_PER_RENEWAL;
      this.#renewal = setTimeout(() => void this.#renew(), pause).unref();
    }
  }

  async #loseAndRelease(reason: string): Promise<void> {
    this.#lose(reason);
    await this.#context.release().catch(() => {});
  }

  #lose(reason: string): void {
    this.#end();
    this.#lossController.abort(new LeaseLostError(`the lease of ${this.holder} ${reason}`));
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
  readonly acquire: (holder: string, options: AcquireOptions) => Call<Decision>;
  readonly answer: (call: Call<Decision>) => Promise<Decision>;
  readonly decide: (call: Call<Decision>, wait?: Wait<Decision>) => Promise<Decision>;
  readonly release: (holder: string) => Promise<number>;
}

/** Acquires a lease as soon as there is room. Throws a DeniedError after `wait`. */
export async function acquireLease(
  limit: ConcurrencyLimit,
  { holder = randomUUID(), cost, nx = false, wait = 0, fence = false, signal }: LeaseOptions,
  { now, closing, acquire, answer, decide, release }: AcquireContext,
): Promise<Lease> {
  const acquireCall = (isRenewal: boolean, block?: Duration) =>
    acquire(holder, {
      ...(cost === undefined ? {} : { cost }),
      ...(block === undefined ? {} : { block }),
      nx: nx && !isRenewal,
      fence,
    });
  const ttlMs = seconds(limit.ttl) * 1000;
  const waitMs = wait === Infinity ? Infinity : seconds(wait) * 1000;
  const until = now() + waitMs;
  const ending = new AbortController();
  const signals = [closing, ...(signal ? [unbounded(signal)] : [])];
  const listeners = signals.map((signal) => () => ending.abort(signal.reason));
  signals.forEach((signal, index) => {
    if (signal.aborted) ending.abort(signal.reason);
    signal.addEventListener("abort", listeners[index]!);
  });
  try {
    for (let isRenewal = false; ; isRenewal = true) {
      const sentAt = now();
      const blocking = (block: Duration) => acquireCall(isRenewal, block);
      ending.signal.throwIfAborted();
      const decision = await decide(
        acquireCall(isRenewal),
        waitMs > 0 ? { until, blocking, signal: ending.signal } : undefined,
      ).catch(async (error: unknown) => {
        // The lease may have been granted nevertheless.
        if (ending.signal.aborted) await release(holder).catch(() => {});
        throw error;
      });
      if (!decision.allowed) throw new DeniedError(decision);
      // Only the time of the request is known, not that of the grant. If half of the ttl may be
      // over, the lease is renewed before it is used.
      if (decision.source !== "server" || now() - sentAt < ttlMs / 2) {
        const renew = () => answer(acquireCall(true));
        const context = { holder, ttlMs, sentAt, now, renew, release: () => release(holder) };
        return new Lease(decision, context);
      }
    }
  } finally {
    signals.forEach((signal, index) => signal.removeEventListener("abort", listeners[index]!));
  }
}
