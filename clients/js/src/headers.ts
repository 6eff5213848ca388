/** HTTP header fields and problem documents of decisions. */

import type { DecisionData } from "./decision.js";

const NO_LIMIT = 1_000_000_000_000;

export interface FieldOptions {
  /** `X-RateLimit-Reset` in seconds since 1970, not from now. false by default. */
  readonly unixReset?: boolean;
}

/**
 * Returns the header fields of a response:
 * - `X-RateLimit-Limit`, `-Remaining` and `-Reset`, which many clients know, for the limit that
 * decided; the reset in seconds from now, or with `unixReset` in seconds since 1970.
 * - `RateLimit` and `RateLimit-Policy` for all limits of the decision:
 * draft-ietf-httpapi-ratelimit-headers-10.
 * - `Retry-After` in seconds, if the call was denied and can pass later.
 *
 * During an outage only `Retry-After`, as the limits of this process are not the client's.
 */
export function fields(
  decision: DecisionData,
  { unixReset = false }: FieldOptions = {},
): Record<string, string> {
  const { allowed, waitMs, source = "server" } = decision;
  const result: Record<string, string> = {};
  // A policy whose limits are all shadow limits reports this number as its limit.
  if (source === "server" && decision.limit !== NO_LIMIT) {
    const named = labelled(decision).map(([name, one]) => [quoted(name), one] as const);
    result["RateLimit-Policy"] = named.map(([name, one]) => quota(name, one)).join(", ");
    // Retry-After must not be earlier than any `t`, and other limits may take longer to recover
    // than those that deny. So a denial lists only the latter.
    const listed = allowed ? named : named.filter(([, one]) => !one.allowed);
    result["RateLimit"] = listed.map(([name, one]) => available(name, one)).join(", ");
    result["X-RateLimit-Limit"] = `${decision.limit}`;
    result["X-RateLimit-Remaining"] = `${decision.remaining}`;
    const since = unixReset ? Date.now() : 0;
    result["X-RateLimit-Reset"] = `${inSeconds(since + (decision.resetMs ?? 0))}`;
  }
  if (!allowed && waitMs !== null) result["Retry-After"] = `${inSeconds(waitMs)}`;
  return result;
}

/**
 * Returns the limits that a denied decision violates, by their names in header fields. A banned key
 * may have no limit that denies: then all are named.
 */
export function violated(decision: DecisionData): string[] {
  if (decision.allowed || decision.source === "none") return [];
  const all = labelled(decision);
  const denying = all.filter(([, one]) => !one.allowed);
  return (denying.length > 0 ? denying : all).map(([name]) => name);
}

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

/** Returns the limits of a decision with their names, or with the names that they are bound to. */
function labelled(whole: DecisionData): (readonly [name: string, one: DecisionData])[] {
  const all = whole.each?.length ? whole.each : [whole];
  return all.map((one, index) => {
    const name = one.name ?? whole.policy ?? one.label ?? "default";
    const isUnique = one.name !== undefined || all.length === 1;
    // A string of a structured field is printable ASCII.
    const safe = name.replace(/[^ -~]/gu, "?");
    return [isUnique ? safe : `${safe}-${index + 1}`, one] as const;
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
  // A sliding window takes up to two windows to recover fully, but one to make room.
  const most = window === undefined ? Infinity : window * 1000;
  const until = allowed ? Math.min(resetMs ?? 0, most) : waitMs;
  return `${name};r=${remaining}${until === null ? "" : `;t=${inSeconds(until)}`}`;
}

function inSeconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
