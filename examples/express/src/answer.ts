/** Header fields that describe a client's limits. */

import type { Response } from "express";
import { denial, fields, type Decision } from "redis-ratelimit-client";

import type { Policy } from "./limits.js";

/** Combined decision of all limits of a caller. */
export interface Verdict extends Pick<Decision, "allowed" | "waitMs" | "source" | "error"> {
  readonly results: readonly (readonly [Policy, Decision])[];
}

/** Returns the names of the limits that denied. */
export function violated({ results }: Verdict): string[] {
  return results.flatMap(([{ name }, { allowed }]) => (allowed ? [] : [name]));
}

/**
 * Returns header fields of the limits that are not hidden. During an outage of Redis, only the
 * policies are shown, because the remaining units are unknown.
 */
export function headers({ allowed, waitMs, source, results }: Verdict): Record<string, string> {
  const each = results.flatMap(([{ hidden, limit }, decision]) =>
    hidden ? [] : [{ ...decision, limit: limit.quota }],
  );
  const shown = source === "server" ? each.filter((decision) => decision.allowed === allowed) : [];
  const [tightest = each[0]] = shown.toSorted((a, b) => (a.remaining ?? 0) - (b.remaining ?? 0));
  const { "RateLimit-Policy": policies, ...rest } = tightest
    ? fields({ ...tightest, allowed, waitMs, each, source: "server" })
    : {};
  return {
    ...(policies !== undefined && { "RateLimit-Policy": policies }),
    ...(shown.length > 0 && rest),
    ...(!allowed && waitMs !== null && { "Retry-After": `${Math.ceil(waitMs / 1000)}` }),
  };
}

export function deny(response: Response, verdict: Verdict): void {
  const { status, type, body } = denial(verdict, violated(verdict));
  response.status(status).type(type).json(body);
}
