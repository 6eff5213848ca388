/** Parser of calls, with the server's error messages. */

import { AlignedWindows, isCalendar } from "./calendar.js";
import { Concurrency } from "./leases.js";
import {
  durationOf,
  isPeekRequest,
  NO_CHARGE,
  Options,
  refusal,
  type Request,
  type Words,
} from "./options.js";
import { Bucket, Fixed } from "./pools.js";
import { LATEST, type Rule } from "./rule.js";
import { Sliding, SlidingLog, Strict } from "./windows.js";

const MAX_SPECS = 8;

const OPTIONS_OF_KEYS = new Set(["COST", "FORCE", "MAXWAIT", "KEEP", "ONCE", "SETTLE"]);
const OPTIONS_OF_CALL = new Set([...OPTIONS_OF_KEYS, "UPTO", "EACH"]);
const OPTIONS_OF_RATE = ["COST", "UPTO", "FORCE", "KEEP", "ONCE", "SETTLE", "AS"];
const OPTIONS_OF_LEASES = ["COST", "KEEP", "AS", "NX"];
/** Options that may follow the arguments of each algorithm. */
const OPTIONS_AFTER: Readonly<Record<string, ReadonlySet<string>>> = {
  TOKENBUCKET: new Set([...OPTIONS_OF_RATE, "MAXWAIT"]),
  LEAKYBUCKET: new Set(OPTIONS_OF_RATE),
  FIXED: new Set([...OPTIONS_OF_RATE, "ALIGNED", "OFFSET", "ANCHOR"]),
  SLIDING: new Set([...OPTIONS_OF_RATE, "STRICT"]),
  SLIDINGLOG: new Set(OPTIONS_OF_RATE),
  CONCURRENCY: new Set(OPTIONS_OF_LEASES),
};
const OPTIONS_OF_ACQUIRE = new Set([...OPTIONS_OF_LEASES, "FENCE"]);

/** Throws an error if the command or word needs a server. */
export function refuseServerFeatures(word: string): void {
  const feature = /^(POLICY|RL\.LIMIT|RL\.DELAY|RL\.POLICY.*)$/.test(word)
    ? "policies"
    : /^(BAN|RL\.BAN)$/.test(word)
      ? "bans"
      : word === "SKETCH"
        ? "sketches"
        : undefined;
  if (feature === undefined) return;
  throw refusal(`a limiter in memory has no ${feature}: they need a server with the module`);
}

/** Limit and the request to the limit. KEEP has lowered the limit by `kept`. */
export interface Spec {
  readonly rule: Rule<any>;
  readonly request: Request;
  readonly kept: bigint;
  readonly name: string | undefined;
  readonly hasOwnCost: boolean;
}

/** Returns a name that distinguishes a limit from others of its algorithm. */
export function identityOf({ name, rule }: Spec): string {
  return name === undefined ? `by ${rule.key}` : `as ${name}`;
}

/** Purpose of a call. BACK gives back units, and CHECK changes nothing. */
export type Purpose = "CHARGE" | "CHECK" | "BACK" | "SETTLE";

/** Parsed call for one key. */
export interface KeyCall {
  readonly specs: readonly Spec[];
  readonly purpose: Purpose;
  readonly once: Options["once"];
  readonly settle: Options["settle"];
  readonly each: boolean;
  /** `true` if a plain key, which stores the usage of one limit alone, can serve the call. */
  readonly isPlain: boolean;
}

function refuseKeep({ keep }: Options, { mode }: Request, purpose: Purpose): void {
  const keepsNothing = purpose === "SETTLE" || purpose === "BACK";
  if (keep && (keepsNothing || mode === "FORCE" || mode === "BACK")) {
    throw refusal("syntax error, unexpected KEEP: it keeps nothing of such a call");
  }
}

function refuseBesideSettle({ settle, cost, mode, keep }: Options): void {
  if (settle && (cost !== undefined || mode || keep)) {
    throw refusal("syntax error: SETTLE says the cost");
  }
}

/** Options before the first spec, which apply to all specs. */
class Common {
  readonly options: Options;
  readonly purpose: Purpose;

  constructor(options: Options) {
    this.options = options;
    refuseBesideSettle(options);
    if (options.settle) this.purpose = "SETTLE";
    else if (options.isBack) this.purpose = "BACK";
    else this.purpose = options.cost === 0n ? "CHECK" : "CHARGE";
    refuseKeep(options, options.request(options.mode, options.maxWait), this.purpose);
    this.#refuseOnce(options);
  }

