/** The header fields that tell a client about its limits. */

import type { Response } from "express";
import { denial, fields, type Decision } from "redis-ratelimit-client";

import type { Policy } from "./limits.js";

/** The combined decision of all limits of a caller. */
export interface Verdict extends Pick<Decision, "allowed" | "waitMs" | "source" | "error"> {
  readonly said: readonly (readonly [Policy, Decision])[];
}

/** The limits that denied. */
export function violated({ said }: Verdict): string[] {
  return said.flatMap(([{ name }, { allowed }]) => (allowed ? [] : [name]));
}

/**
 * Header fields of the limits that are not hidden. Without Redis nobody knows what is left, and that
 * is left out: what this process allows meanwhile is no client's limit. The policies are what they
 * were.
 */
export function headers({ allowed, waitMs, source, said }: Verdict): Record<string, string> {
  const each = said.flatMap(([{ hidden, limit }, decision]) =>
    hidden ? [] : [{ ...decision, limit: limit.quota }],
  );
  const told = source === "server" ? each.filter((one) => one.allowed === allowed) : [];
  const [tightest = each[0]] = told.toSorted((a, b) => (a.remaining ?? 0) - (b.remaining ?? 0));
  const { "RateLimit-Policy": policies, ...rest } = tightest
    ? fields({ ...tightest, allowed, waitMs, each, source: "server" })
    : {};
  return {
    ...(policies !== undefined && { "RateLimit-Policy": policies }),
    ...(told.length > 0 && rest),
    ...(!allowed && waitMs !== null && { "Retry-After": `${Math.ceil(waitMs / 1000)}` }),
  };
}

export function deny(response: Response, verdict: Verdict): void {
  const { status, type, body } = denial(verdict, violated(verdict));
  response.status(status).type(type).json(body);
}
