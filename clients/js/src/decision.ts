/** Decisions of a limiter, and the decoding of the server's replies. */

import type { DecisionData } from "./decision-data.js";
import { RateLimitError } from "./errors.js";
import { denial, fields, violated } from "./headers.js";
import type { Limit } from "./limits.js";

/** Function that corrects the charge of a call to its actual cost. */
export type Settle = (id: string, cost: number) => Promise<Decision>;

export class Decision implements DecisionData {
  readonly allowed: boolean;
  readonly limit: number | null;
  readonly remaining: number | null;
  /** `waitMs` in seconds. */
  readonly wait: number | null;
  readonly waitMs: number | null;
  /** `resetMs` in seconds. */
  readonly reset: number | null;
  readonly resetMs: number | null;
  readonly each: readonly Decision[];
  readonly source: "server" | "local" | "none";
  declare readonly granted?: number;
  declare readonly name?: string;
  declare readonly label?: string;
  declare readonly policy?: string;
  declare readonly forced?: boolean;
  declare readonly window?: number;
  declare readonly remembered?: boolean;
  declare readonly id?: string;
  declare readonly token?: number;
  declare readonly error?: unknown;
  #settle: Settle | undefined;

  constructor(data: DecisionData, settle?: Settle) {
    this.allowed = data.allowed;
    this.limit = data.limit;
    this.remaining = data.remaining;
    this.wait = data.waitMs === null ? null : data.waitMs / 1000;
    this.waitMs = data.waitMs;
    this.reset = data.resetMs === null ? null : data.resetMs / 1000;
    this.resetMs = data.resetMs;
    this.each = (data.each as readonly Decision[] | undefined) ?? NO_DECISIONS;
    this.source = data.source ?? "server";
    if (data.granted !== undefined) this.granted = data.granted;
    if (data.name !== undefined) this.name = data.name;
    if (data.label !== undefined) this.label = data.label;
    if (data.policy !== undefined) this.policy = data.policy;
    if (data.forced !== undefined) this.forced = data.forced;
    if (data.window !== undefined) this.window = data.window;
    if (data.remembered) this.remembered = true;
    if (data.id !== undefined) this.id = data.id;
    if (data.token !== undefined) this.token = data.token;
    if (data.error !== undefined) this.error = data.error;
    this.#settle = settle;
  }

  /** `true` if the server did not decide: `error` is the reason, and `onOutage` the fallback. */
  get degraded(): boolean {
    return this.source !== "server";
  }

  /** Returns the decision itself, or throws a DeniedError unless the call is allowed. */
  require(): this {
    if (!this.allowed) throw new DeniedError(this);
    return this;
  }

  /**
   * Corrects the charge to the actual cost; 0 refunds it. The call must have an id, by
   * `refundable`, `ttl` or `once`. Returns the decision unchanged if the server did not decide.
   */
  async settle(cost: number): Promise<Decision> {
    if (this.source !== "server") return this;
    if (this.id === undefined || !this.#settle) {
      const reason = this.allowed
        ? "the call had no id: take it with { refundable: true }"
        : "it was denied";
      throw new RateLimitError(`nothing to settle: ${reason}`);
    }
    return this.#settle(this.id, cost);
  }

  /** Returns a copy of this decision with `data` replaced. */
  but(data: Partial<DecisionData>, settle: Settle | undefined = this.#settle): Decision {
    return new Decision({ ...this, ...data }, settle);
  }
}

/**
 * Error for a denied call or lease. `decision.wait` is the time until the call may pass. Frameworks
 * respond with the status and the header fields of a denied request: Express, Fastify, Koa and
 * NestJS by `status`, `statusCode` and `headers`, Hono by `getResponse`.
 */
export class DeniedError extends RateLimitError {
  override readonly name = "DeniedError";
  readonly decision: Decision;
  /** HTTP status: 429, or 503 if the limits could not be checked. */
  readonly status: 429 | 503;
  readonly statusCode: 429 | 503;
  /** Allows frameworks to send the message to clients. */
  readonly expose = true;

  constructor(decision: Decision) {
    const { error, limit, wait } = decision;
    const when = wait === null ? "never" : `again in ${wait} s`;
    super(`denied: ${error instanceof Error ? error.message : `the limit is ${limit}, ${when}`}`);
    this.decision = decision;
    this.status = denial(decision, []).status;
    this.statusCode = this.status;
  }

