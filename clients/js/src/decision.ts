/** What the server says to a call. */

import type { Limit } from "./limits.js";

export interface Decision {
  readonly allowed: boolean;
  /** Of the limit that decided: of several, the one that denies or would run out first. */
  readonly limit: number;
  /** Whole units that are left. */
  readonly remaining: number;
  /**
   * Seconds. Denied: the same call passes after this long if no other comes before it, and never if
   * null. Allowed: 0, or hold the request this long (`leakyBucket`, `maxWait`). Denied while the server
   * is away: until it is asked again.
   */
  readonly wait: number | null;
  /** The same in milliseconds. */
  readonly waitMs: number | null;
  /** Seconds until all units are back. */
  readonly reset: number;
  readonly resetMs: number;
  /** With `upto`: so many units were charged. */
  readonly granted?: number;
  /** What each limit says for itself, if the call asked for it: by `each`, or for several keys. */
  readonly each: readonly Decision[];
  /** The limit's name. */
  readonly name?: string;
  /** The policy that ruled, if the call asked for `each`. */
  readonly policy?: string;
  /** Seconds after which the limit's units are all back, where this process knows it. */
  readonly window?: number;
  /** Who decided: the server, this process during an outage, or nobody (fail open or closed). */
  readonly source: "server" | "local" | "none";
  /** The id under which the charge can be settled. */
  readonly id?: string;
  /** Why the server did not decide. */
  readonly error?: unknown;
}

/** What a limit's own five integers stand for, in milliseconds. A wait of null: never. */
export interface Said {
  readonly allowed: boolean;
  readonly limit: number;
  readonly remaining: number;
  readonly waitMs: number | null;
  readonly resetMs: number;
}

export function decisionOf(said: Said, rest: Partial<Decision> = {}): Decision {
  return {
    ...said,
    wait: said.waitMs === null ? null : said.waitMs / 1000,
    reset: said.resetMs / 1000,
    each: [],
    source: "server",
    ...rest,
  };
}

/** The reply to a call for one key. */
export function one(reply: unknown, limits: readonly Limit[], withGranted: boolean): Decision {
  // Several limits behind one answer: which of them it tells of is not known.
  const [limit, ...others] = limits;
  return read(reply as unknown[], others.length === 0 ? limit : undefined, withGranted);
}

/** The reply with what each limit says: `[allowed, wait_ms, [decision, ...], name]`. */
export function each(
  reply: unknown,
  limits: readonly Limit[],
  cost: number,
  withGranted: boolean,
): Decision {
  const [allowed, wait, decisions, policy] = reply as [unknown, unknown, unknown[][], unknown];
  const said = decisions.map((decision, index) => read(decision, limits[index], withGranted));
  const waitMs = millisOrNever(wait);
  const governing = governs(said, Number(allowed) === 1, (index) => limits[index]?.cost ?? cost);
  return {
    ...governing,
    allowed: Number(allowed) === 1,
    waitMs,
    wait: waitMs === null ? null : waitMs / 1000,
    each: said,
    ...(withGranted ? { granted: Math.min(...said.map(({ granted = 0 }) => granted)) } : {}),
    ...(policy === undefined ? {} : { policy: `${policy}` }),
  };
}

function read(reply: unknown[], limit: Limit | undefined, withGranted: boolean): Decision {
  const [allowed, quota, remaining, wait, reset, ...more] = reply;
  const granted = withGranted ? { granted: Number(more.shift()) } : {};
  // Where there is one limit the reply needs no name, and has none.
  const name = more.length > 0 ? `${more[0]}` : limit?.name;
  return decisionOf(
    {
      allowed: Number(allowed) === 1,
      limit: Number(quota),
      remaining: Number(remaining),
      waitMs: millisOrNever(wait),
      resetMs: Number(reset),
    },
    {
      ...granted,
      ...(name === undefined ? {} : { name }),
      ...(limit?.window === undefined ? {} : { window: limit.window }),
    },
  );
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
    allowed ? one.remaining / (costOf(index) || 1) : -(one.waitMs ?? Infinity);
  const ranked = decisions.map((one, index) => ({ one, rank: rank(one, index) }));
  const same = ranked.filter(({ one }) => one.allowed === allowed);
  const [first, ...others] = same.length > 0 ? same : ranked;
  if (!first) return decisionOf({ allowed, limit: 0, remaining: 0, waitMs: 0, resetMs: 0 });
  return others.reduce((least, next) => (next.rank < least.rank ? next : least), first).one;
}

/** -1 is the protocol's "never". */
function millisOrNever(wait: unknown): number | null {
  const ms = Number(wait);
  return ms < 0 ? null : ms;
}