  /** Returns the spec of a limit with the options after its arguments. */
  spec(rule: Rule<any>, specOptions: Options): Spec {
    const isApart = specOptions.cost !== undefined || rule instanceof Concurrency;
    let request = this.#request(rule, specOptions, isApart);
    this.#refuseOnce(specOptions);
    const keepOptions =
      specOptions.keep || (isApart && !this.options.keepsShare) ? specOptions : this.options;
    refuseKeep(keepOptions, request, this.purpose);
    const keep = keepOptions.keep?.(rule.limit) ?? 0n;
    if (keep > rule.limit && isPeekRequest(request)) request = { ...NO_CHARGE, mode: "PAST" };
    const kept = keep < rule.limit ? keep : rule.limit;
    rule.limit -= kept;
    if (rule instanceof Concurrency) rule.hasNx = specOptions.flags.has("NX");
    return {
      rule,
      request,
      kept,
      name: specOptions.name,
      hasOwnCost: specOptions.cost !== undefined,
    };
  }

  #refuseOnce({ isBack }: Options): void {
    if (this.options.once && isBack) throw refusal("cost must be 0 or more with ONCE");
  }

  /**
   * Returns the request to one limit. With `isApart`, the options before the first spec do not
   * apply to the limit.
   */
  #request({ canReserve }: Rule, specOptions: Options, isApart: boolean): Request {
    const { options, purpose } = this;
    if (purpose === "SETTLE") {
      if (specOptions.mode && !isApart) {
        throw refusal(`syntax error, unexpected ${specOptions.mode}: SETTLE says the cost`);
      }
      return NO_CHARGE;
    }
    if (isApart)
      return purpose === "CHARGE"
        ? specOptions.request(specOptions.mode, specOptions.maxWait)
        : NO_CHARGE;
    if (specOptions.mode) return options.request(specOptions.mode, specOptions.maxWait);
    if (options.mode === "MAXWAIT" && !canReserve) return options.request("", 0n);
    return options.request(options.mode, options.maxWait);
  }
}

type ParsedSpec = readonly [rule: Rule<any>, specOptions: Options];

function readSpec(words: Words): ParsedSpec {
  const algorithm = words.peek();
  refuseServerFeatures(algorithm);
  const allowed = OPTIONS_AFTER[algorithm];
  if (!allowed) throw refusal(`syntax error, unexpected '${algorithm}': a spec is needed`);
  words.next("spec");
  return readRule(words, algorithm, allowed);
}

/** Parses the arguments of an algorithm and the options after them. */
function readRule(words: Words, algorithm: string, allowed: ReadonlySet<string>): ParsedSpec {
  const limit = words.amount("limit");
  if (algorithm === "FIXED") return readFixed(words, limit, allowed);
  if (algorithm.endsWith("BUCKET")) {
    const [refill, period] = [words.amount("refill"), words.duration("period")];
    const options = Options.read(words, allowed);
    if (refill === 0n) throw refusal("refill must be a number from 0.000001 to 1000000000000");
    const bucket = new Bucket(limit, refill, period, algorithm === "LEAKYBUCKET");
    if (bucket.drainsIn(limit) > LATEST / 10n) {
      throw refusal("refill must be enough to refill the capacity within 36500d");
    }
    return [bucket, options];
  }
  const window = words.duration("window");
  if (algorithm === "CONCURRENCY") {
    const holder = words.name("holder");
    const options = Options.read(words, allowed);
    if (options.isBack || options.cost === 0n) throw refusal("cost must be a number above 0");
    return [new Concurrency(limit, window, holder), options];
  }
  const options = Options.read(words, allowed);
  if (algorithm === "SLIDINGLOG") return [new SlidingLog(limit, window), options];
  const isStrict = options.flags.has("STRICT");
  return [isStrict ? new Strict(limit, window) : new Sliding(limit, window), options];
}

function readFixed(words: Words, limit: bigint, allowed: ReadonlySet<string>): ParsedSpec {
  const text = words.next("window");
  const calendar = isCalendar(text) ? text : undefined;
  const window = calendar ? 0n : durationOf(text);
  if (window === undefined || (window === 0n && !calendar)) {
    throw refusal(
      "window must be a duration from 1us to 3650d, or with ALIGNED 1w, 1mo, 3mo or 1y",
    );
  }
  const options = Options.read(words, allowed);
  const { offset, anchor } = options;
  if (!options.flags.has("ALIGNED")) {
    if (calendar || offset !== undefined || anchor !== undefined) {
      throw refusal(`syntax error: windows of ${text} need ALIGNED`);
    }
    return [new Fixed(limit, window), options];
  }
  if (anchor !== undefined && !calendar?.endsWith("mo")) {
    throw refusal("syntax error, unexpected ANCHOR: it is for months and quarters");
  }
  const alignedWindows = new AlignedWindows(window, calendar, offset ?? 0n, anchor ?? 1n);
  return [new Fixed(limit, window, alignedWindows), options];
}

