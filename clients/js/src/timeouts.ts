/**
 * How long calls are waited for: by time in which this process could have heard the answer.
 *
 * A process that was busy for a second has waited for nothing: the answers are in its sockets. So time
 * passes in ticks, and a turn of the event loop is one tick at most, however long it took. And before
 * a call is given up, the sockets are read once more, and again as long as they bring answers.
 */

/** Of the patience of most calls. */
const TICKS = 10;

/** The shortest tick in milliseconds: timers are no more exact than that. */
const LEAST_TICK_MS = 2;

/** What is waited for. */
export interface Awaited {
  /** Ticks passed so far. */
  ticks: number;
  /** Ticks that may pass. */
  readonly patience: number;
  /** Ticks in which a connection was being made: these have a time of their own. */
  connecting: number;
  readonly connectPatience: number;
  isConnecting(): boolean;
  /** Time is up. */
  giveUp(): void;
}

export class Patience {
  readonly #tickMs: number;
  readonly #awaited = new Set<Awaited>();
  #timer: NodeJS.Timeout | undefined;
  /** Answers so far: whether a look has brought any. */
  #answers = 0;

  constructor(timeoutMs: number) {
    this.#tickMs = Math.max(LEAST_TICK_MS, timeoutMs / TICKS);
  }

  /** The ticks of so many milliseconds. The one that runs already does not count. */
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
    const late: Awaited[] = [];
    for (const one of this.#awaited) {
      const isLate = one.isConnecting()
        ? ++one.connecting >= one.connectPatience
        : ++one.ticks >= one.patience;
      if (isLate) late.push(one);
    }
    if (late.length > 0) this.#look(late);
  }

  /** Behind the next reading of the sockets, so that what has arrived is heard. */
  #look(late: readonly Awaited[]): void {
    const before = this.#answers;
    setImmediate(() => {
      const still = late.filter((one) => this.#awaited.has(one));
      if (still.length === 0) return;
      if (this.#answers > before) this.#look(still);
      else for (const one of still) one.giveUp();
    });
  }
}
