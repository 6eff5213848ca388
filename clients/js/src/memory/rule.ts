/**
 * Interface of every algorithm: a rule is what a call brings, a usage what a key stores.
 *
 * All is in whole millionths and microseconds, as the server counts. Rounding is against the caller,
 * and waits are exact to the microsecond.
 */

/** Usage, in millionths, saturates here. */
export const MOST = 2n ** 63n - 1n;
export const UNIT = 1_000_000n;
export const DAY = 86_400n * UNIT;
/** Times, in microseconds, saturate here. */
export const LATEST = 365_000n * DAY;

/** Time to hold an allowed call, or after which a denied one passes. */
export interface Verdict {
  readonly kind: "allowed" | "after" | "never";
  readonly time: bigint;
}

export const AT_ONCE: Verdict = { kind: "allowed", time: 0n };
export const NEVER: Verdict = { kind: "never", time: 0n };

export function after(time: bigint): Verdict {
  return { kind: "after", time: max(time, 0n) };
}

const KINDS = ["allowed", "after", "never"];

/** The verdict that says to wait longer. */
export function longer(one: Verdict, other: Verdict): Verdict {
  const [a, b] = [KINDS.indexOf(one.kind), KINDS.indexOf(other.kind)];
  return a > b || (a === b && one.time >= other.time) ? one : other;
}

export function max(one: bigint, other: bigint): bigint {
  return one > other ? one : other;
}

export function min(one: bigint, other: bigint): bigint {
  return one < other ? one : other;
}

export function ceilDiv(number: bigint, by: bigint): bigint {
  return (number + by - 1n) / by;
}

/** The sum of usage, which saturates. */
export function plus(used: bigint, units: bigint): bigint {
  return min(used + units, MOST);
}

/** State of one limit. A new one has never been used. */
export interface Usage {
  readonly isUnused: boolean;
  /** Returns the time by which the clock has been set back since the last change, or 0. */
  ahead(now: bigint): bigint;
  /** Moves all instants along with a clock that was set back to `now`. */
  moveBack(now: bigint): void;
  /** The instant of the newest charge, where each charge is counted apart. */
  readonly place: bigint | undefined;
  /** Returns a place as it will be after `moveBack`; undefined if before the epoch. */
  movedPlace(place: bigint, now: bigint): bigint | undefined;
  /** Takes up to `units` of a charge back. Returns how many. */
  takeBack(place: bigint | undefined, units: bigint): bigint;
  /** The instant of recovery after a clock was set back to `now`. */
  movedRecovery(recoversAt: bigint, ahead: bigint, now: bigint): bigint;
}

export function movedPlace(usage: Usage, place: bigint, now: bigint): bigint | undefined {
  const back = usage.ahead(now);
  return place >= back ? place - back : undefined;
}

/** A usage with the same state. */
export function copyOf<U extends Usage>(usage: U): U {
  return Object.assign(Object.create(Object.getPrototypeOf(usage) as object), {
    ...structuredClone({ ...usage }),
  }) as U;
}

/** Numbers of a limit. `key` tells it from others of its kind on a key; leases have none. */
export abstract class Rule<U extends Usage = Usage> {
  abstract readonly kind: string;
  limit: bigint;
  readonly key: string | undefined;
  /** `true` if a denied caller may be told to wait (MAXWAIT). */
  readonly waits: boolean = false;

  constructor(limit: bigint, key: string | undefined) {
    this.limit = limit;
    this.key = key;
  }

  abstract unused(): U;
  abstract verdict(usage: U, now: bigint, cost: bigint): Verdict;
  /** Returns the present usage, rounded up. */
  abstract present(usage: U, now: bigint): bigint;
  /** The time until the usage has recovered. */
  abstract reset(usage: U, now: bigint): bigint;
  abstract charge(usage: U, now: bigint, cost: bigint): void;
  abstract giveBack(usage: U, now: bigint, units: bigint): void;
  /** The usage from which earlier charges can be settled; undefined if each has its own place. */
  abstract low(usage: U, now: bigint): bigint | undefined;

  remaining(usage: U, now: bigint): bigint {
    return max(this.limit - this.present(usage, now), 0n);
  }

  /** The time until usage is within the limit once `cost` more is charged. */
  debtAfter(usage: U, now: bigint, cost: bigint): bigint {
    let charged = usage;
    if (cost > 0n) {
      charged = copyOf(usage);
      this.charge(charged, now, cost);
    }
    const { kind, time } = this.verdict(charged, now, 0n);
    return kind === "after" ? time : 0n;
  }
}
