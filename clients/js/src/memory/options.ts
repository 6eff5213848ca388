/** Words of a call: numbers, durations and options. */

import { DAY, UNIT } from "./rule.js";

const MAX_UNITS = 10n ** 12n;
const MAX_NAME_BYTES = 256;

const NUMBER = String.raw`(\d+)(?:\.(\d+))?(?:e([+-]?\d{1,9}))?`;
const AMOUNT = new RegExp(`^${NUMBER}$`);
const DURATION = new RegExp(`^${NUMBER}(us|ms|s|m|h|d|)$`);
const SHARE = new RegExp(`^${NUMBER}%$`);
const MICROSECONDS: Readonly<Record<string, bigint>> = {
  us: 1n,
  ms: 1000n,
  "": UNIT,
  s: UNIT,
  m: 60n * UNIT,
  h: 3600n * UNIT,
  d: DAY,
};

const MODES = ["UPTO", "FORCE", "MAXWAIT"];

/** Returns an error like an error reply of a server. */
export function refusal(text: string, code = "ERR"): Error {
  return new Error(`${code} ${text}`);
}

/** Exact decimal, split into its whole part and the existence of a fraction. */
interface Scaled {
  readonly floor: bigint;
  readonly hasFraction: boolean;
}

/**
 * Returns a number times `factor` times 10 to the power of `shift`; undefined if it is far too
 * large.
 */
function scaled(match: RegExpExecArray, factor: bigint, shift = 0): Scaled | undefined {
  const [, whole = "", fraction = "", power = "0"] = match;
  const digits = BigInt(whole + fraction) * factor;
  const exponent = Number(power) - fraction.length + shift;
  if (digits === 0n) return { floor: 0n, hasFraction: false };
  if (exponent >= 0) {
    return exponent > 40
      ? undefined
      : { floor: digits * 10n ** BigInt(exponent), hasFraction: false };
  }
  if (-exponent > `${digits}`.length) return { floor: 0n, hasFraction: true };
  const divisor = 10n ** BigInt(-exponent);
  return { floor: digits / divisor, hasFraction: digits % divisor !== 0n };
}

function ceil({ floor, hasFraction }: Scaled): bigint {
  return hasFraction ? floor + 1n : floor;
}

function exceeds({ floor, hasFraction }: Scaled, bound: bigint): boolean {
  return floor > bound || (floor === bound && hasFraction);
}

function amountOf(text: string, description: string): Scaled {
  const match = AMOUNT.exec(text);
  const amount = match ? scaled(match, UNIT) : undefined;
  if (!amount || exceeds(amount, MAX_UNITS * UNIT)) {
    throw refusal(`${description} must be a number from 0 to ${MAX_UNITS}, not '${text}'`);
  }
  return amount;
}

/**
 * Returns a duration in microseconds, rounded up; undefined unless it is 0 or from 1us to 3650d.
 */
export function durationOf(text: string): bigint | undefined {
  const match = DURATION.exec(text);
  const duration = match ? scaled(match, MICROSECONDS[match[4]!]!) : undefined;
  if (!duration || exceeds(duration, 3650n * DAY)) return undefined;
  const isBelowMicrosecond = duration.floor === 0n && duration.hasFraction;
  return isBelowMicrosecond ? undefined : ceil(duration);
}

/** Reader of words, from left to right. */
export class Words {
  readonly #words: readonly string[];
  #nextIndex = 0;

  constructor(words: readonly string[]) {
    this.#words = words;
  }

  /** `true` if all words have been read. */
  get isOver(): boolean {
    return this.#nextIndex >= this.#words.length;
  }

  /** Returns the next word in upper case, or "" at the end. */
  peek(): string {
    return this.#words[this.#nextIndex]?.toUpperCase() ?? "";
  }

  next(description: string): string {
    const word = this.#words[this.#nextIndex++];
    if (word === undefined) throw refusal(`${description} is missing`);
    return word;
  }

  name(description: string): string {
    const name = this.next(description);
    const bytes = Buffer.byteLength(name);
    if (bytes < 1 || bytes > MAX_NAME_BYTES) {
      throw refusal(`${description} must be 1 to ${MAX_NAME_BYTES} bytes`);
    }
    return name;
  }

  /** Reads an amount in millionths, rounded down. */
  amount(description: string): bigint {
    return amountOf(this.next(description), description).floor;
  }

  /** Reads an amount in millionths, rounded up. */
  cost(description: string): bigint {
    return ceil(amountOf(this.next(description), description));
  }

  duration(description: string, { zero = false } = {}): bigint {
    const duration = durationOf(this.next(description));
    if (duration === undefined || (duration === 0n && !zero)) {
      throw refusal(`${description} must be a duration from 1us to 3650d, such as 60s`);
    }
    return duration;
  }
}

/** Request to one limit. "PAST" is a peek that is always denied, as KEEP is above the limit. */
export interface Request {
  readonly mode: "TAKE" | "UPTO" | "FORCE" | "MAXWAIT" | "BACK" | "PAST";
  readonly cost: bigint;
  readonly maxWait: bigint;
}

