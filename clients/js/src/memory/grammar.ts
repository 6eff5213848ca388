/** Parser of calls, with the server's error messages. */

import { Clocks, isCalendar } from "./calendar.js";
import { Concurrency } from "./leases.js";
import {
  durationOf,
  isPeekRequest,
  NOTHING,
  Options,
  refused,
  type Request,
  type Words,
} from "./options.js";
import { Bucket, Fixed } from "./pools.js";
import { LATEST, type Rule } from "./rule.js";
import { Sliding, SlidingLog, Strict } from "./windows.js";

const MOST_SPECS = 8;

const OF_KEYS = new Set(["COST", "FORCE", "MAXWAIT", "KEEP", "ONCE", "SETTLE"]);
const OF_A_CALL = new Set([...OF_KEYS, "UPTO", "EACH"]);
const OF_A_RATE = ["COST", "UPTO", "FORCE", "KEEP", "ONCE", "SETTLE", "AS"];
const OF_LEASES = ["COST", "KEEP", "AS", "NX"];
/** Options that may follow the numbers of each algorithm. */
const BEHIND: Readonly<Record<string, ReadonlySet<string>>> = {
  TOKENBUCKET: new Set([...OF_A_RATE, "MAXWAIT"]),
  LEAKYBUCKET: new Set(OF_A_RATE),
  FIXED: new Set([...OF_A_RATE, "ALIGNED", "OFFSET", "ANCHOR"]),
  SLIDING: new Set([...OF_A_RATE, "STRICT"]),
  SLIDINGLOG: new Set(OF_A_RATE),
  CONCURRENCY: new Set(OF_LEASES),
};
const OF_ACQUIRE = new Set([...OF_LEASES, "FENCE"]);

/** Throws an error for commands and words of features that need a server. */
export function refuseWhatNeedsAServer(word: string): void {
  const feature = /^(POLICY|RL\.LIMIT|RL\.DELAY|RL\.POLICY.*)$/.test(word)
    ? "policies"
    : /^(BAN|RL\.BAN)$/.test(word)
      ? "bans"
      : word === "SKETCH"
        ? "sketches"
        : undefined;
  if (feature === undefined) return;
  throw refused(`a limiter in memory has no ${feature}: they need a server with the module`);
}

/** Limit and the request to it. KEEP lowers the limit. */
export interface Spec {
  readonly rule: Rule<any>;
  readonly request: Request;
  readonly kept: bigint;
  readonly name: string | undefined;
  readonly hasOwnCost: boolean;
}

/** Returns the name of a limit among those of its algorithm. */
export function identityOf({ name, rule }: Spec): string {
  return name === undefined ? `by ${rule.key}` : `as ${name}`;
}

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
    throw refused("syntax error, unexpected KEEP: it keeps nothing of such a call");
  }
}

function refuseBesideSettle({ settle, cost, mode, keep }: Options): void {
  if (settle && (cost !== undefined || mode || keep)) {
    throw refused("syntax error: SETTLE says the cost");
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

  spec(rule: Rule<any>, own: Options): Spec {
    const isApart = own.cost !== undefined || rule instanceof Concurrency;
    let request = this.#request(rule, own, isApart);
    this.#refuseOnce(own);
    const keeping = own.keep || (isApart && !this.options.keepsShare) ? own : this.options;
    refuseKeep(keeping, request, this.purpose);
    const keep = keeping.keep?.(rule.limit) ?? 0n;
    if (keep > rule.limit && isPeekRequest(request)) request = { ...NOTHING, mode: "PAST" };
    const kept = keep < rule.limit ? keep : rule.limit;
    rule.limit -= kept;
    if (rule instanceof Concurrency) rule.isFirst = own.flags.has("NX");
    return { rule, request, kept, name: own.name, hasOwnCost: own.cost !== undefined };
  }

  #refuseOnce({ isBack }: Options): void {
    if (this.options.once && isBack) throw refused("cost must be 0 or more with ONCE");
  }

  #request({ waits }: Rule, own: Options, isApart: boolean): Request {
    const { options, purpose } = this;
    if (purpose === "SETTLE") {
      if (own.mode && !isApart) {
        throw refused(`syntax error, unexpected ${own.mode}: SETTLE says the cost`);
      }
      return NOTHING;
    }
    if (isApart) return purpose === "CHARGE" ? own.request(own.mode, own.maxWait) : NOTHING;
    if (own.mode) return options.request(own.mode, own.maxWait);
    if (options.mode === "MAXWAIT" && !waits) return options.request("", 0n);
    return options.request(options.mode, options.maxWait);
  }
}

type Read = readonly [rule: Rule<any>, own: Options];

function readSpec(words: Words): Read {
  const algorithm = words.peek();
  refuseWhatNeedsAServer(algorithm);
  const behind = BEHIND[algorithm];
  if (!behind) throw refused(`syntax error, unexpected '${algorithm}': a spec is needed`);
  words.next("spec");
  return readRule(words, algorithm, behind);
}

/** Parses the numbers of an algorithm and the options after them. */
function readRule(words: Words, algorithm: string, behind: ReadonlySet<string>): Read {
  const limit = words.amount("limit");
  if (algorithm === "FIXED") return readFixed(words, limit, behind);
  if (algorithm.endsWith("BUCKET")) {
    const [refill, period] = [words.amount("refill"), words.duration("period")];
    const options = Options.read(words, behind);
    if (refill === 0n) throw refused("refill must be a number from 0.000001 to 1000000000000");
    const bucket = new Bucket(limit, refill, period, algorithm === "LEAKYBUCKET");
    if (bucket.drainsIn(limit) > LATEST / 10n) {
      throw refused("refill must be enough to refill the capacity within 36500d");
    }
    return [bucket, options];
  }
  const window = words.duration("window");
  if (algorithm === "CONCURRENCY") {
    const holder = words.name("holder");
    const options = Options.read(words, behind);
    if (options.isBack || options.cost === 0n) throw refused("cost must be a number above 0");
    return [new Concurrency(limit, window, holder), options];
  }
  const options = Options.read(words, behind);
  if (algorithm === "SLIDINGLOG") return [new SlidingLog(limit, window), options];
  const isStrict = options.flags.has("STRICT");
  return [isStrict ? new Strict(limit, window) : new Sliding(limit, window), options];
}

