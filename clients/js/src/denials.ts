/**
 * Cache of denials in this process. The server's `wait` is exact: until it is over the same call
 * would be denied again, so this process answers it.
 *
 * Other charges only make the wait longer. Units given back, a reset or a lifted ban shorten it;
 * client tracking reports these, if the client supports it (`tracking.ts`). Otherwise a denial is
 * remembered for a second at most. The same holds for a policy, whose limits can change, and for an
 * item of a sketch, whose key changes with each call for any item.
 */

import type { Call } from "./calls.js";
import type { Decision } from "./decision.js";

export interface Denial {
  readonly key: string;
  readonly name: CallName;
  decision: Decision;
  /** Time of the reply: the wait began no later. In milliseconds. */
  receivedAt: number;
  /** End of the denial, counted from the time of sending: the wait began no earlier. */
  until: number;
  /** `true` if the same call was denied before. */
  readonly isRepeated: boolean;
  /** `true` if the key is tracked, or need not be. */
  isWatched: boolean;
}

/** Upper bounds of remembered keys, and of calls per key. */
const REMEMBERED = 10_000;
const CALLS_OF_KEY = 16;

/** Number of keys that are checked for expired denials when there is no room. */
const LOOKED_AT = 8;

/** Milliseconds for which a denial of a key without tracking is remembered. */
const UNTRACKED_MS = 1000;

/** Rounding error of a wait, which the server rounds up to whole milliseconds. */
const ROUNDED_MS = 1;

/** Words of a call without its id: the name of a denial under its key. */
export type CallName = string;

export function nameOf({ name, after }: Call<unknown>): CallName {
  return `${name} ${after.length === 3 ? `${after[0]} ${after[1]} ${after[2]}` : after.join(" ")}`;
}

export class Denials {
  readonly #byKey = new Map<string, Map<CallName, Denial>>();

  /** Returns `true` if any call for the key is denied: a quick check before each call. */
  has(key: string): boolean {
    return this.#byKey.has(key);
  }

  /** Returns the denial of a call if it holds. Expired denials stay, to recognize repeated ones. */
  find(key: string, name: CallName, now: number): Denial | undefined {
    const denial = this.#byKey.get(key)?.get(name);
    return denial && now < denial.until ? denial : undefined;
  }

  /**
   * Remembers the denial of a call that was sent at `at`. The denial ends before the server would
   * let the call pass. Returns it, unless it was known or there is no room.
   */
  remember(
    key: string,
    name: CallName,
    decision: Decision,
    at: number,
    receivedAt: number,
  ): Denial | undefined {
    const until = untilOf(decision, at, UNTRACKED_MS);
    if (until <= at) return undefined;
    let calls = this.#byKey.get(key);
    if (!calls) {
      if (!this.#hasRoom(receivedAt)) return undefined;
      calls = new Map();
      this.#byKey.set(key, calls);
    }
    const existing = calls.get(name);
    if (existing && existing.until > at) return undefined;
    if (!existing && calls.size >= CALLS_OF_KEY) {
      if (!isOver(calls, receivedAt)) return undefined;
      calls.clear();
    }
    const isRepeated = existing !== undefined;
    const denial = { key, name, decision, receivedAt, until, isRepeated, isWatched: false };
    calls.set(name, denial);
    return denial;
  }

  /**
   * Makes room for a key by evicting one whose denials are over. Denials that hold stay: if each
   * new one evicted another, no call would find its own.
   */
  #hasRoom(now: number): boolean {
    if (this.#byKey.size < REMEMBERED) return true;
    let checks = LOOKED_AT;
    for (const [key, calls] of this.#byKey) {
      this.#byKey.delete(key);
      if (isOver(calls, now)) return true;
      // Move it to the end, so that the others are checked first.
      this.#byKey.set(key, calls);
      if (--checks === 0) break;
    }
    return false;
  }

  /** Remembers the denial of a tracked key for its entire wait, unless the key has changed. */
  extend(denial: Denial, decision: Decision, at: number, receivedAt: number): void {
    if (this.#byKey.get(denial.key)?.get(denial.name) !== denial) return;
    Object.assign(denial, { decision, receivedAt, until: untilOf(decision, at, Infinity) });
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

function isOver(calls: ReadonlyMap<CallName, Denial>, now: number): boolean {
  for (const { until } of calls.values()) if (now < until) return false;
  return true;
}

/** Returns the end of a denial of a call sent at `at`, at most `mostMs` later. */
function untilOf({ waitMs }: Decision, at: number, mostMs: number): number {
  return at + Math.min(waitMs ?? Infinity, mostMs) - ROUNDED_MS;
}

/**
 * Returns `true` if tracking a denial is not worthwhile, as it expires soon. A denial without end
 * is refreshed each second, as the usage that it reports recovers meanwhile.
 */
export function isSoon({ waitMs }: Decision): boolean {
  return waitMs === null || waitMs <= UNTRACKED_MS;
}
