/** Words of a call: numbers, durations and options. */

import { DAY, UNIT } from "./rule.js";

const MOST_UNITS = 10n ** 12n;
const LONGEST_NAME = 256;

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
export function refused(text: string, code = "ERR"): Error {
  return new Error(`${code} ${text}`);
}

/** Decimal in whole units: rounded down, and `true` if it is above that. */
interface Scaled {
  readonly floor: bigint;
  readonly more: boolean;
}

/** Returns a number times a factor, exactly. Undefined if it is far out of range. */
function scaled(match: RegExpExecArray, factor: bigint, shift = 0): Scaled | undefined {
  const [, whole = "", fraction = "", power = "0"] = match;
  const digits = BigInt(whole + fraction) * factor;
  const exponent = Number(power) - fraction.length + shift;
  if (digits === 0n) return { floor: 0n, more: false };
  if (exponent >= 0) {
    return exponent > 40 ? undefined : { floor: digits * 10n ** BigInt(exponent), more: false };
  }
  if (-exponent > `${digits}`.length) return { floor: 0n, more: true };
  const by = 10n ** BigInt(-exponent);
  return { floor: digits / by, more: digits % by !== 0n };
}

function ceil({ floor, more }: Scaled): bigint {
  return more ? floor + 1n : floor;
}

function exceeds({ floor, more }: Scaled, bound: bigint): boolean {
  return floor > bound || (floor === bound && more);
}

function amountOf(text: string, what: string): Scaled {
  const match = AMOUNT.exec(text);
  const found = match ? scaled(match, UNIT) : undefined;
  if (!found || exceeds(found, MOST_UNITS * UNIT)) {
    throw refused(`${what} must be a number from 0 to ${MOST_UNITS}, not '${text}'`);
  }
  return found;
}

/**
 * Returns a duration in microseconds, rounded up. Undefined unless it is 0 or from 1us to 3650d.
 */
export function durationOf(text: string): bigint | undefined {
  const match = DURATION.exec(text);
  const found = match ? scaled(match, MICROSECONDS[match[4]!]!) : undefined;
  if (!found || (found.floor === 0n && found.more) || exceeds(found, 3650n * DAY)) return undefined;
  return ceil(found);
}

/** Reader of words, from left to right. */
export class Words {
  readonly #words: readonly string[];
  #at = 0;

  constructor(words: readonly string[]) {
    this.#words = words;
  }

  get isOver(): boolean {
    return this.#at >= this.#words.length;
  }

  /** Returns the next word in upper case, or "" at the end. */
  peek(): string {
    return this.#words[this.#at]?.toUpperCase() ?? "";
  }

  next(what: string): string {
    const word = this.#words[this.#at++];
    if (word === undefined) throw refused(`${what} is missing`);
    return word;
  }

  name(what: string): string {
    const name = this.next(what);
    const bytes = Buffer.byteLength(name);
    if (bytes < 1 || bytes > LONGEST_NAME) {
      throw refused(`${what} must be 1 to ${LONGEST_NAME} bytes`);
    }
    return name;
  }

  /** Reads an amount in millionths, rounded down. */
  amount(what: string): bigint {
    return amountOf(this.next(what), what).floor;
  }

  /** Reads an amount in millionths, rounded up. */
  cost(what: string): bigint {
    return ceil(amountOf(this.next(what), what));
  }

  duration(what: string, { zero = false } = {}): bigint {
    const found = durationOf(this.next(what));
    if (found === undefined || (found === 0n && !zero)) {
      throw refused(`${what} must be a duration from 1us to 3650d, such as 60s`);
    }
    return found;
  }
}

/** Request to one limit. "PAST" is a peek with a KEEP above the limit. */
export interface Request {
  readonly mode: "TAKE" | "UPTO" | "FORCE" | "MAXWAIT" | "BACK" | "PAST";
  readonly cost: bigint;
  readonly maxWait: bigint;
}

