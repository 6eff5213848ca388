/** What a client is told of its limits. */

import type { Told } from "./decision.js";

const NO_LIMIT = 1_000_000_000_000;

export interface FieldOptions {
  /** `X-RateLimit-Reset` in seconds since 1970, not from now. false by default. */
  readonly unixReset?: boolean;
}

/**
 * - `X-RateLimit-Limit`, `-Remaining` and `-Reset`, which many clients know: of the limit that
 *   decided, the reset in seconds from now, or with `unixReset` in seconds since 1970.
 * - `RateLimit` and `RateLimit-Policy`, of all limits that the decision knows of:
 *   draft-ietf-httpapi-ratelimit-headers-10.
 * - `Retry-After`, in seconds, if the call was denied and can pass later.
 *
 * During an outage only the last: what this process allows meanwhile is no client's limit.
 */
export function fields(
  decision: Told,
  { unixReset = false }: FieldOptions = {},
): Record<string, string> {
  const { allowed, waitMs, source = "server" } = decision;
  const result: Record<string, string> = {};
  // A policy whose limits are all in the shadow limits nobody, and says so by this number.
  if (source === "server" && decision.limit !== NO_LIMIT) {
    const named = labelled(decision).map(([name, one]) => [quoted(name), one] as const);
    result["RateLimit-Policy"] = named.map(([name, one]) => quota(name, one)).join(", ");
    // Retry-After is to be no earlier than any time told beside it, and other limits may take longer
    // to recover than those that deny. So a denial tells of these only.
    const told = allowed ? named : named.filter(([, one]) => !one.allowed);
    result["RateLimit"] = told.map(([name, one]) => available(name, one)).join(", ");
    result["X-RateLimit-Limit"] = `${decision.limit}`;
    result["X-RateLimit-Remaining"] = `${decision.remaining}`;
    const since = unixReset ? Date.now() : 0;
    result["X-RateLimit-Reset"] = `${inSeconds(since + (decision.resetMs ?? 0))}`;
  }
  if (!allowed && waitMs !== null) result["Retry-After"] = `${inSeconds(waitMs)}`;
  return result;
}

/**
 * The limits that a denied decision violates, by the names that they have in header fields. Of a key
 * that is banned no limit may be to blame, and all are named.
 */
export function violated(decision: Told): string[] {
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
 * The answer to a request that is denied: a problem document (RFC 9457), of the types that the draft
 * of the header fields defines. `violated` are the names of the limits that denied.
 */
export function denial(
  { source, waitMs }: Pick<Told, "source" | "waitMs">,
  violated: readonly string[],
): Denial {
  // No limit denied: the server is away, and that is not the client's doing.
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
      // While the server is away, none is violated.
      ...(source !== "none" && { "violated-policies": violated }),
      ...(waitMs === null && { detail: "This request costs more than the limit ever allows" }),
    },
  };
}

/** Returns each limit that the decision knows of, with its name, or the one it is bound under. */
function labelled(whole: Told): (readonly [name: string, one: Told])[] {
  const all = whole.each?.length ? whole.each : [whole];
  return all.map((one, index) => {
    const name = one.name ?? whole.policy ?? one.label ?? "default";
    const isUnique = one.name !== undefined || all.length === 1;
    // Of a structured field, a string: printable ASCII.
    const safe = name.replace(/[^ -~]/gu, "?");
    return [isUnique ? safe : `${safe}-${index + 1}`, one] as const;
  });
}

function quoted(name: string): string {
  return `"${name.replace(/["\\]/g, "\\$&")}"`;
}

/** `"user";q=200;w=120`: so many units in so many seconds. */
function quota(name: string, { limit, window }: Told): string {
  return `${name};q=${limit}${window === undefined ? "" : `;w=${Math.max(1, Math.ceil(window))}`}`;
}

/** `"user";r=42;t=30`: so many units are left for the next seconds. */
function available(name: string, { allowed, remaining, resetMs, waitMs, window }: Told): string {
  // A sliding window takes up to two windows to forget all, but one to make room.
  const most = window === undefined ? Infinity : window * 1000;
  const until = allowed ? Math.min(resetMs ?? 0, most) : waitMs;
  return `${name};r=${remaining}${until === null ? "" : `;t=${inSeconds(until)}`}`;
}

function inSeconds(ms: number): number {
  return Math.ceil(ms / 1000);
}
