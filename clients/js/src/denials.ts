/**
 * Cache of denials in this process. The server's `wait` is exact: until it is over the same call
 * would be denied again, so this process answers it.
 *
 * Other charges only make the wait longer. Units given back, a reset or a lifted ban shorten it.
 * Client tracking reports these changes from the second denial of a call on (`tracking.ts`).
 * Without tracking, a denial is remembered for a second at most. A denial by a policy or a sketch
 * is never tracked: the limits of a policy can change, and the key of a sketch changes with each
 * call for any item.
 */

import type { Call } from "./calls.js";
import type { Decision } from "./decision.js";

export interface Denial {
  readonly key: string;
  readonly name: CallName;
  /** Decision of the server, as of `receivedAt`. */
  decision: Decision;
  /** Time of the reply in milliseconds: the wait began no later. */
  receivedAt: number;
  /**
   * End of the denial in milliseconds, counted from the time of sending: the wait began no earlier.
   */
  until: number;
  /** `true` if the same call was denied before. */
  readonly isRepeated: boolean;
  /** `true` if the key is tracked, or must not be. */
  isWatched: boolean;
}

/** Maximum number of remembered keys. */
const MAX_KEYS = 10_000;
/** Maximum number of remembered calls of each key. */
const MAX_CALLS = 16;

/** Number of keys that are checked for expired denials when there is no room. */
const CHECKED_KEYS = 8;

/** Milliseconds for which a denial of a key without tracking is remembered. */
const UNTRACKED_MS = 1000;

/** Milliseconds by which a wait may be too long, as the server rounds it up. */
const ROUNDING_ERROR_MS = 1;

/** Command and arguments of a call without its id, which identify the denial at its key. */
export type CallName = string;

export function nameOf({ name, after }: Call<unknown>): CallName {
  return `${name} ${after.length === 3 ? `${after[0]} ${after[1]} ${after[2]}` : after.join(" ")}`;
}

export class Denials {
  readonly #byKey = new Map<string, Map<CallName, Denial>>();

  /** Returns `true` if any denial of the key is remembered: a quick check before each call. */
  has(key: string): boolean {
    return this.#byKey.has(key);
  }

  /**
   * Returns the unexpired denial of a call. Expired ones stay stored, to recognize repeated
   * denials.
   */
  find(key: string, name: CallName, now: number): Denial | undefined {
    const denial = this.#byKey.get(key)?.get(name);
    return denial && now < denial.until ? denial : undefined;
  }

  /**
   * Remembers the denial of a call until shortly before the server would let the call pass. Returns
   * the denial, or undefined if it was known or there is no room.
   */
  remember(
    key: string,
    name: CallName,
    decision: Decision,
    sentAt: number,
    receivedAt: number,
  ): Denial | undefined {
    const until = untilOf(decision, sentAt, UNTRACKED_MS);
    if (until <= sentAt) return undefined;
    let calls = this.#byKey.get(key);
    if (!calls) {
      if (!this.#makeRoom(receivedAt)) return undefined;
      calls = new Map();
      this.#byKey.set(key, calls);
    }
    const existing = calls.get(name);
    if (existing && existing.until > sentAt) return undefined;
    if (!existing && calls.size >= MAX_CALLS) {
      if (!haveExpired(calls, receivedAt)) return undefined;
      calls.clear();
    }
    const isRepeated = existing !== undefined;
    const denial = { key, name, decision, receivedAt, until, isRepeated, isWatched: false };
    calls.set(name, denial);
    return denial;
  }

  /**
   * Returns `true` if there is room for a key, if necessary after evicting a key with only expired
   * denials. Unexpired denials are not evicted: each eviction would cost a call for each call
   * saved.
   */
  #makeRoom(now: number): boolean {
    if (this.#byKey.size < MAX_KEYS) return true;
    let checks = CHECKED_KEYS;
    for (const [key, calls] of this.#byKey) {
      this.#byKey.delete(key);
      if (haveExpired(calls, now)) return true;
      // Moves the key to the end, so that the next search checks other keys first.
      this.#byKey.set(key, calls);
      if (--checks === 0) break;
    }
    return false;
  }

  /** Remembers the denial of a tracked key for its entire wait, unless the denial was removed. */
  extend(denial: Denial, decision: Decision, sentAt: number, receivedAt: number): void {
    if (this.#byKey.get(denial.key)?.get(denial.name) !== denial) return;
    Object.assign(denial, { decision, receivedAt, until: untilOf(decision, sentAt, Infinity) });
  }

  /** Removes the denials of a key, whose usage may have changed, or of all keys. */
  forget(key?: string): void {
    if (key === undefined) this.#byKey.clear();
    else this.#byKey.delete(key);
  }
}

/** Returns a remembered decision with the wait that is left at `now`. */
export function remembered({ decision, receivedAt }: Denial, now: number): Decision {
  const passed = now - receivedAt;
  const remaining = (ms: number | null) => ms && Math.max(0, Math.ceil(ms - passed));
  return decision.but({
    waitMs: remaining(decision.waitMs),
    resetMs: remaining(decision.resetMs),
    remembered: true,
  });
}

/** Returns `true` if all denials of a key have expired. */
function haveExpired(calls: ReadonlyMap<CallName, Denial>, now: number): boolean {
  for (const { until } of calls.values()) if (now < until) return false;
  return true;
}

/** Returns the end of the denial of a call, at most `maxMs` after the call was sent. */
function untilOf({ waitMs }: Decision, sentAt: number, maxMs: number): number {
  return sentAt + Math.min(waitMs ?? Infinity, maxMs) - ROUNDING_ERROR_MS;
}

/**
 * Returns `true` if a denial outlasts the time for which it is remembered without tracking. A
 * denial without end is refreshed each second, as the usage that it reports recovers meanwhile.
 */
export function isWorthTracking({ waitMs }: Decision): boolean {
  return waitMs !== null && waitMs > UNTRACKED_MS;
}
