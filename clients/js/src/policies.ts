/** The limits that a server keeps under a name. */

import type { Call } from "./calls.js";
import type { Ban, Duration } from "./limits.js";
import { limitsOf, type Limits } from "./rates.js";

export interface PolicySetOptions {
  /** Leave a policy that exists as it is. */
  readonly nx?: boolean;
  /** Set it only over this version; otherwise it is an error that names the one that stands. */
  readonly version?: number;
  /** Bans a key that goes on calling. */
  readonly ban?: Ban;
}

export interface PolicyCounts {
  readonly calls: number;
  readonly admitted: number;
  readonly denied: number;
  /** Admitted, with at most a fifth of the limit left. */
  readonly near: number;
  readonly shadow_denied: number;
  readonly banned: number;
  /** Calls whose id had been charged before. */
  readonly repeated: number;
}

export interface PolicyInfo {
  /** The microsecond at which this version was set: it grows with each set. */
  readonly version: number;
  readonly setAt: Date;
  readonly scale: number;
  /** Milliseconds until the scale is 1 again; null: until it is changed. */
  readonly scaleMs: number | null;
  /** As RL.POLICYSET takes it. */
  readonly specs: string;
  /** Counts of the outcomes of calls, on the server that was asked. */
  readonly counts: PolicyCounts;
}

export interface PolicyScale {
  readonly version: number;
  readonly factor: number;
  /** Milliseconds until it is 1 again; null: until it is changed. */
  readonly ms: number | null;
}

export interface PolicyEntry {
  readonly name: string;
  readonly version: number;
  readonly specs: string;
  readonly scale: number;
  /** Milliseconds until the scale is 1 again; null: until it is changed. */
  readonly scaleMs: number | null;
}

/** Sets a policy. Says the version that now stands. */
export function policySet(
  name: string,
  limits: Limits,
  { nx = false, version, ban }: PolicySetOptions = {},
): Call<number> {
  const condition = nx ? ["NX"] : version === undefined ? [] : ["VERSION", `${version}`];
  const specs = [limitsOf(limits)].flat().flatMap(({ words, sketchKey }) => {
    if (!sketchKey) return words;
    throw new TypeError("the key of a sketch comes with a call: policy(name, { key })");
  });
  if (ban) specs.push(...ban.words);
  // A version, once set, does not stand any more: sent again, the call would be refused.
  return call("RL.POLICYSET", name, [name, ...condition, ...specs], version === undefined, Number);
}

/** What there is to know about a policy; undefined if there is none. */
export function policyGet(name: string): Call<PolicyInfo | undefined> {
  return { ...call("RL.POLICYGET", name, [name], true, infoOf), readOnly: true };
}

/** All policies, or those whose names match a pattern as in KEYS. */
export function policyList(pattern?: string): Call<PolicyEntry[]> {
  const words = pattern === undefined ? [] : ["MATCH", pattern];
  const decode = (reply: unknown) =>
    (reply as unknown[][]).map(([name, version, specs, scale, ms]) => ({
      name: `${name}`,
      version: Number(version),
      specs: `${specs}`,
      scale: Number(scale),
      scaleMs: millisOrNever(ms),
    }));
  return { ...call("RL.POLICYLIST", undefined, words, true, decode), readOnly: true };
}

export interface PolicyDeleteOptions {
  /** Delete only this version; otherwise it is an error that names the one that stands. */
  readonly version?: number;
}

/** Deletes a policy. Says whether there was one. */
export function policyDelete(name: string, { version }: PolicyDeleteOptions = {}): Call<boolean> {
  const condition = version === undefined ? [] : ["VERSION", `${version}`];
  // Sent again, it would find that version gone.
  const repeatable = version === undefined;
  return call(
    "RL.POLICYDEL",
    name,
    [name, ...condition],
    repeatable,
    (reply) => Number(reply) === 1,
  );
}

/** Multiplies a policy's limits by 0 to 1000; after `duration` the factor is 1 again. */
export function policyScale(name: string, factor: number, duration?: Duration): Call<PolicyScale> {
  const until = duration === undefined ? [] : ["FOR", `${duration}`];
  return call("RL.POLICYSCALE", name, [name, `${factor}`, ...until], true, scaleOf);
}

export interface PolicyStepOptions {
  /** MUL stops here: 0.01 by default. */
  readonly least?: number;
  /** ADD stops here: 1 by default. */
  readonly most?: number;
  /** Does nothing if the last step of this kind was less than this ago. */
  readonly every?: Duration;
  /** After this the factor is 1 again. */
  readonly duration?: Duration;
}

/** Multiplies the factor that a policy is scaled by; by one brake, however many workers call. */
export function policyMultiply(
  name: string,
  factor: number,
  options: Omit<PolicyStepOptions, "most"> = {},
): Call<PolicyScale> {
  return step(name, ["MUL", `${factor}`], options);
}

/** Adds to the factor that a policy is scaled by. */
export function policyAdd(
  name: string,
  amount: number,
  options: Omit<PolicyStepOptions, "least"> = {},
): Call<PolicyScale> {
  return step(name, ["ADD", `${amount}`], options);
}

