/**
 * Calls of the module's commands: their words, the keys that choose the node of a cluster, and what
 * the reply means. All clients send the same ones.
 */

import { each, one, read, type Decision } from "./decision.js";
import type { Ban, ConcurrencyLimit, Duration, Limit, PolicyLimit } from "./limits.js";
import { limitOf, limitsOf, type LimitOrRate, type Limits, type ParsedLimits } from "./rates.js";
import { placed, sketchOf } from "./sketches.js";

export interface Call<Reply> {
  readonly name: string;
  /** What stands before the keys, such as their number, and behind them. */
  readonly before: readonly string[];
  readonly keys: readonly string[];
  readonly after: readonly string[];
  /** For a call without a key: calls of one route go to one node of a cluster. */
  readonly route?: string;
  /** A replica can answer it. */
  readonly readOnly: boolean;
  /** Sent twice it charges once. */
  readonly repeatable: boolean;
  readonly decode: (reply: unknown) => Reply;
}

/** All of it, without the name, as it is sent. */
export function wordsOf({ before, keys, after }: Call<unknown>): string[] {
  return before.length === 0 ? keys.concat(after) : before.concat(keys, after);
}

/** Refused before anything is sent: what a client cannot send is no outage. */
export function wordsAreText({ before, keys, after }: Call<unknown>): void {
  for (const words of [before, keys, after]) {
    for (const word of words) {
      if (typeof word !== "string") throw new TypeError(`a word must be a string: ${String(word)}`);
    }
  }
}

export interface Once {
  /** 1 to 256 bytes. From your own code: until it expires, it is a free pass. */
  readonly id: string;
  /** For how long the server remembers it. */
  readonly ttl: Duration;
  /** It was made up for this one call, which has been charged under no such id before. */
  readonly isOurs?: boolean;
}

export interface PeekOptions {
  /**
   * What the call charges: 1, unless it says otherwise. 0 looks. A negative cost gives back, in
   * commands without a limiter; a limiter has `giveBack`.
   */
  readonly cost?: number;
  /** Pass only if this much stays available: an amount, or `"20%"` of the limit. */
  readonly keep?: number | `${number}%`;
  /** Charge as many whole units as there are, up to the cost: `decision.granted`. */
  readonly upto?: boolean;
  /** Charge even past the limit: what has been used already. */
  readonly force?: boolean;
  /** Let pass also what will fit within this time: hold it for `decision.wait`. Token buckets only. */
  readonly maxWait?: Duration;
  /** Bans a key that goes on calling. */
  readonly ban?: Ban;
  /** Also say what each limit says for itself: `decision.each`. */
  readonly each?: boolean;
}

export interface CallOptions extends PeekOptions {
  /** A call of the same id is charged once. */
  readonly once?: Once;
}

/** Of a limiter's `take`. */
export interface TakeOptions extends PeekOptions {
  /**
   * An idempotency key of your own, to settle the charge by or to send the call again by yourself.
   * true: a new one. false: none, and the call is not sent again. By default a new one where charging
   * twice would matter.
   */
  readonly once?: boolean | string;
  /** How long the idempotency key is remembered: as long as the charge may be settled. */
  readonly ttl?: Duration;
  /** Gives the call an idempotency key, so that `decision.settle(0)` refunds it. */
  readonly refundable?: boolean;
  /** For how long to wait until the call passes. 0 by default. */
  readonly wait?: Duration;
  /** Ends the wait, if it is aborted. */
  readonly signal?: AbortSignal;
}

const PLAIN: CallOptions = {};

/** Charges all the limits of a key, or none. */
export function take(key: string, limits: Limits, options = PLAIN): Call<Decision> {
  return takeParsed(key, limitsOf(limits), options);
}

/**
 * Charges all the limits of a key, or none. `again`: without an id it is sent again all the same, if its
 * reply is lost. Charged twice it can deny too much, where the reply that nobody got let pass.
 */
export function takeParsed(
  key: string,
  limits: ParsedLimits,
  options = PLAIN,
  again = false,
): Call<Decision> {
  // Most calls: one limit, nothing else.
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

/** Says what `take` would, and charges nothing. */
export function peek(key: string, limits: Limits, options: PeekOptions = {}): Call<Decision> {
  return {
    ...deciding("RL.PEEK", key, limits, optionWords(options), options),
    readOnly: true,
    repeatable: true,
  };
}

/** Corrects what the call of this id was charged: the units that it turned out to need. */
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

/** A limit for each key. In a cluster the keys have to be in one slot: `{acme}:user`, `{acme}:all`. */
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

/** Says what `takeAll` would, and charges nothing. */
export function peekAll(
  keyed: Keyed,
  options: Omit<PeekOptions, "upto" | "each" | "ban"> = {},
): Call<Decision> {
  return { ...decidingAll("RL.MPEEK", keyed, options), readOnly: true, repeatable: true };
}

export interface AcquireOptions {
  /** Units held, above 0. */
  readonly cost?: number;
  /** Pass only if this holder has no lease yet. A repeated call is then denied. */
  readonly nx?: boolean;
  /**
   * For how long the server may wait for room before it answers; 0: as long as it takes. All that is
   * sent behind it on its connection waits too: give it one of its own, as `limiter.lease` does.
   */
  readonly block?: Duration;
  /** The decision has the lease's `token`, larger than that of every lease before. */
  readonly fence?: boolean;
}

/** Takes a lease of a concurrency limit, or renews it. */
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
      // The token stands last.
      const words = reply as unknown[];
      const decision = one(words.slice(0, -1), [limit], false);
      return decision.allowed ? decision.but({ token: Number(words.at(-1)) }) : decision;
    },
  };
}

/** Gives leases back. Says how many there were. */
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

/** Bans a key, or with 0 lifts its ban. Says for how many milliseconds it is banned. */
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

/** Forgets all that a key has used. Says whether there was anything to forget. */
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

/** A gateway's question: 0 to go, or the milliseconds to wait; null for never. */
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
  // The form of its own that needs no permission to choose limits.
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
