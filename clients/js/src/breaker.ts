/** Circuit breaker, which spares an unreachable server and its callers. */

export interface BreakerOptions {
  /** Number of consecutive failures after which calls stop for `pauseMs`. */
  readonly failures: number;
  /** Milliseconds until one call is sent as a probe. If it is answered, calls resume. */
  readonly pauseMs: number;
}

/** Log level: "warn" for outages, "error" for errors that need an operator. */
export type Level = "warn" | "error";
export type Log = (line: string, level: Level) => void;

/** Circuit breaker of one server, or of one node of a cluster. */
export class Breaker {
  /** Address of the server, for the log. */
  readonly where: string;
  readonly #options: BreakerOptions;
  readonly #now: () => number;
  readonly #log: Log;
  /**
   * Number of failures so far. A call that began before the last failure belongs to that failure.
   */
  epoch = 0;
  #failures = 0;
  #openUntil = -Infinity;
  /** Time of the last failure of the logged outage; undefined if there is none. */
  #lastFailure: number | undefined;
  /** `true` if the log says that the server replies but cannot decide. */
  #loggedUnable = false;
  /** Reason of the last failure. */
  reason = "";

  constructor(where: string, options: BreakerOptions, now: () => number, log: Log) {
    this.where = where;
    this.#options = options;
    this.#now = now;
    this.#log = log;
  }

  /** Returns `true` if a call may be sent. After a pause, only one call may, as a probe. */
  allows(): boolean {
    if (this.#failures < this.#options.failures) return true;
    if (this.#now() < this.#openUntil) return false;
    this.#openUntil = this.#now() + this.#options.pauseMs;
    return true;
  }

  /** Milliseconds until a call may be sent again. */
  get pauseMs(): number {
    return Math.max(0, this.#openUntil - this.#now()) || this.#options.pauseMs;
  }

  /** Records a reply of the server, even if it was only an error. */
  answered(): void {
    this.#failures = 0;
  }

  /** Records a call without a reply that began at `epoch`. Calls that fail together count once. */
  silent(epoch: number): void {
    if (epoch < this.epoch) return;
    this.epoch++;
    this.#failures++;
    if (this.#failures >= this.#options.failures) {
      this.#openUntil = this.#now() + this.#options.pauseMs;
    }
  }

  /**
   * Logs the begin of an outage once. Logs again if the server was unreachable and now replies but
   * cannot decide: it may have restarted without the module.
   */
  outage(why: string, isUnable: boolean): void {
    this.reason = why;
    if (this.#lastFailure === undefined || (isUnable && !this.#loggedUnable)) {
      const state = isUnable ? "refuses calls" : "is away";
      this.#log(`rate limits: ${this.where} ${state}: ${why}`, "warn");
      this.#loggedUnable = isUnable;
    }
    this.#lastFailure = this.#now();
  }

  /**
   * Logs the end of an outage after a pause without failures, so that alternating results do not
   * fill the log.
   */
  decided(): void {
    if (this.#lastFailure === undefined) return;
    if (this.#now() < this.#lastFailure + this.#options.pauseMs) return;
    const state = this.#loggedUnable ? "decides again" : "is back";
    this.#log(`rate limits: ${this.where} ${state}`, "warn");
    this.#lastFailure = undefined;
    this.#loggedUnable = false;
  }
}

const REPEATED_MS = 60_000;

/** Log of errors that need an operator: at once, and then once a minute. */
export class Complaint {
  readonly #now: () => number;
  readonly #log: Log;
  /** Time of the last log message by the code of the error reply. */
  readonly #loggedAt = new Map<string, number>();

  constructor(now: () => number, log: Log) {
    this.#now = now;
    this.#log = log;
  }

  of(where: string, reply: string, key: string | undefined, why: Error): void {
    const code = /^\S*/.exec(reply)![0];
    const now = this.#now();
    if (now - (this.#loggedAt.get(code) ?? -Infinity) < REPEATED_MS) return;
    this.#loggedAt.set(code, now);
    const place = key === undefined ? "" : ` for ${JSON.stringify(key)}`;
    this.#log(`rate limits: ${where} refuses a call${place}: ${why.message}`, "error");
  }
}
