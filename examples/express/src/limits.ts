/** Limits of requests, and their keys in Redis. */

import type { KnownLimit, UnitsOptions } from "redis-ratelimit-client";

/** Caller and endpoint of a request. Every field becomes part of keys in Redis. */
export interface Caller {
  /** Customer. All keys of one call share the customer's slot in a cluster. */
  readonly tenant: string;
  readonly user?: string;
  readonly address: string;
  /** Name of a route. Not the requested path, because a client can invent any number of paths. */
  readonly endpoint: string;
}

export interface Policy {
  /** Name for clients and reports. */
  readonly name: string;
  readonly limit: KnownLimit;
  /** Returns the subject of the limit, such as the user; undefined if the limit does not apply. */
  readonly of: (caller: Caller) => string | undefined;
  /**
   * Handling of a limit over several tenants, whose key cannot be in the slot of every tenant:
   * "give-back": charged by a separate call, and refunded if another limit denies. UnitsOptions,
   * for few and hot keys: this process takes units in batches and spends them locally.
   */
  readonly apart?: "give-back" | UnitsOptions;
  /** `true` if clients do not see the limit, such as the capacity of the whole service. */
  readonly hidden?: boolean;
}

/** Prefix of every key. */
export const PREFIX = "rl:";

/**
 * Returns the key `{tenant}:limit:subject`, without the tenant for a limit over several tenants.
 */
export function keyOf(policy: Policy, caller: Caller): string | undefined {
  const subject = policy.of(caller);
  if (subject === undefined) return undefined;
  // The part in braces determines the slot. Names are escaped, so that braces or separators in a
  // name cannot lead to the key of another caller.
  const prefix = policy.apart ? policy.name : `{${escaped(caller.tenant)}}:${policy.name}`;
  return `${prefix}:${escaped(subject)}`;
}

/**
 * Escapes a name, so that different names stay different. Lone surrogates cannot be URI-encoded,
 * and an empty name would be no hash tag.
 */
function escaped(name: string): string {
  const safe = (character: string) =>
    character.isWellFormed()
      ? encodeURIComponent(character)
      : `%u${character.charCodeAt(0).toString(16)}`;
  return name.replace(/./gsu, safe) || "%";
}