export const NOTHING: Request = { mode: "TAKE", cost: 0n, maxWait: 0n };

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
  /** Returns the amount of a limit that must remain. */
  keep: ((limit: bigint) => bigint) | undefined;
  keepsShare = false;
  name: string | undefined;
  readonly flags = new Set<string>();
  offset: bigint | undefined;
  anchor: bigint | undefined;
  once: { readonly id: string; readonly ttl: bigint } | undefined;
  settle: { readonly id: string; readonly cost: bigint } | undefined;

  /** Parses options in any order, up to a word that is not in `among`. */
  static read(words: Words, among: ReadonlySet<string>): Options {
    const options = new Options();
    const seen = new Set<string>();
    for (let word = words.peek(); among.has(word); word = words.peek()) {
      words.next(word);
      // Some options exclude each other.
      const place = MODES.includes(word) ? "MODE" : /^(ONCE|SETTLE)$/.test(word) ? "ID" : word;
      if (seen.has(place)) throw refused(`syntax error, unexpected ${word}`);
      seen.add(place);
      options.#take(word, words);
    }
    return options;
  }

  /** Returns the request for a mode and the cost, by default 1. */
  request(mode: string, maxWait: bigint): Request {
    const cost = this.cost ?? UNIT;
    if (this.isBack) {
      if (mode) throw refused(`cost must be 0 or more with ${mode}`);
      return { mode: "BACK", cost, maxWait: 0n };
    }
    if (mode === "UPTO" && !(this.isWhole && cost > 0n)) {
      throw refused("cost must be a whole number from 1 with UPTO");
    }
    return { mode: (mode || "TAKE") as Request["mode"], cost, maxWait };
  }

  #take(word: string, words: Words): void {
    if (MODES.includes(word)) this.mode = word;
    switch (word) {
      case "COST":
        this.#takeCost(words.next("cost"));
        break;
      case "MAXWAIT":
        this.maxWait = words.duration("maxwait", { zero: true });
        break;
      case "KEEP":
        this.#takeKeep(words.next("keep"));
        break;
      case "AS":
        this.name = words.next("name");
        if (!/^[A-Za-z0-9_-]{1,32}$/.test(this.name)) {
          throw refused(`name must be 1 to 32 of A-Z, a-z, 0-9, _ and -, not '${this.name}'`);
        }
        break;
      case "OFFSET":
        this.#takeOffset(words.next("offset"));
        break;
      case "ANCHOR": {
        const day = words.next("anchor");
        if (!/^\d{1,2}$/.test(day) || Number(day) < 1 || Number(day) > 31) {
          throw refused("anchor must be a day from 1 to 31");
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

  #takeCost(text: string): void {
    const found = amountOf(text.replace(/^-/, ""), "cost");
    this.isBack = text.startsWith("-") && ceil(found) > 0n;
    this.cost = this.isBack ? found.floor : ceil(found);
    this.isWhole = !found.more && found.floor % UNIT === 0n;
  }

  #takeKeep(text: string): void {
    const match = SHARE.exec(text);
    if (!match) {
      const kept = ceil(amountOf(text, "keep"));
      this.keep = () => kept;
      return;
    }
    const share = scaled(match, 1n);
    if (!share || exceeds(share, 100n)) throw refused("keep must be a share from 0% to 100%");
    this.keep = (limit) => ceil(scaled(match, limit, -2)!);
    this.keepsShare = true;
  }

  #takeOffset(text: string): void {
    const match = /^([+-])(\d\d):([0-5]\d)$/.exec(text);
    const minutes = match ? Number(match[2]) * 60 + Number(match[3]) : Infinity;
    if (minutes > 14 * 60) throw refused("offset must be from -14:00 to +14:00, such as +09:00");
    this.offset = BigInt(match![1] === "-" ? -minutes : minutes) * 60n * UNIT;
  }
}
