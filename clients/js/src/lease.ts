/** A lease of a concurrency limit, renewed for as long as the work takes. */

import { randomUUID } from "node:crypto";

import type { AcquireOptions, Call } from "./calls.js";
import { DeniedError, type Decision } from "./decision.js";
import { LeaseLostError } from "./errors.js";
import { seconds, type ConcurrencyLimit, type Duration } from "./limits.js";
import type { Wait } from "./sending.js";
import { unbounded } from "./waits.js";

export interface LeaseOptions {
  /** Its holder, 1 to 256 bytes. A new name by default: two of one name share one lease. */
  readonly holder?: string;
  /** How many units it holds, above 0. 1 by default. */
  readonly cost?: number;
  /** Denied if this holder has a lease already: for locks. */
  readonly nx?: boolean;
  /**
   * For how long to wait for a place, in the server and in turn. 0 by default; Infinity: as long as
   * it takes.
   */
  readonly wait?: Duration;
  /** Ask for a `token`: storage that compares it can refuse a stale holder. false by default. */
  readonly fence?: boolean;
  /** Ends the waiting, if it is aborted. */
  readonly signal?: AbortSignal;
}

interface Server {
  readonly holder: string;
  readonly ttlMs: number;
  /** When the lease was asked for: from then on it may count. */
  readonly sentAt: number;
  readonly now: () => number;
  readonly renew: () => Promise<Decision>;
  readonly release: () => Promise<number>;
}

const RENEWALS_IN_A_TTL = 3;

export class Lease {
  readonly decision: Decision;
  readonly holder: string;
  /** With `fence`: larger than the token of every lease before. */
  readonly token: number | undefined;
  /** Aborted, with a LeaseLostError, when the lease is lost: stop the work. */
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
    // What nobody granted during an outage is nobody's to renew.
    if (decision.source === "server") this.#holds(server.sentAt);
  }

  /** Gives the lease back. If that cannot be said, it expires after its ttl. */
  async release(): Promise<void> {
    const held = this.#renewal !== undefined && !this.#isOver;
    this.#end();
    if (held) await this.#server.release().catch(() => {});
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
      // Of another token: a new lease. The first had expired, and others may have had its place.
      else if (token !== this.token) await this.#giveBack("expired");
      else this.#holds(sentAt);
    } catch {
      if (this.#isOver) return;
      // Until it expires, it may still be renewed.
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

/** What a lease is asked for by. */
interface Asking {
  readonly now: () => number;
  /** Aborted when the limiter is closed. */
  readonly closing: AbortSignal;
  readonly acquire: (holder: string, how: AcquireOptions) => Call<Decision>;
  readonly answer: (call: Call<Decision>) => Promise<Decision>;
  readonly decide: (call: Call<Decision>, wait?: Wait<Decision>) => Promise<Decision>;
  readonly release: (holder: string) => Promise<number>;
}

/** A lease as soon as there is room, or a DeniedError once nobody waits for it any more. */
export async function acquired(
  limit: ConcurrencyLimit,
  { holder = randomUUID(), cost, nx = false, wait = 0, fence = false, signal }: LeaseOptions,
  { now, closing, acquire, answer, decide, release }: Asking,
): Promise<Lease> {
  const asking = (again: boolean, block?: Duration) =>
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
      const blocking = (block: Duration) => asking(again, block);
      ending.signal.throwIfAborted();
      const decision = await decide(
        asking(again),
        waitMs > 0 ? { until, blocking, signal: ending.signal } : undefined,
      ).catch(async (error: unknown) => {
        // It may have been granted all the same.
        if (ending.signal.aborted) await release(holder).catch(() => {});
        throw error;
      });
      if (!decision.allowed) throw new DeniedError(decision);
      // When it was granted is not known here, and that it was asked for then: if much of the ttl may
      // be over, it is renewed first.
      if (decision.source !== "server" || now() - sentAt < ttlMs / 2) {
        const renew = () => answer(asking(true));
        const server = { holder, ttlMs, sentAt, now, renew, release: () => release(holder) };
        return new Lease(decision, server);
      }
    }
  } finally {
    signals.forEach((one, index) => one.removeEventListener("abort", ends[index]!));
  }
}
