/** What a client is told of its limits. */

import { serializeList, type Item, type Parameters } from "structured-headers";

import type { Decision, Policy, Verdict } from "./limits.js";

/**
 * X-RateLimit-*, which many clients know: of one limit, in seconds from now.
 * RateLimit and RateLimit-Policy, of all limits: draft-ietf-httpapi-ratelimit-headers-11.
 * Retry-After, if it was denied.
 *
 * While Redis is away nobody knows what is left, and that is left out: what this process allows
 * meanwhile is no client's limit. The policies are what they were.
 */
export function fields(verdict: Verdict): Record<string, string> {
  const shown = [...verdict.decisions].filter(([policy]) => !policy.hidden);
  const denied = shown.filter(([, decision]) => !decision.allowed);
  const result: Record<string, string> = {};

  if (shown.length > 0) {
    result["RateLimit-Policy"] = list(shown.map(([policy]) => quota(policy)));
  }
  // Retry-After is to be no earlier than the end of any window told beside it, and the other limits
  // may need longer to recover. So a denial tells of those only that denied.
  const told = verdict.isLocal ? [] : verdict.allowed ? shown : denied;
  if (told.length > 0) {
    result["RateLimit"] = list(told.map(([policy, decision]) => available(policy, decision)));
    const [, tightest] = told.reduce((a, b) => (b[1].remaining < a[1].remaining ? b : a));
    result["X-RateLimit-Limit"] = `${tightest.limit}`;
    result["X-RateLimit-Remaining"] = `${tightest.remaining}`;
    result["X-RateLimit-Reset"] = `${seconds(tightest.resetMs)}`;
  }
  // A wait of -1 is for ever: this cost is more than the limit, and no retry will help.
  if (!verdict.allowed && verdict.waitMs >= 0) {
    result["Retry-After"] = `${seconds(verdict.waitMs)}`;
  }
  return result;
}

/** "user";q=200;w=120: so many units in so many seconds. */
function quota({ name, limit }: Policy): Item {
  const parameters: Parameters = new Map([
    ["q", Math.floor(limit.quota)],
    ["w", Math.max(1, Math.ceil(limit.seconds))],
  ]);
  return [name, parameters];
}

/** "user";r=42;t=30: so many units are left for the next seconds. */
function available({ name, limit }: Policy, decision: Decision): Item {
  const parameters: Parameters = new Map([["r", decision.remaining]]);
  // A sliding window takes up to two windows to forget all, but one to make room.
  const untilMs = decision.allowed
    ? Math.min(decision.resetMs, limit.seconds * 1000)
    : decision.waitMs;
  if (untilMs >= 0) parameters.set("t", seconds(untilMs));
  return [name, parameters];
}

function seconds(ms: number): number {
  return Math.ceil(ms / 1000);
}

const list = serializeList;
