/** What the server says to a call. */

import { RateLimitError } from "./errors.js";
import { denial, fields, violated } from "./headers.js";
import type { Limit } from "./limits.js";

/** What can be told of a decision. */
export interface Told {
  readonly allowed: boolean;
  /**
   * Of the limit that decided: of several, the one that denies or would run out first. null: nobody
   * knows, during an outage.
   */
  readonly limit: number | null;
  /** Whole units that are left; null during an outage, unless this process applies limits of its own. */
  readonly remaining: number | null;
  /**
   * Milliseconds. Denied: the same call passes after this long if no other comes before it, and never
   * if null. Allowed: 0, or hold the request this long (`leakyBucket`, `maxWait`). Denied while the
   * server is away: until it is asked again.
   */
  readonly waitMs: number | null;
  /** Milliseconds until all units are back; null during an outage. */
  readonly resetMs: number | null;
  /** With `upto`: so many units were charged. */
  readonly granted?: number;
  /** What each limit says for itself, if the call asked for it: by `each`, or for several keys. */
  readonly each?: readonly Told[];
  /** The limit's name. */
  readonly name?: string;
  /** Name under which the limit is bound. */
  readonly label?: string;
  /** The policy that ruled, if the call asked for `each`. */
  readonly policy?: string;
  /** With `policy`: whether a limit of it has FORCE, so that a denial may be a charge. */
  readonly forced?: boolean;
  /** Seconds after which the limit's units are all back, where this process knows it. */
  readonly window?: number;
  /** Where it was made: on the server, in this process in an outage, or nowhere (open or closed). */
  readonly source?: "server" | "local" | "none";
  /** A denial of the server that this process remembered: it was not asked again. */
  readonly remembered?: boolean;
  /** The idempotency key under which the charge can be settled. */
  readonly id?: string;
  /** Of a lease with `fence` that is granted: its token. */
  readonly token?: number;
  /** Why the server did not decide. */
  readonly error?: unknown;
}

/** By the call that was charged, what it turned out to cost. */
export type Settle = (id: string, cost: number) => Promise<Decision>;

export class Decision implements Told {
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

  constructor(told: Told, settle?: Settle) {
    this.allowed = told.allowed;
    this.limit = told.limit;
    this.remaining = told.remaining;
    this.wait = told.waitMs === null ? null : told.waitMs / 1000;
    this.waitMs = told.waitMs;
    this.reset = told.resetMs === null ? null : told.resetMs / 1000;
    this.resetMs = told.resetMs;
    this.each = (told.each as readonly Decision[] | undefined) ?? NONE;
    this.source = told.source ?? "server";
    if (told.granted !== undefined) this.granted = told.granted;
    if (told.name !== undefined) this.name = told.name;
    if (told.label !== undefined) this.label = told.label;
    if (told.policy !== undefined) this.policy = told.policy;
    if (told.forced !== undefined) this.forced = told.forced;
    if (told.window !== undefined) this.window = told.window;
    if (told.remembered) this.remembered = true;
    if (told.id !== undefined) this.id = told.id;
    if (told.token !== undefined) this.token = told.token;
    if (told.error !== undefined) this.error = told.error;
    this.#settle = settle;
  }

  /** The server did not decide: `error` says why, and `onOutage` what holds instead. */
  get degraded(): boolean {
    return this.source !== "server";
  }

  /** Throws a DeniedError, which has this decision, unless the call is allowed. */
  require(): this {
    if (!this.allowed) throw new DeniedError(this);
    return this;
  }

  /**
   * Corrects what the call was charged to what it turned out to cost; 0 refunds it. The call has to
   * have an id: by `refundable`, `ttl` or `once`. Nothing is charged, and so nothing settled, during
   * an outage.
   */
  async settle(cost: number): Promise<Decision> {
    if (this.source !== "server") return this;
    if (this.id === undefined || !this.#settle) {
      const why = this.allowed
        ? "the call had no id: take it with { refundable: true }"
        : "it was denied";
      throw new RateLimitError(`nothing to settle: ${why}`);
    }
    return this.#settle(this.id, cost);
  }

