/**
 * Denials that this process remembers. The server's `wait` is exact, so until it is over the same call
 * would be denied again, and is answered here.
 *
 * What others take only makes the wait longer. What they give back, a reset or a ban that is lifted is
 * heard by client tracking, where the client has it (`tracking.ts`); else a denial is remembered for a
 * second at most. So is that of a policy, whose numbers can change, and that of an item of a sketch,
 * whose key changes with each call for any item.
 */

import type { Call } from "./calls.js";
import type { Decision } from "./decision.js";

export interface Denial {
  readonly key: string;
  readonly name: CallName;
  decision: Decision;
  /** When it was heard: its wait began no later. By a clock that counts milliseconds. */
  heardAt: number;
  /** Until when it holds, from when it was asked: its wait began no earlier. */
  until: number;
  /** The same call was denied before. */
  readonly isRepeated: boolean;
  /** The server is asked to tell of its end, or need not be. */
  isWatched: boolean;
}

/** Largest number of keys that are remembered, and of calls for each. */
const REMEMBERED = 10_000;
const CALLS_OF_KEY = 16;

/** How many keys are looked at for room when there is none. */
const LOOKED_AT = 8;

/** Without a word from the server that nothing has changed. */
const UNHEARD_MS = 1000;

/** A wait is told in whole milliseconds, rounded up. */
const ROUNDED_MS = 1;

/** A call without its id, under its key. */
export type CallName = string;

export function nameOf({ name, after }: Call<unknown>): CallName {
  return `${name} ${after.length === 3 ? `${after[0]} ${after[1]} ${after[2]}` : after.join(" ")}`;
}

export class Denials {
  readonly #byKey = new Map<string, Map<CallName, Denial>>();

  /** Whether any call for the key is denied: the quick look before each call. */
  has(key: string): boolean {
    return this.#byKey.has(key);
  }

  /** Returns the denial of a call that holds now. One that is over stays, to know the next by. */
  find(key: string, name: CallName, now: number): Denial | undefined {
    const denial = this.#byKey.get(key)?.get(name);
    return denial && now < denial.until ? denial : undefined;
  }

  /**
   * Remembers the denial of a call that was sent at that time: so it is forgotten before the server
   * would let it pass. Returns it, unless it was known or there is no room.
   */
  remember(
    key: string,
    name: CallName,
    decision: Decision,
    at: number,
    heardAt: number,
  ): Denial | undefined {
    const until = untilOf(decision, at, UNHEARD_MS);
    if (until <= at) return undefined;
    let calls = this.#byKey.get(key);
    if (!calls) {
      if (!this.#hasRoom(heardAt)) return undefined;
      calls = new Map();
      this.#byKey.set(key, calls);
    }
    const known = calls.get(name);
    if (known && known.until > at) return undefined;
    if (!known && calls.size >= CALLS_OF_KEY) {
      if (!isOver(calls, heardAt)) return undefined;
      calls.clear();
    }
    const isRepeated = known !== undefined;
    const denial = { key, name, decision, heardAt, until, isRepeated, isWatched: false };
    calls.set(name, denial);
    return denial;
  }

  /**
   * Makes room for a key in place of one whose denials are over. Denials that hold stay: if each new
   * one took the place of another, no call would find its own.
   */
  #hasRoom(now: number): boolean {
    if (this.#byKey.size < REMEMBERED) return true;
    let looks = LOOKED_AT;
    for (const [key, calls] of this.#byKey) {
      this.#byKey.delete(key);
      if (isOver(calls, now)) return true;
      // It is looked at again when all others have been.
      this.#byKey.set(key, calls);
      if (--looks === 0) break;
    }
    return false;
  }

  /** It stands until something is heard: unless something was, it is remembered for all its wait. */
  extend(denial: Denial, decision: Decision, at: number, heardAt: number): void {
    if (this.#byKey.get(denial.key)?.get(denial.name) !== denial) return;
    Object.assign(denial, { decision, heardAt, until: untilOf(decision, at, Infinity) });
  }

  /** What the key would answer may have changed; without a key, what any would. */
  forget(key?: string): void {
    if (key === undefined) this.#byKey.clear();
    else this.#byKey.delete(key);
  }
}

/** Returns what the server would answer now. */
export function remembered({ decision, heardAt }: Denial, now: number): Decision {
  const passed = now - heardAt;
  const left = (ms: number | null) => ms && Math.max(0, Math.ceil(ms - passed));
  return decision.but({
    waitMs: left(decision.waitMs),
    resetMs: left(decision.resetMs),
    remembered: true,
  });
}

function isOver(calls: ReadonlyMap<CallName, Denial>, now: number): boolean {
  for (const { until } of calls.values()) if (now < until) return false;
  return true;
}

/** Until when a denial that was asked at that time holds, and at most for so long. */
function untilOf({ waitMs }: Decision, at: number, mostMs: number): number {
  return at + Math.min(waitMs ?? Infinity, mostMs) - ROUNDED_MS;
}

/**
 * Whether a denial is over before it would be forgotten anyway. One that lasts for ever is asked again
 * each second, as what it says of the rest recovers meanwhile.
 */
export function isSoon({ waitMs }: Decision): boolean {
  return waitMs === null || waitMs <= UNHEARD_MS;
}
