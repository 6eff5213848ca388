/** Clock for tests. */

import { seconds, type Duration } from "../limits.js";

/**
 * Clock that stands still until it is moved, for `new Limiter("memory", { clock })`. Calls with
 * `wait` advance it.
 */
export class ManualClock {
  #micros: number;

  /** Creates a clock that starts at this instant, by default now. */
  constructor(now: Date | number = Date.now()) {
    this.#micros = Number(now) * 1000;
  }

  /** Milliseconds since 1970. */
  get now(): number {
    return this.#micros / 1000;
  }

  /** Moves the clock by seconds, or by a duration such as `"1m"`. */
  advance(time: Duration): void {
    this.#micros += Math.round(seconds(time) * 1_000_000);
  }

  /** Sets the clock to an instant, earlier or later. */
  set(now: Date | number): void {
    this.#micros = Number(now) * 1000;
  }
}
