/**
 * Timeouts of calls, counted by time in which this process could have received the reply.
 *
 * A process that was busy for a second has not waited: replies may be in its sockets. So time
 * passes in ticks, and a turn of the event loop counts as one tick at most, however long it took.
 * Before a call times out, the sockets are read once more, and again while they have replies.
 */

/** Number of ticks in the timeout of most calls. */
const TICKS = 10;

/** Shortest tick in milliseconds, given the precision of timers. */
const LEAST_TICK_MS = 2;

/** Call with a timeout. */
export interface Awaited {
  /** Ticks passed so far. */
  ticks: number;
  /** Number of ticks until the timeout. */
  readonly allowedTicks: number;
  /**
   * Number of ticks in which a connection was being established, which have a timeout of their own.
   */
  connecting: number;
  readonly connectTicks: number;
  isConnecting(): boolean;
  /** Ends the call after its timeout. */
  giveUp(): void;
}

export class Timeouts {
  readonly #tickMs: number;
  readonly #awaited = new Set<Awaited>();
  #timer: NodeJS.Timeout | undefined;
  /** Number of replies so far, to find out if a read brought any. */
  #answers = 0;

  constructor(timeoutMs: number) {
    this.#tickMs = Math.max(LEAST_TICK_MS, timeoutMs / TICKS);
  }

  /** Returns the number of ticks of a time, not counting the current one. */
  ticksOf(ms: number): number {
    return Math.ceil(ms / this.#tickMs) + 1;
  }

  begin(awaited: Awaited): void {
    this.#awaited.add(awaited);
    this.#timer ??= setInterval(() => this.#tick(), this.#tickMs);
  }

  end(awaited: Awaited): void {
    this.#awaited.delete(awaited);
    this.#answers++;
  }

  #tick(): void {
    if (this.#awaited.size === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
      return;
    }
    const timedOut: Awaited[] = [];
    for (const one of this.#awaited) {
      const isLate = one.isConnecting()
        ? ++one.connecting >= one.connectTicks
        : ++one.ticks >= one.allowedTicks;
      if (isLate) timedOut.push(one);
    }
    if (timedOut.length > 0) this.#look(timedOut);
  }

  /**
   * Times out calls after the next read of the sockets, so that received replies are handled first.
   */
  #look(timedOut: readonly Awaited[]): void {
    const before = this.#answers;
    setImmediate(() => {
      const still = timedOut.filter((one) => this.#awaited.has(one));
      if (still.length === 0) return;
      if (this.#answers > before) this.#look(still);
      else for (const one of still) one.giveUp();
    });
  }
}
