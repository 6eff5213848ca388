/** Data of a decision. */
export interface DecisionData {
  readonly allowed: boolean;
  /**
   * Limit in whole units. Of several limits, the one that denies or would run out first. null
   * during an outage, unless this process applies limits of its own.
   */
  readonly limit: number | null;
  /**
   * Whole units that remain; null during an outage, unless this process applies limits of its own.
   */
  readonly remaining: number | null;
  /**
   * Milliseconds. Denied: the same call passes after this time if no other call comes first; null
   * if it never passes. Allowed: 0, or the time to hold the request (`leakyBucket`, `maxWait`).
   * Denied during an outage: the time until the server is tried again.
   */
  readonly waitMs: number | null;
  /**
   * Milliseconds until all units have recovered; null during an outage, unless this process applies
   * limits of its own.
   */
  readonly resetMs: number | null;
  /** Number of units charged, for a call with `upto`. */
  readonly granted?: number;
  /** Decisions of the single limits, for a call with `each` or for several keys. */
  readonly each?: readonly DecisionData[];
  /** Name of the limit. */
  readonly name?: string;
  /** Name under which the limit is bound. */
  readonly label?: string;
  /** Name of the policy that decided, for a call with `each`. */
  readonly policy?: string;
  /** With `policy`: `true` if one of its limits has FORCE, so that a denied call may be charged. */
  readonly forced?: boolean;
  /** Seconds until all units of the limit have recovered, if this process knows them. */
  readonly window?: number;
  /**
   * Origin of the decision: the server, limits of this process during an outage, or neither ("open"
   * or "closed").
   */
  readonly source?: "server" | "local" | "none";
  /** `true` for a denial that this process remembered without asking the server. */
  readonly remembered?: boolean;
  /** Idempotency key by which the charge can be settled. */
  readonly id?: string;
  /** Fencing token of a granted lease. */
  readonly token?: number;
  /** Reason why the server did not decide. */
  readonly error?: unknown;
}