  /** Header fields of the response, such as Retry-After. */
  get headers(): Record<string, string> {
    return fields(this.decision);
  }

  /** Returns the response to a denied request. */
  getResponse(): Response {
    const { status, type, body } = denial(this.decision, violated(this.decision));
    const headers = { ...this.headers, "Content-Type": type };
    return new Response(JSON.stringify(body), { status, headers });
  }
}

const NO_DECISIONS: readonly Decision[] = [];

/** Decodes the reply to a call for one key without EACH. */
export function decodeReply(
  reply: unknown,
  limits: readonly Limit[],
  withGranted: boolean,
): Decision {
  // A single reply for several limits does not name the limit that it describes.
  if (limits.length === 1) return decodeLimit(reply as unknown[], limits[0], withGranted);
  const decision = decodeLimit(reply as unknown[], undefined, withGranted);
  const label = limits[0]?.label;
  return label === undefined ? decision : decision.but({ label });
}

/**
 * Decodes the reply with the decision of each limit: `[allowed, wait_ms, [decision, ...], name,
 * version, FORCE]`.
 */
export function decodeEach(
  reply: unknown,
  limits: readonly Limit[],
  cost: number,
  withGranted: boolean,
): Decision {
  const [allowed, wait, decisions, policy, , force] = reply as [
    unknown,
    unknown,
    unknown[][],
    ...unknown[],
  ];
  const each = decisions.map((decision, index) =>
    decodeLimit(decision, limits[index], withGranted),
  );
  const costOf = (index: number) => limits[index]?.cost ?? cost;
  return governingDecision(each, Number(allowed) === 1, costOf).but({
    allowed: Number(allowed) === 1,
    waitMs: millisOrNever(wait),
    each,
    ...(withGranted ? { granted: Math.min(...each.map(({ granted = 0 }) => granted)) } : {}),
    ...(policy === undefined ? {} : { policy: `${policy}`, forced: force !== undefined }),
  });
}

type MutableData = { -readonly [Name in keyof DecisionData]: DecisionData[Name] };

/** Decodes the decision of one limit: `[allowed, limit, remaining, wait_ms, reset_ms, ...]`. */
export function decodeLimit(
  reply: unknown[],
  limit: Limit | undefined,
  withGranted: boolean,
): Decision {
  const data: MutableData = {
    allowed: Number(reply[0]) === 1,
    limit: Number(reply[1]),
    remaining: Number(reply[2]),
    waitMs: millisOrNever(reply[3]),
    resetMs: Number(reply[4]),
  };
  let index = 5;
  if (withGranted) data.granted = Number(reply[index++]);
  // The reply names the limit only if there are several.
  const name = reply.length > index ? `${reply[index]}` : limit?.name;
  if (name !== undefined) data.name = name;
  if (limit?.window !== undefined) data.window = limit.window;
  if (limit?.label !== undefined) data.label = limit.label;
  return new Decision(data);
}

/**
 * Returns the governing decision by the server's rule: for a denied call the denial with the
 * longest wait; for an allowed call the limit that would run out first under further calls of the
 * same cost. A shadow limit that denies an allowed call does not govern.
 */
export function governingDecision(
  decisions: readonly Decision[],
  allowed: boolean,
  costOf: (index: number) => number,
): Decision {
  const rankOf = ({ remaining, waitMs }: Decision, index: number) =>
    allowed ? (remaining ?? 0) / (costOf(index) || 1) : -(waitMs ?? Infinity);
  const ranked = decisions.map((decision, index) => ({ decision, rank: rankOf(decision, index) }));
  const agreeing = ranked.filter(({ decision }) => decision.allowed === allowed);
  const [first, ...others] = agreeing.length > 0 ? agreeing : ranked;
  if (!first) return new Decision({ allowed, limit: 0, remaining: 0, waitMs: 0, resetMs: 0 });
  return others.reduce((lowest, next) => (next.rank < lowest.rank ? next : lowest), first).decision;
}

/** Converts a wait in milliseconds, where -1 means never. */
function millisOrNever(wait: unknown): number | null {
  const ms = Number(wait);
  return ms < 0 ? null : ms;
}
