/** The limits of requests, and the keys of Redis that count them. */

import type { KnownLimit, UnitsOptions } from "redis-ratelimit-client";

/** The caller, and what it asks for. Every part of it ends up in keys of Redis. */
export interface Caller {
  /** The customer. All that one call charges together must lie in one slot of a cluster: its. */
  readonly tenant: string;
  readonly user?: string;
  readonly address: string;
  /** The name of a route, never the path that was asked for: anybody can invent a million paths. */
  readonly endpoint: string;
}

export interface Policy {
  /** Name for clients and reports. */
  readonly name: string;
  readonly limit: KnownLimit;
  /** Whose units these are, such as the user's. undefined: not for this caller. */
  readonly of: (caller: Caller) => string | undefined;
  /**
   * For a limit over several tenants, which cannot be in the slot of each:
   * "give-back": charged by a call of its own, and given back if another limit then denies.
   * A batch, for few and hot keys: this process takes units by it, and mostly spends without a call.
   */
  readonly apart?: "give-back" | UnitsOptions;
  /** Not told to clients: how much the whole service can take is nobody's business. */
  readonly hidden?: boolean;
}

/** Prefix of every key. */
export const PREFIX = "rl:";

/** `{tenant}:limit:whose`, and without the tenant for what lies apart. */
export function keyOf(policy: Policy, caller: Caller): string | undefined {
  const subject = policy.of(caller);
  if (subject === undefined) return undefined;
  // Only what is between braces decides the slot. Names are escaped, so that no tenant and no user
  // can bring braces or separators along, and with them another's key.
  const place = policy.apart ? policy.name : `{${escaped(caller.tenant)}}:${policy.name}`;
  return `${place}:${escaped(subject)}`;
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
