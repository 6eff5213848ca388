/** Limits that do not recover during a test. */

import { tokenBucket } from "redis-ratelimit-client";

import type { Policy } from "../../src/limits.js";

export const DAY = 86_400;

/** Limit that recovers one unit per day. */
export function quota(units: number) {
  return tokenBucket(units, 1, DAY);
}

export function perUser(units: number): Policy {
  return { name: "user", limit: quota(units), of: ({ user }) => user };
}

export function perAddress(units: number): Policy {
  return { name: "ip", limit: quota(units), of: ({ address }) => address };
}

/** Timeout that is long enough for a busy machine. */
export const LONG_TIMEOUT = { timeout: 30 };

export const ALICE = { headers: { authorization: "Bearer alice-token" } };
export const BOB = { headers: { authorization: "Bearer bob-token" } };
export const CAROL = { headers: { authorization: "Bearer carol-token" } };
