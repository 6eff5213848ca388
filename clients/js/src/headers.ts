/** HTTP header fields and problem documents of decisions. */

import type { DecisionData } from "./decision-data.js";

/** Limit that the server reports for a policy with only shadow limits. */
const NO_LIMIT = 1_000_000_000_000;

export interface FieldOptions {
  /** `X-RateLimit-Reset` in seconds since 1970, not from now. false by default. */
  readonly unixReset?: boolean;
}

/**
 * Returns the header fields of a response:
 * - `X-RateLimit-Limit`, `-Remaining` and `-Reset`, which many clients know, for the governing
 * limit; the reset in seconds from now, or with `unixReset` in seconds since 1970.
 * - `RateLimit` and `RateLimit-Policy` for all limits of the decision:
 * draft-ietf-httpapi-ratelimit-headers-10.
 * - `Retry-After` in seconds, if the call was denied and can pass later.
 *
 * During an outage only `Retry-After`, as the limits of this process are not those of the client.
 */
export function fields(
  decision: DecisionData,
  { unixReset = false }: FieldOptions = {},
): Record<string, string> {
  const { allowed, waitMs, source = "server" } = decision;
  const result: Record<string, string> = {};
  if (source === "server" && decision.limit !== NO_LIMIT) {
    const named = namedDecisions(decision).map(([name, each]) => [quoted(name), each] as const);
    result["RateLimit-Policy"] = named.map(([name, each]) => quota(name, each)).join(", ");
    // A denial lists only the limits that deny: other limits may take longer to recover, and
    // Retry-After must not be earlier than any `t`.
    const listed = allowed ? named : named.filter(([, each]) => !each.allowed);
    result["RateLimit"] = listed.map(([name, each]) => available(name, each)).join(", ");
    result["X-RateLimit-Limit"] = `${decision.limit}`;
    result["X-RateLimit-Remaining"] = `${decision.remaining}`;
    const origin = unixReset ? Date.now() : 0;
    result["X-RateLimit-Reset"] = `${inSeconds(origin + (decision.resetMs ?? 0))}`;
  }
  if (!allowed && waitMs !== null) result["Retry-After"] = `${inSeconds(waitMs)}`;
  return result;
}

/**
 * Returns the names, as in header fields, of the limits that deny a decision. If no limit denies,
 * as for a banned key, returns the names of all limits.
 */
export function violated(decision: DecisionData): string[] {
  if (decision.allowed || decision.source === "none") return [];
  const all = namedDecisions(decision);
  const denying = all.filter(([, each]) => !each.allowed);
  return (denying.length > 0 ? denying : all).map(([name]) => name);
}

/** Response to a denied request. */
export interface Denial {
  readonly status: 429 | 503;
  readonly type: "application/problem+json";
  readonly body: object;
}

/**
 * Returns the response to a denied request: a problem document (RFC 9457) of the types that the
 * draft of the header fields defines. `violated` are the names of the limits that denied.
 */
export function denial(
  { source, waitMs }: Pick<DecisionData, "source" | "waitMs">,
  violated: readonly string[],
): Denial {
  // No limit denied: an outage is not the client's fault.
  const [status, type, title] =
    source === "none"
      ? ([
          503,
          "temporary-reduced-capacity",
          "Rate limits cannot be checked at the moment",
        ] as const)
      : ([429, "quota-exceeded", "Too many requests"] as const);
  return {
    status,
    type: "application/problem+json",
    body: {
      type: `https://iana.org/assignments/http-problem-types#${type}`,
      title,
      status,
      // During an outage no limit is violated.
      ...(source !== "none" && { "violated-policies": violated }),
      ...(waitMs === null && { detail: "This request costs more than the limit ever allows" }),
    },
  };
}

/** Returns the decision of each limit with the name of the limit in header fields. */
function namedDecisions(
  decision: DecisionData,
): (readonly [name: string, decision: DecisionData])[] {
  const all = decision.each?.length ? decision.each : [decision];
  return all.map((each, index) => {
    const name = each.name ?? decision.policy ?? each.label ?? "default";
    const isUnique = each.name !== undefined || all.length === 1;
    // A string of a structured field is printable ASCII.
    const safe = name.replace(/[^ -~]/gu, "?");
    return [isUnique ? safe : `${safe}-${index + 1}`, each] as const;
  });
}

function quoted(name: string): string {
  return `"${name.replace(/["\\]/g, "\\$&")}"`;
}

/** Formats a quota: `"user";q=200;w=120` for 200 units in 120 seconds. */
function quota(name: string, { limit, window }: DecisionData): string {
  return `${name};q=${limit}${window === undefined ? "" : `;w=${Math.max(1, Math.ceil(window))}`}`;
}

/** Formats the available units: `"user";r=42;t=30` for 42 units in the next 30 seconds. */
function available(
  name: string,
  { allowed, remaining, resetMs, waitMs, window }: DecisionData,
): string {
  // A sliding window recovers fully only after up to two windows, but has room after one.
  const maxMs = window === undefined ? Infinity : window * 1000;
  const untilMs = allowed ? Math.min(resetMs ?? 0, maxMs) : waitMs;
  return `${name};r=${remaining}${untilMs === null ? "" : `;t=${inSeconds(untilMs)}`}`;
}

function inSeconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
