/** Remembered denials of a limiter: lookup, storing, and tracking of their keys. */

import type { Call } from "./calls.js";
import type { Connection } from "./connection.js";
import type { Decision } from "./decision.js";
import { isWorthTracking, nameOf, remembered, type Denial } from "./denials.js";

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

  /** Remembers the denial of a call that was sent at `sentAt`. */
  remember(key: string, call: Call<Decision>, decision: Decision, sentAt: number): void {
    const { denials } = this.#connection;
    const denial = denials.remember(key, nameOf(call), decision, sentAt, this.#now());
    if (!denial) return;
    // Tracking cannot report a change of a policy's limits, and the key of a sketch changes with
    // each call for any item. Their denials are remembered for a second.
    const isTrackable = call.name === "RL.TAKE" && call.keys[0] === key;
    if (!isTrackable || !isWorthTracking(decision)) denial.isWatched = true;
    else if (denial.isRepeated) this.#watch(call, denial);
  }

  /** Tracks the key of a repeated denial, and remembers it while the server reports no change. */
  #watch(call: Call<Decision>, denial: Denial): void {
    denial.isWatched = true;
    void this.#connection.tracking.watch(call, denial, this.#now);
  }
}