/** Request that changes nothing. */
export const NO_CHARGE: Request = { mode: "TAKE", cost: 0n, maxWait: 0n };

export function isPeekRequest({ mode, cost }: Request): boolean {
  return mode === "PAST" || (cost === 0n && mode !== "UPTO" && mode !== "BACK");
}

/** Options before the specs, or of one spec. */
export class Options {
  cost: bigint | undefined;
  /** `true` for a negative cost, which is given back. */
  isBack = false;
  /** `true` if the cost is a whole number of units. */
  isWhole = true;
  mode = "";
  maxWait = 0n;
  /** Function that returns the amount of a limit that KEEP keeps. */
  keep: ((limit: bigint) => bigint) | undefined;
  /** `true` if KEEP is a share of the limit. */
  keepsShare = false;
  name: string | undefined;
  readonly flags = new Set<string>();
  offset: bigint | undefined;
  anchor: bigint | undefined;
  once: { readonly id: string; readonly ttl: bigint } | undefined;
  settle: { readonly id: string; readonly cost: bigint } | undefined;

  /** Parses options in any order, up to a word that is not in `allowed`. */
  static read(words: Words, allowed: ReadonlySet<string>): Options {
    const options = new Options();
    const seen = new Set<string>();
    for (let word = words.peek(); allowed.has(word); word = words.peek()) {
      words.next(word);
      // Options of the same group exclude each other.
      const group = MODES.includes(word) ? "MODE" : /^(ONCE|SETTLE)$/.test(word) ? "ID" : word;
      if (seen.has(group)) throw refusal(`syntax error, unexpected ${word}`);
      seen.add(group);
      options.#parse(word, words);
    }
    return options;
  }

  /** Returns the request for a mode and the cost, by default 1. */
  request(mode: string, maxWait: bigint): Request {
    const cost = this.cost ?? UNIT;
    if (this.isBack) {
      if (mode) throw refusal(`cost must be 0 or hasFraction with ${mode}`);
      return { mode: "BACK", cost, maxWait: 0n };
    }
    if (mode === "UPTO" && !(this.isWhole && cost > 0n)) {
      throw refusal("cost must be a whole number from 1 with UPTO");
    }
    return { mode: (mode || "TAKE") as Request["mode"], cost, maxWait };
  }

  #parse(word: string, words: Words): void {
    if (MODES.includes(word)) this.mode = word;
    switch (word) {
      case "COST":
        this.#parseCost(words.next("cost"));
        break;
      case "MAXWAIT":
        this.maxWait = words.duration("maxwait", { zero: true });
        break;
      case "KEEP":
        this.#parseKeep(words.next("keep"));
        break;
      case "AS":
        this.name = words.next("name");
        if (!/^[A-Za-z0-9_-]{1,32}$/.test(this.name)) {
          throw refusal(`name must be 1 to 32 of A-Z, a-z, 0-9, _ and -, not '${this.name}'`);
        }
        break;
      case "OFFSET":
        this.#parseOffset(words.next("offset"));
        break;
      case "ANCHOR": {
        const day = words.next("anchor");
        if (!/^\d{1,2}$/.test(day) || Number(day) < 1 || Number(day) > 31) {
          throw refusal("anchor must be a day from 1 to 31");
        }
        this.anchor = BigInt(day);
        break;
      }
      case "ONCE":
        this.once = { id: words.name("id"), ttl: words.duration("ttl") };
        break;
      case "SETTLE":
        this.settle = { id: words.name("id"), cost: words.cost("amount") };
        break;
      default:
        this.flags.add(word);
    }
  }

  #parseCost(text: string): void {
    const cost = amountOf(text.replace(/^-/, ""), "cost");
    this.isBack = text.startsWith("-") && ceil(cost) > 0n;
    this.cost = this.isBack ? cost.floor : ceil(cost);
    this.isWhole = !cost.hasFraction && cost.floor % UNIT === 0n;
  }

  #parseKeep(text: string): void {
    const match = SHARE.exec(text);
    if (!match) {
      const kept = ceil(amountOf(text, "keep"));
      this.keep = () => kept;
      return;
    }
    const share = scaled(match, 1n);
    if (!share || exceeds(share, 100n)) throw refusal("keep must be a share from 0% to 100%");
    this.keep = (limit) => ceil(scaled(match, limit, -2)!);
    this.keepsShare = true;
  }

  #parseOffset(text: string): void {
    const match = /^([+-])(\d\d):([0-5]\d)$/.exec(text);
    const minutes = match ? Number(match[2]) * 60 + Number(match[3]) : Infinity;
    if (minutes > 14 * 60) throw refusal("offset must be from -14:00 to +14:00, such as +09:00");
    this.offset = BigInt(match![1] === "-" ? -minutes : minutes) * 60n * UNIT;
  }
}
