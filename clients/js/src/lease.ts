/** A lease of a concurrency limit, renewed for as long as the work takes. */

import type { Decision } from "./decision.js";
import { LeaseLostError } from "./errors.js";
import type { Duration } from "./limits.js";

export interface LeaseOptions {
  /** Who holds it, 1 to 256 bytes. A new name by default: two of one name share one lease. */
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
      const { allowed } = await this.#server.renew();
      if (this.#isOver) return;
      if (allowed) this.#holds(sentAt);
      else this.#lose("expired, and others hold all there is");
    } catch {
      if (this.#isOver) return;
      // Until it expires, it may still be renewed.
      const soon = this.#server.ttlMs / RENEWALS_IN_A_TTL / 4;
      this.#renewal = setTimeout(() => void this.#renew(), soon).unref();
    }
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