/** Parses the arguments of a call for one key: `[options] spec [spec ...]`. */
export function readCall(words: Words, isPeek: boolean): KeyCall {
  const common = new Common(Options.read(words, OPTIONS_OF_CALL));
  const parsed = [readSpec(words)];
  while (!words.isOver) parsed.push(readSpec(words));
  if (parsed.length === 1) return callOfOneSpec(common, parsed[0]!, isPeek);
  const specs = parsed.map((spec) => specOfSeveral(common, spec));
  if (parsed.some(([, specOptions]) => specOptions.isBack)) {
    throw refusal("cost must be 0 or more behind one of several limits");
  }
  refuseDuplicates(specs);
  return callOf(common, specs, isPeek, common.purpose);
}

/** Returns a call with one spec, after which ONCE and SETTLE may stand, too. */
function callOfOneSpec(common: Common, [rule, specOptions]: ParsedSpec, isPeek: boolean): KeyCall {
  let allOptions = common;
  if (specOptions.once || specOptions.settle) {
    if (allOptions.options.once || allOptions.options.settle) {
      throw refusal("syntax error: the call has an id already");
    }
    refuseBesideSettle(specOptions);
    allOptions.options.once = specOptions.once;
    allOptions.options.settle = specOptions.settle;
    allOptions = new Common(allOptions.options);
  }
  const spec = allOptions.spec(rule, specOptions);
  const call = callOf(allOptions, [spec], isPeek);
  // A cost of its own excepts the limit from the give-back.
  const givesNothingBack = call.purpose === "BACK" && spec.request.mode !== "BACK";
  return { ...call, isPlain: call.isPlain && !call.each && !givesNothingBack };
}

function callOf(
  { options, purpose }: Common,
  specs: readonly Spec[],
  isPeek: boolean,
  purposeOfAll?: Purpose,
): KeyCall {
  if (isPeek && options.settle) throw refusal("syntax error: a peek settles nothing");
  const once = isPeek ? undefined : options.once;
  const { settle } = options;
  const [{ request, name }] = specs as [Spec];
  const requestPurpose =
    request.mode === "BACK" ? "BACK" : isPeekRequest(request) ? "CHECK" : "CHARGE";
  return {
    specs,
    purpose: purposeOfAll ?? (purpose === "CHARGE" ? requestPurpose : purpose),
    once,
    settle,
    each: options.flags.has("EACH"),
    isPlain: specs.length === 1 && !once && !settle && name === undefined,
  };
}

function specOfSeveral(common: Common, [rule, specOptions]: ParsedSpec): Spec {
  if (specOptions.once || specOptions.settle || specOptions.mode === "UPTO") {
    throw refusal("syntax error: ONCE, SETTLE and UPTO stand before the first of several specs");
  }
  return common.spec(rule, specOptions);
}

function refuseDuplicates(specs: readonly Spec[]): void {
  if (specs.length > MAX_SPECS) {
    throw refusal(`syntax error: a call has at most ${MAX_SPECS} specs`);
  }
  const identities = new Set(
    specs.map((spec) => spec.rule.kind + (spec.rule.key === undefined ? "" : identityOf(spec))),
  );
  if (identities.size < specs.length) {
    throw refusal("specs of one kind must have different windows or different names");
  }
}

/**
 * Parses the arguments of a call for several keys: `numkeys key [key ...] [options] spec [spec
 * ...]`.
 */
export function readKeys(words: Words, isPeek: boolean): [key: string, call: KeyCall][] {
  const numkeys = words.next("numkeys");
  if (!/^[1-9]\d{0,5}$/.test(numkeys)) throw refusal("numkeys must be how many keys follow");
  const keys = Array.from({ length: Number(numkeys) }, () => words.next("key"));
  const common = new Common(Options.read(words, OPTIONS_OF_KEYS));
  const calls = keys.map((key): [string, KeyCall] => [
    key,
    callOf(common, [specOfSeveral(common, readSpec(words))], isPeek),
  ]);
  if (!words.isOver) throw refusal("syntax error: more words than specs for the keys");
  if (new Set(keys).size < keys.length) throw refusal("keys must be different from each other");
  return calls;
}

/**
 * Parses `limit ttl holder [options]` of RL.ACQUIRE. Returns the call, and `true` with the option
 * FENCE.
 */
export function readAcquire(words: Words): readonly [call: KeyCall, hasFence: boolean] {
  const parsed = readRule(words, "CONCURRENCY", OPTIONS_OF_ACQUIRE);
  if (!words.isOver) throw refusal(`syntax error, unexpected '${words.peek()}'`);
  const call = callOfOneSpec(new Common(new Options()), parsed, false);
  return [call, parsed[1].flags.has("FENCE")];
}
