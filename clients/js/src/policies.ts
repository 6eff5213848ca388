/** Policies: named limits stored on the server. */

import type { Call } from "./calls.js";
import type { Ban, Duration } from "./limits.js";
import { limitsOf, type Limits } from "./rates.js";

export interface PolicySetOptions {
  /** Leave an existing policy unchanged. */
  readonly nx?: boolean;
  /** Replace only this version. Otherwise throws an error that names the current version. */
  readonly version?: number;
  /** Ban a key that keeps calling while it is denied. */
  readonly ban?: Ban;
}

export interface PolicyCounts {
  readonly calls: number;
  readonly admitted: number;
  readonly denied: number;
  /** Number of calls allowed with at most a fifth of the limit left. */
  readonly near: number;
  readonly shadow_denied: number;
  readonly banned: number;
  /** Number of calls whose id had been charged before. */
  readonly repeated: number;
}

export interface PolicyInfo {
  /** Time at which this version was set, in microseconds. Increases with each set. */
  readonly version: number;
  readonly setAt: Date;
  readonly scale: number;
  /** Milliseconds until the scale is 1 again; null: no end. */
  readonly scaleMs: number | null;
  /** Limits in the syntax of RL.POLICYSET. */
  readonly specs: string;
  /** Counts of calls by outcome on the server that replied. */
  readonly counts: PolicyCounts;
}

export interface PolicyScale {
  readonly version: number;
  readonly factor: number;
  /** Milliseconds until the factor is 1 again; null: no end. */
  readonly ms: number | null;
}

export interface PolicyEntry {
  readonly name: string;
  readonly version: number;
  readonly specs: string;
  readonly scale: number;
  /** Milliseconds until the scale is 1 again; null: no end. */
  readonly scaleMs: number | null;
}

/** Sets a policy. Returns its version. */
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
  // Not idempotent with a version: the first delivery replaces it, so a second one would fail.
  return call("RL.POLICYSET", name, [name, ...condition, ...specs], version === undefined, Number);
}

/** Returns the state of a policy; undefined if it does not exist. */
export function policyGet(name: string): Call<PolicyInfo | undefined> {
  return { ...call("RL.POLICYGET", name, [name], true, infoOf), readOnly: true };
}

/** Returns all policies, or those whose names match a glob pattern as in KEYS. */
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
  /** Delete only this version. Otherwise throws an error that names the current version. */
  readonly version?: number;
}

/** Deletes a policy. Returns `true` if it existed. */
export function policyDelete(name: string, { version }: PolicyDeleteOptions = {}): Call<boolean> {
  const condition = version === undefined ? [] : ["VERSION", `${version}`];
  // Not idempotent with a version: a second delivery would fail.
  const repeatable = version === undefined;
  return call(
    "RL.POLICYDEL",
    name,
    [name, ...condition],
    repeatable,
    (reply) => Number(reply) === 1,
  );
}

/**
 * Sets the scale of a policy, a factor from 0 to 1000 for its limits. After `duration` it is 1
 * again.
 */
export function policyScale(name: string, factor: number, duration?: Duration): Call<PolicyScale> {
  const until = duration === undefined ? [] : ["FOR", `${duration}`];
  return call("RL.POLICYSCALE", name, [name, `${factor}`, ...until], true, scaleOf);
}

export interface PolicyStepOptions {
  /** Lower bound of MUL: 0.01 by default. */
  readonly least?: number;
  /** Upper bound of ADD: 1 by default. */
  readonly most?: number;
  /** Minimum time between two steps of this kind; an earlier step does nothing. */
  readonly every?: Duration;
  /** Time after which the scale is 1 again. */
  readonly duration?: Duration;
}

/**
 * Multiplies the scale of a policy. With `every`, the scale changes at most once in that time,
 * however many workers call.
 */
export function policyMultiply(
  name: string,
  factor: number,
  options: Omit<PolicyStepOptions, "most"> = {},
): Call<PolicyScale> {
  return step(name, ["MUL", `${factor}`], options);
}

/** Adds to the scale of a policy. */
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
  const optionWords = Object.entries(options).flatMap(([word, value]) =>
    value === undefined ? [] : [word, `${value}`],
  );
  // Not idempotent: a second delivery would be a second step.
  return call("RL.POLICYSCALE", name, [name, ...words, ...optionWords], false, scaleOf);
}

function scaleOf(reply: unknown): PolicyScale {
  const [version, scale, ms] = reply as unknown[];
  return { version: Number(version), factor: Number(scale), ms: millisOrNever(ms) };
}

/**
 * Builds a call of a policy command. In a cluster any primary accepts the call, and all primaries
 * know the change within a second. All calls with one `route` go to the same primary, so that a
 * change can be read at once, and NX and VERSION apply to the latest version.
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

/** Decodes a map, which is a flat array in RESP2, and an object or a Map in RESP3. */
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

/** Policies of a limiter: `limiter.policies`. docs/commands.md describes policies. */
export class Policies {
  readonly #answer: <Reply>(call: Call<Reply>) => Promise<Reply>;

  constructor(answer: <Reply>(call: Call<Reply>) => Promise<Reply>) {
    this.#answer = answer;
  }

  /** Sets a policy. Returns its version. */
  async set(name: string, limits: Limits, options: PolicySetOptions = {}): Promise<number> {
    return this.#answer(policySet(name, limits, options));
  }

  /** Returns the state of a policy; undefined if it does not exist. */
  async get(name: string): Promise<PolicyInfo | undefined> {
    return this.#answer(policyGet(name));
  }

  /** Returns all policies, or those whose names match a glob pattern as in KEYS. */
  async list(pattern?: string): Promise<PolicyEntry[]> {
    return this.#answer(policyList(pattern));
  }

  /** Deletes policies, or the `version` of one. Returns how many existed. */
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

  /**
   * Sets the scale of a policy, a factor from 0 to 1000 for its limits. After `duration` it is 1
   * again.
   */
  async scale(name: string, factor: number, duration?: Duration): Promise<PolicyScale> {
    return this.#answer(policyScale(name, factor, duration));
  }

  /** Multiplies the current scale by 0 to 1, at most once in `every`, down to `least`. */
  async multiply(
    name: string,
    factor: number,
    options: Omit<PolicyStepOptions, "most"> = {},
  ): Promise<PolicyScale> {
    return this.#answer(policyMultiply(name, factor, options));
  }

  /** Adds to the current scale, at most once in `every`, up to `most`. */
  async add(
    name: string,
    amount: number,
    options: Omit<PolicyStepOptions, "least"> = {},
  ): Promise<PolicyScale> {
    return this.#answer(policyAdd(name, amount, options));
  }
}
