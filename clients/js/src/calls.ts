/**
 * Calls of the module's commands: their words, the keys that select the node of a cluster, and the
 * decoding of the reply. All clients send the same calls.
 */

import { each, one, read, type Decision } from "./decision.js";
import type { Ban, ConcurrencyLimit, Duration, Limit, PolicyLimit } from "./limits.js";
import { limitOf, limitsOf, type LimitOrRate, type Limits, type ParsedLimits } from "./rates.js";
import { placed, sketchOf } from "./sketches.js";

export interface Call<Reply> {
  readonly name: string;
  /** Words before the keys, such as their number, and words after them. */
  readonly before: readonly string[];
  readonly keys: readonly string[];
  readonly after: readonly string[];
  /** Routing key of a call without a key: calls with one route go to one node of a cluster. */
  readonly route?: string;
  /** `true` if a replica can answer the call. */
  readonly readOnly: boolean;
  /** `true` if the call is idempotent, so that it may be resent. */
  readonly repeatable: boolean;
  readonly decode: (reply: unknown) => Reply;
}

/** Returns all words as they are sent, without the name of the command. */
export function wordsOf({ before, keys, after }: Call<unknown>): string[] {
  return before.length === 0 ? keys.concat(after) : before.concat(keys, after);
}

/**
 * Throws a TypeError if a word is not text, before anything is sent: the client's own error would
 * count as an outage.
 */
export function wordsAreText({ before, keys, after }: Call<unknown>): void {
  for (const words of [before, keys, after]) {
    for (const word of words) {
      if (typeof word !== "string") throw new TypeError(`a word must be a string: ${String(word)}`);
    }
  }
}

export interface Once {
  /**
   * Idempotency key of 1 to 256 bytes. Generate it in your own code: a client that chooses it
   * passes for free until it expires.
   */
  readonly id: string;
  /** Lifetime of the idempotency key on the server. */
  readonly ttl: Duration;
  /** `true` if the id was generated for this call, so nothing was charged under it before. */
  readonly isOurs?: boolean;
}

export interface PeekOptions {
  /**
   * Units to charge, 1 by default. 0 charges nothing. A negative cost gives back, in commands
   * without a limiter; a limiter has `giveBack`.
   */
  readonly cost?: number;
  /** Pass only if this much stays available: an amount, or `"20%"` of the limit. */
  readonly keep?: number | `${number}%`;
  /** Charge as many whole units as there are, up to the cost: `decision.granted`. */
  readonly upto?: boolean;
  /** Charge even past the limit, for units that were used already. */
  readonly force?: boolean;
  /**
   * Also allow a call that fits within this time: hold it for `decision.wait`. Token buckets only.
   */
  readonly maxWait?: Duration;
  /** Ban a key that keeps calling while it is denied. */
  readonly ban?: Ban;
  /** Also return the decision of each limit: `decision.each`. */
  readonly each?: boolean;
}

export interface CallOptions extends PeekOptions {
  /** Idempotency key: calls with the same id are charged once. */
  readonly once?: Once;
}

/** Options of a limiter's `take`. */
export interface TakeOptions extends PeekOptions {
  /**
   * Your own idempotency key, for settling the charge or for resending the call yourself. true: a
   * new key. false: none, and the call is not resent. By default a new key where charging twice
   * would matter.
   */
  readonly once?: boolean | string;
  /** Lifetime of the idempotency key, within which the charge can be settled. */
  readonly ttl?: Duration;
  /** Gives the call an idempotency key, so that `decision.settle(0)` refunds it. */
  readonly refundable?: boolean;
  /** Time to wait until the call passes. 0 by default. */
  readonly wait?: Duration;
  /** Signal that ends the wait. */
  readonly signal?: AbortSignal;
}

const PLAIN: CallOptions = {};

/** Charges all the limits of a key, or none. */
export function take(key: string, limits: Limits, options = PLAIN): Call<Decision> {
  return takeParsed(key, limitsOf(limits), options);
}

/**
 * Charges all the limits of a key, or none. With `again`, a call without an id is resent if its
 * reply is lost: a double charge can only deny too much.
 */
