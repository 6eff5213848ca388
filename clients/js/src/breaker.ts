/** Spares a server that is away, and whoever waits for it. */

export interface BreakerOptions {
  /** After so many failures in a row, no more calls are made ... */
  readonly failures: number;
  /** ... for so many milliseconds. Then one is tried, and if it is answered all are made again. */
  readonly pauseMs: number;
}

/** Of an outage, and of what somebody has to mend. */
export type Level = "warn" | "error";
export type Log = (line: string, level: Level) => void;

/** Of one server, or of one node of a cluster. */
export class Breaker {
  /** Its address, for the log. */
  readonly where: string;
  readonly #options: BreakerOptions;
  readonly #now: () => number;
  readonly #log: Log;
  /** All failures so far: a call that began before the last of them is a part of it. */
  turn = 0;
  #failures = 0;
  #openUntil = -Infinity;
  /** Told to the log, and not yet that it is over. */
  #lastFailure: number | undefined;
  /** Of this outage the log knows that the server answers, but does not decide. */
  #toldUnable = false;
  /** Why the last call had no answer. */
  reason = "";

  constructor(where: string, options: BreakerOptions, now: () => number, log: Log) {
    this.where = where;
    this.#options = options;
    this.#now = now;
    this.#log = log;
  }

  /** Whether a call may be made. Once a pause is over, one call may: it is for that one to say more. */
  allows(): boolean {
    if (this.#failures < this.#options.failures) return true;
    if (this.#now() < this.#openUntil) return false;
    this.#openUntil = this.#now() + this.#options.pauseMs;
    return true;
  }

  /** Milliseconds until a call may be made again. */
  get pauseMs(): number {
    return Math.max(0, this.#openUntil - this.#now()) || this.#options.pauseMs;
  }

  /** The server answered, if only to say that it cannot decide at the moment. */
  answered(): void {
    this.#failures = 0;
  }

  /** There was no answer to a call that began at this turn. One event fails many calls, and counts once. */
  silent(turn: number): void {
    if (turn < this.turn) return;
    this.turn++;
    this.#failures++;
    if (this.#failures >= this.#options.failures) {
      this.#openUntil = this.#now() + this.#options.pauseMs;
    }
  }

  /**
   * The log is told when an outage begins, not of each call. Once more, if a server that was away is
   * there again but cannot decide: it may have come back without the module.
   */
  outage(why: string, isUnable: boolean): void {
    this.reason = why;
    if (this.#lastFailure === undefined || (isUnable && !this.#toldUnable)) {
      const what = isUnable ? "refuses calls" : "is away";
      this.#log(`rate limits: ${this.where} ${what}: ${why}`, "warn");
      this.#toldUnable = isUnable;
    }
    this.#lastFailure = this.#now();
  }

  /** Over only if for a pause no call has failed: if every other did, the log would be full. */
  decided(): void {
    if (this.#lastFailure === undefined) return;
    if (this.#now() < this.#lastFailure + this.#options.pauseMs) return;
    const what = this.#toldUnable ? "decides again" : "is back";
    this.#log(`rate limits: ${this.where} ${what}`, "warn");
    this.#lastFailure = undefined;
    this.#toldUnable = false;
  }
}

const REPEATED_MS = 60_000;

/** A line in the log for what somebody has to mend: at once, and each minute while it goes on. */
export class Complaint {
  readonly #now: () => number;
  readonly #log: Log;
  /** By the code that the server's reply begins with. */
  readonly #told = new Map<string, number>();

  constructor(now: () => number, log: Log) {
    this.#now = now;
    this.#log = log;
  }

  of(where: string, reply: string, key: string | undefined, why: Error): void {
    const code = /^\S*/.exec(reply)![0];
    const now = this.#now();
    if (now - (this.#told.get(code) ?? -Infinity) < REPEATED_MS) return;
    this.#told.set(code, now);
    const place = key === undefined ? "" : ` for ${JSON.stringify(key)}`;
    this.#log(`rate limits: ${where} refuses a call${place}: ${why.message}`, "error");
  }
}
