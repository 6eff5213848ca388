/** Denials of a limiter: lookup, storing, and tracking of their keys. */

import type { Call } from "./calls.js";
import type { Connection } from "./connection.js";
import type { Decision } from "./decision.js";
import { isSoon, nameOf, remembered, type Denial } from "./denials.js";

export class Remembering {
  readonly #connection: Connection;
  readonly #now: () => number;

  constructor(connection: Connection, now: () => number) {
    this.#connection = connection;
    this.#now = now;
  }

  /** Returns the remembered decision on a call, as the server would report it now. */
  find(key: string, call: Call<Decision>): Decision | undefined {
    const { denials } = this.#connection;
    if (!denials.has(key)) return undefined;
    const now = this.#now();
    const denial = denials.find(key, nameOf(call), now);
    if (!denial) return undefined;
    if (!denial.isWatched) this.#watch(call, denial);
    return remembered(denial, now);
  }

  /** Remembers the denial of a call that was sent at `at`. */
  remember(key: string, call: Call<Decision>, said: Decision, at: number): void {
    const denial = this.#connection.denials.remember(key, nameOf(call), said, at, this.#now());
    if (!denial) return;
    // A policy's limits can change without a change of the key, and the key of an item changes with
    // each call for any item. Both are remembered for a second.
    if (call.name !== "RL.TAKE" || call.keys[0] !== key || isSoon(said)) denial.isWatched = true;
    else if (denial.isRepeated) this.#watch(call, denial);
  }

  /** Tracks the key of a repeated denial, and remembers it while the server reports no change. */
  #watch(call: Call<Decision>, denial: Denial): void {
    denial.isWatched = true;
    void this.#connection.tracking.watch(call, denial, this.#now);
  }
}