  /** This decision with something else told of it. */
  but(told: Partial<Told>, settle: Settle | undefined = this.#settle): Decision {
    return new Decision({ ...this, ...told }, settle);
  }
}

/**
 * Denial of a call or a lease. `decision.wait` says when it may pass. Frameworks answer it with the
 * status and the header fields of a denied request: Express, Fastify, Koa and NestJS by `status`,
 * `statusCode` and `headers`, Hono by `getResponse`.
 */
export class DeniedError extends RateLimitError {
  override readonly name = "DeniedError";
  readonly decision: Decision;
  /** 429, or 503 if the limits could not be checked. */
  readonly status: 429 | 503;
  readonly statusCode: 429 | 503;
  /** Tells frameworks that clients may read the message. */
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

  /** Returns the response to a request that is denied. */
  getResponse(): Response {
    const { status, type, body } = denial(this.decision, violated(this.decision));
    const headers = { ...this.headers, "Content-Type": type };
    return new Response(JSON.stringify(body), { status, headers });
  }
}

const NONE: readonly Decision[] = [];

/** The reply to a call for one key. */
export function one(reply: unknown, limits: readonly Limit[], withGranted: boolean): Decision {
  // Several limits behind one answer: which of them it tells of is not known.
  if (limits.length === 1) return read(reply as unknown[], limits[0], withGranted);
  const decision = read(reply as unknown[], undefined, withGranted);
  const label = limits[0]?.label;
  return label === undefined ? decision : decision.but({ label });
}

/** The reply with what each limit says: `[allowed, wait_ms, [decision, ...], name, version, FORCE]`. */
export function each(
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
  const said = decisions.map((decision, index) => read(decision, limits[index], withGranted));
  const governing = governs(said, Number(allowed) === 1, (index) => limits[index]?.cost ?? cost);
  return governing.but({
    allowed: Number(allowed) === 1,
    waitMs: millisOrNever(wait),
    each: said,
    ...(withGranted ? { granted: Math.min(...said.map(({ granted = 0 }) => granted)) } : {}),
    ...(policy === undefined ? {} : { policy: `${policy}`, forced: force !== undefined }),
  });
}

type Reading = { -readonly [Name in keyof Told]: Told[Name] };

export function read(reply: unknown[], limit: Limit | undefined, withGranted: boolean): Decision {
  const told: Reading = {
    allowed: Number(reply[0]) === 1,
    limit: Number(reply[1]),
    remaining: Number(reply[2]),
    waitMs: millisOrNever(reply[3]),
    resetMs: Number(reply[4]),
  };
  let next = 5;
  if (withGranted) told.granted = Number(reply[next++]);
  // Where there is one limit the reply needs no name, and has none.
  const name = reply.length > next ? `${reply[next]}` : limit?.name;
  if (name !== undefined) told.name = name;
  if (limit?.window !== undefined) told.window = limit.window;
  if (limit?.label !== undefined) told.label = limit.label;
  return new Decision(told);
}

/**
 * The server's rule: of those that deny, the one with the longest wait; else the one that would run
 * out first under calls like this. A limit in the shadow may deny what passes, and does not govern.
 */
export function governs(
  decisions: readonly Decision[],
  allowed: boolean,
  costOf: (index: number) => number,
): Decision {
  const rank = (one: Decision, index: number) =>
    allowed ? (one.remaining ?? 0) / (costOf(index) || 1) : -(one.waitMs ?? Infinity);
  const ranked = decisions.map((one, index) => ({ one, rank: rank(one, index) }));
  const same = ranked.filter(({ one }) => one.allowed === allowed);
  const [first, ...others] = same.length > 0 ? same : ranked;
  if (!first) return new Decision({ allowed, limit: 0, remaining: 0, waitMs: 0, resetMs: 0 });
  return others.reduce((least, next) => (next.rank < least.rank ? next : least), first).one;
}

/** -1 is the protocol's "never". */
function millisOrNever(wait: unknown): number | null {
  const ms = Number(wait);
  return ms < 0 ? null : ms;
}
