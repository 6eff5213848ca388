/** What is limited: how much, whose, and where it is counted. */

export interface Limit {
  /** As the module takes it in a call, without the cost. */
  readonly words: readonly string[];
  /** So many units, which come back within so many seconds. */
  readonly quota: number;
  readonly seconds: number;
}

/** A burst of `capacity`, then `refill` every so many seconds. */
export function tokenBucket(capacity: number, refill: number, seconds: number): Limit {
  return {
    words: ["TOKENBUCKET", `${capacity}`, `${refill}`, `${seconds}s`],
    quota: capacity,
    seconds: (capacity * seconds) / refill,
  };
}

/** So many in any window of so many seconds, roughly: see the module's README for how roughly. */
export function sliding(quota: number, seconds: number): Limit {
  return { words: ["SLIDING", `${quota}`, `${seconds}s`], quota, seconds };
}

/** Never more than that in any window, wherever it begins. */
export function strict(quota: number, seconds: number): Limit {
  return { words: ["SLIDING", `${quota}`, `${seconds}s`, "STRICT"], quota, seconds };
}

/** Who is asking, and for what. Every part of it ends up in keys of Redis. */
export interface Caller {
  /** The customer. All that one call charges together must lie in one slot of a cluster: its. */
  readonly tenant: string;
  readonly user?: string;
  readonly address: string;
  /** The name of a route, never the path that was asked for: anybody can invent a million paths. */
  readonly endpoint: string;
}

export interface Policy {
  /** What clients and reports call it. */
  readonly name: string;
  readonly limit: Limit;
  /** Whose units these are, such as the user's. undefined: not for this caller. */
  readonly of: (caller: Caller) => string | undefined;
  /**
   * For a limit over several tenants, which cannot be in the slot of each:
   * "give-back": charged by a call of its own, and given back if another limit then denies.
   * lease: this process takes so many units at a time, and mostly spends without a call.
   */
  readonly apart?: "give-back" | { readonly lease: number };
  /** Not told to clients: how much the whole service can take is nobody's business. */
  readonly hidden?: boolean;
}

/** What one limit says: the five integers of the module's reply. */
export interface Decision {
  readonly allowed: boolean;
  readonly limit: number;
  readonly remaining: number;
  /** Until this would be allowed, -1 if it never is. */
  readonly waitMs: number;
  /** Until all units are back. */
  readonly resetMs: number;
}

/** What all of a caller's limits say together. */
export interface Verdict {
  readonly allowed: boolean;
  readonly waitMs: number;
  readonly decisions: ReadonlyMap<Policy, Decision>;
  /** Redis was away, and this process decided by its share of the limits. */
  readonly isLocal?: boolean;
}

/** What every key begins with. */
export const PREFIX = "rl";

/** `rl:{tenant}:limit:whose`, and without the tenant for what lies apart. */
export function keyOf(policy: Policy, caller: Caller, prefix: string): string | undefined {
  const subject = policy.of(caller);
  if (subject === undefined) return undefined;
  // Only what is between braces decides the slot. Names are escaped, so that no tenant and no user
  // can bring braces or separators along, and with them another's key.
  const place = policy.apart ? policy.name : `{${escaped(caller.tenant)}}:${policy.name}`;
  return `${prefix}:${place}:${escaped(subject)}`;
}

/**
 * No two names become one. Half of a surrogate pair is no character that could be encoded; and an
 * empty tag would be none.
 */
function escaped(name: string): string {
  const safe = (character: string) =>
    character.isWellFormed()
      ? encodeURIComponent(character)
      : `%u${character.charCodeAt(0).toString(16)}`;
  return name.replace(/./gsu, safe) || "%";
}

/** The wait until every one that denied would allow: -1 if one of them never will. */
export function longestWait(decisions: Iterable<Decision>): number {
  const waits = [...decisions].filter((one) => !one.allowed).map((one) => one.waitMs);
  return waits.includes(-1) ? -1 : Math.max(0, ...waits);
}
