/**
 * Interfaces of the algorithms: `Rule`, the limit of a call, and `Usage`, its state in a key.
 *
 * Units are whole millionths and times whole microseconds, as on the server. Rounding is against
 * the caller, and waits are exact to the microsecond.
 */

/** Upper bound at which usage, in millionths, saturates. */
export const MAX_USAGE = 2n ** 63n - 1n;
/** Number of millionths in a unit. */
export const UNIT = 1_000_000n;
/** Number of microseconds in a day. */
export const DAY = 86_400n * UNIT;
/** Upper bound at which times, in microseconds, saturate. */
export const LATEST = 365_000n * DAY;

/**
 * Outcome of a limit. `time` is the time to hold an allowed call, or after which a denied call
 * passes.
 */
export interface Verdict {
  readonly kind: "allowed" | "after" | "never";
  readonly time: bigint;
}

export const ALLOWED_NOW: Verdict = { kind: "allowed", time: 0n };
export const NEVER_ALLOWED: Verdict = { kind: "never", time: 0n };

export function after(time: bigint): Verdict {
  return { kind: "after", time: max(time, 0n) };
}

const KINDS = ["allowed", "after", "never"];

/** Returns the verdict with the longer wait. */
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

export function ceilDiv(number: bigint, divisor: bigint): bigint {
  return (number + divisor - 1n) / divisor;
}

/** Adds usage, with saturation. */
export function saturatingAdd(used: bigint, units: bigint): bigint {
  return min(used + units, MAX_USAGE);
}

/** State of one limit. */
export interface Usage {
  readonly isUnused: boolean;
  /** Returns how far the clock was set back since the last change, or 0. */
  ahead(now: bigint): bigint;
  /** Shifts all timestamps after the clock was set back to `now`. */
  moveBack(now: bigint): void;
  /** Identity of the newest charge, if usage keeps charges apart. */
  readonly place: bigint | undefined;
  /** Returns the place of a charge after `moveBack`, or undefined if it is before the epoch. */
  movedPlace(place: bigint, now: bigint): bigint | undefined;
  /** Takes back up to `units` of a charge. Returns the number of units taken back. */
  takeBack(place: bigint | undefined, units: bigint): bigint;
  /** Returns the instant of recovery after the clock was set back to `now`. */
  movedRecovery(recoversAt: bigint, ahead: bigint, now: bigint): bigint;
}

/** Returns `place`, an instant, after `moveBack`, or undefined if it is before the epoch. */
export function movedPlace(usage: Usage, place: bigint, now: bigint): bigint | undefined {
  const back = usage.ahead(now);
  return place >= back ? place - back : undefined;
}

/** Returns a copy of a usage. */
export function copyOf<U extends Usage>(usage: U): U {
  return Object.assign(Object.create(Object.getPrototypeOf(usage) as object), {
    ...structuredClone({ ...usage }),
  }) as U;
}

/**
 * Parameters of a limit. `key` distinguishes limits of one algorithm on a key; leases have none.
 */
export abstract class Rule<U extends Usage = Usage> {
  abstract readonly kind: string;
  limit: bigint;
  readonly key: string | undefined;
  /** `true` if a call with MAXWAIT can reserve units that are not there yet. */
  readonly canReserve: boolean = false;

  constructor(limit: bigint, key: string | undefined) {
    this.limit = limit;
    this.key = key;
  }

  /** Returns usage of nothing. */
  abstract unused(): U;
  abstract verdict(usage: U, now: bigint, cost: bigint): Verdict;
  /** Returns the current usage, rounded up. */
  abstract present(usage: U, now: bigint): bigint;
  /** Returns the time until the usage has recovered. */
  abstract reset(usage: U, now: bigint): bigint;
  abstract charge(usage: U, now: bigint, cost: bigint): void;
  abstract giveBack(usage: U, now: bigint, units: bigint): void;
  /**
   * Returns the usage up to which earlier charges can still be settled, or undefined if usage keeps
   * charges apart.
   */
  abstract settleableUsage(usage: U, now: bigint): bigint | undefined;

  remaining(usage: U, now: bigint): bigint {
    return max(this.limit - this.present(usage, now), 0n);
  }

  /** Returns the time until the usage is within the limit, after `cost` more units are charged. */
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