export function takeParsed(
  key: string,
  limits: ParsedLimits,
  options = PLAIN,
  again = false,
): Call<Decision> {
  // Most calls have one limit and no options.
  if (options === PLAIN && !Array.isArray(limits) && isPlain(limits as Limit)) {
    const limit = limits as Limit;
    return {
      name: "RL.TAKE",
      before: NONE,
      keys: [key],
      after: limit.words,
      readOnly: false,
      repeatable: again,
      decode: (reply) => read(reply as unknown[], limit, false),
    };
  }
  const { cost = 1, once } = options;
  return {
    ...deciding("RL.TAKE", key, limits, optionWords(options), options),
    readOnly: false,
    repeatable: again || once !== undefined || cost === 0,
  };
}

const NONE: readonly string[] = [];

function isPlain(limit: Limit): boolean {
  return limit.sketchKey === undefined && !("policies" in limit);
}

/** Returns the decision that `take` would make, and charges nothing. */
export function peek(key: string, limits: Limits, options: PeekOptions = {}): Call<Decision> {
  return {
    ...deciding("RL.PEEK", key, limits, optionWords(options), options),
    readOnly: true,
    repeatable: true,
  };
}

/** Corrects the charge of the call with this id to the units that it actually needed. */
export function settle(
  key: string,
  limits: Limits,
  id: string,
  cost: number,
  options: Pick<PeekOptions, "each"> = {},
): Call<Decision> {
  const words = ["SETTLE", id, `${cost}`, ...(options.each ? ["EACH"] : [])];
  return {
    ...deciding("RL.TAKE", key, limits, words, { ...options, cost: 0 }),
    readOnly: false,
    repeatable: true,
  };
}

/** Limits by their keys. In a cluster the keys must be in one slot: `{acme}:user`, `{acme}:all`. */
export type Keyed = Readonly<Record<string, LimitOrRate>>;

/** Charges limits of several keys together: all, or none. */
export function takeAll(
  keyed: Keyed,
  options: Omit<CallOptions, "upto" | "each" | "ban"> = {},
  again = false,
): Call<Decision> {
  return {
    ...decidingAll("RL.MTAKE", keyed, options),
    readOnly: false,
    repeatable: again || options.once !== undefined || options.cost === 0,
  };
}

/** Returns the decision that `takeAll` would make, and charges nothing. */
export function peekAll(
  keyed: Keyed,
  options: Omit<PeekOptions, "upto" | "each" | "ban"> = {},
): Call<Decision> {
  return { ...decidingAll("RL.MPEEK", keyed, options), readOnly: true, repeatable: true };
}

export interface AcquireOptions {
  /** Units to hold, above 0. */
  readonly cost?: number;
  /** Pass only if this holder has no lease yet. A repeated call is then denied. */
  readonly nx?: boolean;
  /**
   * Time for which the server may wait for room before it replies; 0 waits without a timeout. All
   * later calls on the connection wait, too: use a connection of its own, as `limiter.lease` does.
   */
  readonly block?: Duration;
  /** Request a fencing `token`, which is larger than that of every earlier lease. */
  readonly fence?: boolean;
}

/** Acquires or renews a lease of a concurrency limit. */
export function acquire(
  key: string,
  limit: ConcurrencyLimit,
  holder: string,
  { cost, nx = false, block, fence = false }: AcquireOptions = {},
): Call<Decision> {
  const words = [`${limit.limit}`, `${limit.ttl}`, holder];
  if (cost !== undefined) words.push("COST", `${cost}`);
  if (nx) words.push("NX");
  if (block !== undefined) words.push("BLOCK", `${block}`);
  if (fence) words.push("FENCE");
  return {
    name: "RL.ACQUIRE",
    before: [],
    keys: [key],
    after: words,
    readOnly: false,
    repeatable: !nx,
    decode: (reply) => {
      if (!fence) return one(reply, [limit], false);
      // The token is the last element.
      const words = reply as unknown[];
      const decision = one(words.slice(0, -1), [limit], false);
      return decision.allowed ? decision.but({ token: Number(words.at(-1)) }) : decision;
    },
  };
}