function step(
  name: string,
  words: readonly string[],
  { least, most, every, duration }: PolicyStepOptions,
): Call<PolicyScale> {
  const options = { MIN: least, MAX: most, EVERY: every, FOR: duration };
  const given = Object.entries(options).flatMap(([word, value]) =>
    value === undefined ? [] : [word, `${value}`],
  );
  // Sent twice it would be two steps.
  return call("RL.POLICYSCALE", name, [name, ...words, ...given], false, scaleOf);
}

function scaleOf(reply: unknown): PolicyScale {
  const [version, scale, ms] = reply as unknown[];
  return { version: Number(version), factor: Number(scale), ms: millisOrNever(ms) };
}

/**
 * In a cluster any primary can be told, and all know it within a second. Here one name always goes
 * to one primary, so that who sets a policy can read it at once, and NX and VERSION hold.
 */
function call<Reply>(
  name: string,
  route: string | undefined,
  words: readonly string[],
  repeatable: boolean,
  decode: (reply: unknown) => Reply,
): Call<Reply> {
  return {
    name,
    before: words,
    keys: [],
    after: [],
    ...(route === undefined ? {} : { route }),
    readOnly: false,
    repeatable,
    decode,
  };
}

function infoOf(reply: unknown): PolicyInfo | undefined {
  if (reply === null || reply === undefined) return undefined;
  const { version, set_at, scale, scale_ms, specs, counts } = fieldsOf(reply);
  return {
    version: Number(version),
    setAt: new Date(Number(set_at)),
    scale: Number(scale),
    scaleMs: millisOrNever(scale_ms),
    specs: `${specs}`,
    counts: Object.fromEntries(
      Object.entries(fieldsOf(counts)).map(([name, count]) => [name, Number(count)]),
    ) as unknown as PolicyCounts,
  };
}

/** A map is a flat array in RESP2; in RESP3 clients make an object or a Map of it. */
function fieldsOf(reply: unknown): Record<string, unknown> {
  if (reply instanceof Map) return Object.fromEntries(reply as Map<string, unknown>);
  if (!Array.isArray(reply)) return reply as Record<string, unknown>;
  const flat: unknown[] = reply;
  return Object.fromEntries(
    flat.flatMap((name, index) => (index % 2 === 0 ? [[`${name}`, flat[index + 1]]] : [])),
  );
}

function millisOrNever(ms: unknown): number | null {
  return Number(ms) < 0 ? null : Number(ms);
}

/** `limiter.policies`: see docs/commands.md for what they are. */
export class Policies {
  readonly #answer: <Reply>(call: Call<Reply>) => Promise<Reply>;

  constructor(answer: <Reply>(call: Call<Reply>) => Promise<Reply>) {
    this.#answer = answer;
  }

  /** Sets a policy. Returns the version that now stands. */
  async set(name: string, limits: Limits, options: PolicySetOptions = {}): Promise<number> {
    return this.#answer(policySet(name, limits, options));
  }

  /** What there is to know about a policy; undefined if there is none. */
  async get(name: string): Promise<PolicyInfo | undefined> {
    return this.#answer(policyGet(name));
  }

  /** All policies, or those whose names match a pattern as in KEYS. */
  async list(pattern?: string): Promise<PolicyEntry[]> {
    return this.#answer(policyList(pattern));
  }

  /** Deletes policies, or the `version` of one. Returns how many there were. */
  async delete(name: string, options: PolicyDeleteOptions): Promise<number>;
  async delete(...names: string[]): Promise<number>;
  async delete(...words: (string | PolicyDeleteOptions)[]): Promise<number> {
    const last = words.at(-1);
    const options = typeof last === "object" ? last : {};
    const names = (typeof last === "object" ? words.slice(0, -1) : words) as string[];
    if (names.length === 0 || (options.version !== undefined && names.length > 1)) {
      throw new TypeError("policies are deleted by their names, or one by its name and version");
    }
    const deleted = names.map((name) => this.#answer(policyDelete(name, options)));
    return (await Promise.all(deleted)).filter(Boolean).length;
  }

  /** Multiplies the limits of a policy by 0 to 1000; after `duration` the factor is 1 again. */
  async scale(name: string, factor: number, duration?: Duration): Promise<PolicyScale> {
    return this.#answer(policyScale(name, factor, duration));
  }

  /** Multiplies the factor that stands by 0 to 1, once in `every`, not below `least`. */
  async multiply(
    name: string,
    factor: number,
    options: Omit<PolicyStepOptions, "most"> = {},
  ): Promise<PolicyScale> {
    return this.#answer(policyMultiply(name, factor, options));
  }

  /** Adds to the factor that stands, once in `every`, not above `most`. */
  async add(
    name: string,
    amount: number,
    options: Omit<PolicyStepOptions, "least"> = {},
  ): Promise<PolicyScale> {
    return this.#answer(policyAdd(name, amount, options));
  }
}
