/** Limits of which nothing recovers while a test runs: tests count, and wait for nothing. */

import { tokenBucket } from "redis-ratelimit-client";

import type { Policy } from "../../src/limits.js";

export const DAY = 86_400;

/** A limit of which one comes back a day. */
export function quota(units: number) {
  return tokenBucket(units, 1, DAY);
}

export function perUser(units: number): Policy {
  return { name: "user", limit: quota(units), of: ({ user }) => user };
}

export function perAddress(units: number): Policy {
  return { name: "ip", limit: quota(units), of: ({ address }) => address };
}

/** For calls that must not be given up, however busy the machine is. */
export const PATIENT = { timeout: 30 };

export const ALICE = { headers: { authorization: "Bearer alice-token" } };
export const BOB = { headers: { authorization: "Bearer bob-token" } };
export const CAROL = { headers: { authorization: "Bearer carol-token" } };