/** Releases leases. Returns how many were held. */
export function release(key: string, ...holders: string[]): Call<number> {
  return {
    name: "RL.RELEASE",
    before: [],
    keys: [key],
    after: holders,
    readOnly: false,
    repeatable: true,
    decode: Number,
  };
}

/** Bans a key, or with 0 lifts its ban. Returns the remaining ban in milliseconds. */
export function banKey(key: string, time: Duration): Call<number> {
  return {
    name: "RL.BAN",
    before: [],
    keys: [key],
    after: [`${time}`],
    readOnly: false,
    repeatable: true,
    decode: Number,
  };
}

/** Deletes the usage of a key. Returns `true` if there was any. */
export function reset(key: string): Call<boolean> {
  return {
    name: "DEL",
    before: [],
    keys: [key],
    after: [],
    readOnly: false,
    repeatable: true,
    decode: (reply) => Number(reply) === 1,
  };
}

/**
 * Returns the delay of a request in a gateway: 0 to pass, the milliseconds to wait, or null for
 * never.
 */
export function delay(
  key: string,
  limit: PolicyLimit,
  options: Omit<CallOptions, "upto" | "maxWait" | "each" | "ban"> = {},
): Call<number | null> {
  const [place, { words }] = sketchOf(limit) ? placed(key, limit) : [key, limit];
  return {
    name: "RL.DELAY",
    before: [],
    keys: [place],
    after: [...words.slice(1), ...optionWords(options)],
    readOnly: false,
    repeatable: options.once !== undefined || options.cost === 0,
    decode: (reply) => (Number(reply) < 0 ? null : Number(reply)),
  };
}

type Deciding = Omit<Call<Decision>, "readOnly" | "repeatable">;

function deciding(
  name: "RL.TAKE" | "RL.PEEK",
  key: string,
  given: Limits,
  options: readonly string[],
  { cost = 1, upto = false, each: withEach = false, ban }: PeekOptions,
): Deciding {
  const limits = limitsOf(given);
  const sketch = sketchOf(limits);
  const [place, first] = sketch ? placed(key, sketch) : [key, [limits].flat()[0]!];
  const several = sketch ? [first] : [limits].flat();
  const called = { before: [], keys: [place] };
  const decode = (reply: unknown) =>
    withEach ? each(reply, several, cost, upto) : one(reply, several, upto);
  // RL.LIMIT needs no permission to choose limits.
  if (name === "RL.TAKE" && several.length === 1 && "policies" in first) {
    return { ...called, name: "RL.LIMIT", after: [...first.words.slice(1), ...options], decode };
  }
  const specs = several.flatMap(({ words }) => words);
  return { ...called, name, after: [...options, ...specs, ...(ban?.words ?? [])], decode };
}

function decidingAll(name: string, keyed: Keyed, options: CallOptions): Deciding {
  const charged = Object.entries(keyed).map(([key, given]): [string, Limit] => {
    const limit = limitOf(given);
    return sketchOf(limit) ? placed(key, limit) : [key, limit];
  });
  const keys = charged.map(([key]) => key);
  const limits = charged.map(([, limit]) => limit);
  return {
    name,
    before: [`${keys.length}`],
    keys,
    after: [...optionWords(options), ...limits.flatMap(({ words }) => words)],
    decode: (reply) => each(reply, limits, options.cost ?? 1, false),
  };
}

function optionWords(options: CallOptions): string[] {
  const { cost, keep, upto, force, maxWait, once, each } = options;
  const words: string[] = [];
  if (cost !== undefined) words.push("COST", `${cost}`);
  if (upto) words.push("UPTO");
  if (force) words.push("FORCE");
  if (maxWait !== undefined) words.push("MAXWAIT", `${maxWait}`);
  if (keep !== undefined) words.push("KEEP", `${keep}`);
  if (once) words.push("ONCE", once.id, `${once.ttl}`);
  if (each) words.push("EACH");
  return words;
}