function readFixed(words: Words, limit: bigint, behind: ReadonlySet<string>): Read {
  const text = words.next("window");
  const calendar = isCalendar(text) ? text : undefined;
  const window = calendar ? 0n : durationOf(text);
  if (window === undefined || (window === 0n && !calendar)) {
    throw refused(
      "window must be a duration from 1us to 3650d, or with ALIGNED 1w, 1mo, 3mo or 1y",
    );
  }
  const options = Options.read(words, behind);
  const { offset, anchor } = options;
  if (!options.flags.has("ALIGNED")) {
    if (calendar || offset !== undefined || anchor !== undefined) {
      throw refused(`syntax error: windows of ${text} need ALIGNED`);
    }
    return [new Fixed(limit, window), options];
  }
  if (anchor !== undefined && !calendar?.endsWith("mo")) {
    throw refused("syntax error, unexpected ANCHOR: it is for months and quarters");
  }
  const clocks = new Clocks(window, calendar, offset ?? 0n, anchor ?? 1n);
  return [new Fixed(limit, window, clocks), options];
}

/** Parses the arguments of a call for one key: `[options] spec [spec ...]`. */
export function readCall(words: Words, isPeek: boolean): KeyCall {
  const common = new Common(Options.read(words, OF_A_CALL));
  const read = [readSpec(words)];
  while (!words.isOver) read.push(readSpec(words));
  if (read.length === 1) return onlyCall(common, read[0]!, isPeek);
  const specs = read.map((one) => amongSeveral(common, one));
  if (read.some(([, own]) => own.isBack)) {
    throw refused("cost must be 0 or more behind one of several limits");
  }
  refuseTwins(specs);
  return callOf(common, specs, isPeek, common.purpose);
}

function onlyCall(common: Common, [rule, own]: Read, isPeek: boolean): KeyCall {
  let all = common;
  if (own.once || own.settle) {
    if (all.options.once || all.options.settle) {
      throw refused("syntax error: the call has an id already");
    }
    refuseBesideSettle(own);
    all.options.once = own.once;
    all.options.settle = own.settle;
    all = new Common(all.options);
  }
  const spec = all.spec(rule, own);
  const call = callOf(all, [spec], isPeek);
  const looksBeside = call.purpose === "BACK" && spec.request.mode !== "BACK";
  return { ...call, isPlain: call.isPlain && !call.each && !looksBeside };
}

function callOf(
  { options, purpose }: Common,
  specs: readonly Spec[],
  isPeek: boolean,
  whole?: Purpose,
): KeyCall {
  if (isPeek && options.settle) throw refused("syntax error: a peek settles nothing");
  const once = isPeek ? undefined : options.once;
  const { settle } = options;
  const [{ request, name }] = specs as [Spec];
  const own = request.mode === "BACK" ? "BACK" : isPeekRequest(request) ? "CHECK" : "CHARGE";
  return {
    specs,
    purpose: whole ?? (purpose === "CHARGE" ? own : purpose),
    once,
    settle,
    each: options.flags.has("EACH"),
    isPlain: specs.length === 1 && !once && !settle && name === undefined,
  };
}

function amongSeveral(common: Common, [rule, own]: Read): Spec {
  if (own.once || own.settle || own.mode === "UPTO") {
    throw refused("syntax error: ONCE, SETTLE and UPTO stand before the first of several specs");
  }
  return common.spec(rule, own);
}

function refuseTwins(specs: readonly Spec[]): void {
  if (specs.length > MOST_SPECS) {
    throw refused(`syntax error: a call has at most ${MOST_SPECS} specs`);
  }
  const identities = new Set(
    specs.map((spec) => spec.rule.kind + (spec.rule.key === undefined ? "" : identityOf(spec))),
  );
  if (identities.size < specs.length) {
    throw refused("specs of one kind must have different windows or different names");
  }
}

/**
 * Parses the arguments of a call for several keys: `numkeys key [key ...] [options] spec [spec
 * ...]`.
 */
export function readKeys(words: Words, isPeek: boolean): [key: string, call: KeyCall][] {
  const numkeys = words.next("numkeys");
  if (!/^[1-9]\d{0,5}$/.test(numkeys)) throw refused("numkeys must be how many keys follow");
  const keys = Array.from({ length: Number(numkeys) }, () => words.next("key"));
  const common = new Common(Options.read(words, OF_KEYS));
  const calls = keys.map((key): [string, KeyCall] => [
    key,
    callOf(common, [amongSeveral(common, readSpec(words))], isPeek),
  ]);
  if (!words.isOver) throw refused("syntax error: more words than specs for the keys");
  if (new Set(keys).size < keys.length) throw refused("keys must be different from each other");
  return calls;
}

/**
 * Parses `limit ttl holder [options]` of RL.ACQUIRE. Returns the call, and `true` if FENCE is among
 * them.
 */
export function readAcquire(words: Words): readonly [call: KeyCall, fences: boolean] {
  const read = readRule(words, "CONCURRENCY", OF_ACQUIRE);
  if (!words.isOver) throw refused(`syntax error, unexpected '${words.peek()}'`);
  const call = onlyCall(new Common(new Options()), read, false);
  return [call, read[1].flags.has("FENCE")];
}
