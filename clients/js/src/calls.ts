/**
 * Calls of the module's commands: their words, the keys that select the node of a cluster, and the
 * decoding of the reply. The calls are the same for every client library.
 */

import { decodeEach, decodeLimit, decodeReply, type Decision } from "./decision.js";
import type { Ban, ConcurrencyLimit, Duration, Limit, PolicyLimit } from "./limits.js";
import { limitOf, limitsOf, type LimitOrRate, type Limits, type ParsedLimits } from "./rates.js";
import { keyAndLimitOfItem, sketchOf } from "./sketches.js";

export interface Call<Reply> {
  readonly name: string;
  /** Words before the keys, such as the number of keys. */
  readonly before: readonly string[];
  readonly keys: readonly string[];
  /** Words after the keys. */
  readonly after: readonly string[];
  /** Key that selects the node of a cluster for a call without a key. */
  readonly route?: string;
  /** `true` if a replica may answer the call. */
  readonly readOnly: boolean;
  /** `true` if the call is idempotent, so that it may be resent. */
  readonly repeatable: boolean;
  readonly decode: (reply: unknown) => Reply;
}

/** Returns the words after the name of the command, in the order in which they are sent. */
export function wordsOf({ before, keys, after }: Call<unknown>): string[] {
  return before.length === 0 ? keys.concat(after) : before.concat(keys, after);
}

/**
 * Throws a TypeError if a word is not a string. Otherwise the client library would throw when it
 * sends the call, and its error would count as an outage.
 */
export function requireTextWords({ before, keys, after }: Call<unknown>): void {
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

const NO_OPTIONS: CallOptions = {};

/** Charges all the limits of a key, or none. */
export function take(key: string, limits: Limits, options = NO_OPTIONS): Call<Decision> {
  return takeParsed(key, limitsOf(limits), options);
}

/**
 * Charges all the limits of a key, or none. With `mayResend`, a call without an id is resent if its
 * reply is lost: a double charge can only deny too much.
 */
export function takeParsed(
  key: string,
  limits: ParsedLimits,
  options = NO_OPTIONS,
  mayResend = false,
): Call<Decision> {
  // Fast path: most calls have one limit and no options.
  if (options === NO_OPTIONS && !Array.isArray(limits) && !isSketchOrPolicy(limits as Limit)) {
    const limit = limits as Limit;
    return {
      name: "RL.TAKE",
      before: NONE,
      keys: [key],
      after: limit.words,
      readOnly: false,
      repeatable: mayResend,
      decode: (reply) => decodeLimit(reply as unknown[], limit, false),
    };
  }
  const { cost = 1, once } = options;
  return {
    ...decisionCall("RL.TAKE", key, limits, wordsOfOptions(options), options),
    readOnly: false,
    repeatable: mayResend || once !== undefined || cost === 0,
  };
}

const NONE: readonly string[] = [];

function isSketchOrPolicy(limit: Limit): boolean {
  return limit.sketchKey !== undefined || "policies" in limit;
}

/** Returns the decision that `take` would make, and charges nothing. */
export function peek(key: string, limits: Limits, options: PeekOptions = {}): Call<Decision> {
  return {
    ...decisionCall("RL.PEEK", key, limits, wordsOfOptions(options), options),
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
    ...decisionCall("RL.TAKE", key, limits, words, { ...options, cost: 0 }),
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
  mayResend = false,
): Call<Decision> {
  return {
    ...decisionCallOfKeys("RL.MTAKE", keyed, options),
    readOnly: false,
    repeatable: mayResend || options.once !== undefined || options.cost === 0,
  };
}

/** Returns the decision that `takeAll` would make, and charges nothing. */
export function peekAll(
  keyed: Keyed,
  options: Omit<PeekOptions, "upto" | "each" | "ban"> = {},
): Call<Decision> {
  return { ...decisionCallOfKeys("RL.MPEEK", keyed, options), readOnly: true, repeatable: true };
}

export interface AcquireOptions {
  /** Units to hold, above 0. */
  readonly cost?: number;
  /** Pass only if this holder has no lease yet. Then a repeated call is denied. */
  readonly nx?: boolean;
  /**
   * Time for which the server may wait for room before it replies; 0 waits without a timeout. All
   * later calls on the connection wait, too: use a separate connection, as `limiter.lease` does.
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
      if (!fence) return decodeReply(reply, [limit], false);
      // The token is the last element.
      const elements = reply as unknown[];
      const decision = decodeReply(elements.slice(0, -1), [limit], false);
      return decision.allowed ? decision.but({ token: Number(elements.at(-1)) }) : decision;
    },
  };
}

/** Releases leases. Returns how many of them were held. */
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

/** Bans a key, or lifts its ban if `time` is 0. Returns the remaining ban in milliseconds. */
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
 * Charges a policy for a request in a gateway. Returns 0 if the request passes, otherwise the
 * milliseconds after which it would pass, or null: never.
 */
export function delay(
  key: string,
  limit: PolicyLimit,
  options: Omit<CallOptions, "upto" | "maxWait" | "each" | "ban"> = {},
): Call<number | null> {
  const [serverKey, { words }] = sketchOf(limit) ? keyAndLimitOfItem(key, limit) : [key, limit];
  return {
    name: "RL.DELAY",
    before: [],
    keys: [serverKey],
    after: [...words.slice(1), ...wordsOfOptions(options)],
    readOnly: false,
    repeatable: options.once !== undefined || options.cost === 0,
    decode: (reply) => (Number(reply) < 0 ? null : Number(reply)),
  };
}

/** Call that returns a decision, apart from the properties that differ between take and peek. */
type DecisionCall = Omit<Call<Decision>, "readOnly" | "repeatable">;

function decisionCall(
  name: "RL.TAKE" | "RL.PEEK",
  key: string,
  limits: Limits,
  optionWords: readonly string[],
  { cost = 1, upto = false, each = false, ban }: PeekOptions,
): DecisionCall {
  const parsed = limitsOf(limits);
  const sketch = sketchOf(parsed);
  const [serverKey, first] = sketch ? keyAndLimitOfItem(key, sketch) : [key, [parsed].flat()[0]!];
  const limitList = sketch ? [first] : [parsed].flat();
  const common = { before: [], keys: [serverKey] };
  const decode = (reply: unknown) =>
    each ? decodeEach(reply, limitList, cost, upto) : decodeReply(reply, limitList, upto);
  // RL.LIMIT can be permitted to users who may not choose limits themselves.
  if (name === "RL.TAKE" && limitList.length === 1 && "policies" in first) {
    return {
      ...common,
      name: "RL.LIMIT",
      after: [...first.words.slice(1), ...optionWords],
      decode,
    };
  }
  const specs = limitList.flatMap(({ words }) => words);
  return { ...common, name, after: [...optionWords, ...specs, ...(ban?.words ?? [])], decode };
}

function decisionCallOfKeys(name: string, keyed: Keyed, options: CallOptions): DecisionCall {
  const charged = Object.entries(keyed).map(([key, limitOrRate]): [string, Limit] => {
    const limit = limitOf(limitOrRate);
    return sketchOf(limit) ? keyAndLimitOfItem(key, limit) : [key, limit];
  });
  const keys = charged.map(([key]) => key);
  const limits = charged.map(([, limit]) => limit);
  return {
    name,
    before: [`${keys.length}`],
    keys,
    after: [...wordsOfOptions(options), ...limits.flatMap(({ words }) => words)],
    decode: (reply) => decodeEach(reply, limits, options.cost ?? 1, false),
  };
}

function wordsOfOptions(options: CallOptions): string[] {
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
