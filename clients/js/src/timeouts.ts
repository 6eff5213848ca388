/**
 * Timeouts of calls, counted by time in which this process could have received the reply.
 *
 * A process that was busy for a second may have unread replies in its sockets, so this second must
 * not count as waiting. Time therefore passes in ticks, and one turn of the event loop counts as at
 * most one tick. Before a call times out, the sockets are read once more, and again while they have
 * replies.
 */

/** Number of ticks in the timeout of most calls. */
const TICKS = 10;

/** Shortest tick in milliseconds, given the precision of timers. */
const MIN_TICK_MS = 2;

/** Call with a timeout. */
export interface Awaited {
  /** Ticks passed so far. */
  ticks: number;
  /** Number of ticks until the timeout. */
  readonly allowedTicks: number;
  /**
   * Ticks passed so far while a connection was being established. They do not count in `ticks`.
   */
  connectingTicks: number;
  /** Number of ticks until the timeout of connecting. */
  readonly allowedConnectingTicks: number;
  isConnecting(): boolean;
  /** Ends the call after its timeout. */
  giveUp(): void;
}

export class Timeouts {
  readonly #tickMs: number;
  readonly #awaited = new Set<Awaited>();
  #timer: NodeJS.Timeout | undefined;
  /** Number of calls ended so far, to find out if a read of the sockets brought replies. */
  #endedCalls = 0;

  constructor(timeoutMs: number) {
    this.#tickMs = Math.max(MIN_TICK_MS, timeoutMs / TICKS);
  }

  /** Returns the number of ticks of a time, plus one for the tick that has begun. */
  ticksOf(ms: number): number {
    return Math.ceil(ms / this.#tickMs) + 1;
  }

  begin(awaited: Awaited): void {
    this.#awaited.add(awaited);
    this.#timer ??= setInterval(() => this.#tick(), this.#tickMs);
  }

  end(awaited: Awaited): void {
    this.#awaited.delete(awaited);
    this.#endedCalls++;
  }

  #tick(): void {
    if (this.#awaited.size === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
      return;
    }
    const timedOut: Awaited[] = [];
    for (const call of this.#awaited) {
      const isLate = call.isConnecting()
        ? ++call.connectingTicks >= call.allowedConnectingTicks
        : ++call.ticks >= call.allowedTicks;
      if (isLate) timedOut.push(call);
    }
    if (timedOut.length > 0) this.#giveUpAfterRead(timedOut);
  }

  /**
   * Times out calls after the next read of the sockets, so that received replies are handled first.
   */
  #giveUpAfterRead(timedOut: readonly Awaited[]): void {
    const endedBefore = this.#endedCalls;
    setImmediate(() => {
      const remaining = timedOut.filter((call) => this.#awaited.has(call));
      if (remaining.length === 0) return;
      if (this.#endedCalls > endedBefore) this.#giveUpAfterRead(remaining);
      else for (const call of remaining) call.giveUp();
    });
  }
}
