/** Circuit breaker, which spares an unreachable server and its callers. */

export interface BreakerOptions {
  /** Number of consecutive failures after which calls stop for `pauseMs`. */
  readonly failures: number;
  /** Milliseconds until one call is sent as a probe. If the probe is answered, calls resume. */
  readonly pauseMs: number;
}

/** Log level: "warn" for outages, "error" for errors that need an operator. */
export type Level = "warn" | "error";
export type Log = (line: string, level: Level) => void;

/** Circuit breaker of one server, or of one node of a cluster. */
export class Breaker {
  /** Address of the server, for the log. */
  readonly address: string;
  readonly #options: BreakerOptions;
  readonly #now: () => number;
  readonly #log: Log;
  /**
   * Number of failures so far. A call that was sent in an earlier epoch does not count as a further
   * failure.
   */
  epoch = 0;
  #consecutiveFailures = 0;
  #openUntil = -Infinity;
  /** Time of the last failure of the logged outage; undefined without an outage. */
  #lastFailure: number | undefined;
  /** `true` if the logged outage is of a server that replies but cannot decide. */
  #loggedUnable = false;
  /** Reason of the last failure. */
  reason = "";

  constructor(address: string, options: BreakerOptions, now: () => number, log: Log) {
    this.address = address;
    this.#options = options;
    this.#now = now;
    this.#log = log;
  }

  /** Returns `true` if a call may be sent. After a pause, only one call may, as a probe. */
  allows(): boolean {
    if (this.#consecutiveFailures < this.#options.failures) return true;
    if (this.#now() < this.#openUntil) return false;
    this.#openUntil = this.#now() + this.#options.pauseMs;
    return true;
  }

  /** Milliseconds until the next attempt: the rest of the pause, or a whole pause if none is running. */
  get pauseMs(): number {
    return Math.max(0, this.#openUntil - this.#now()) || this.#options.pauseMs;
  }

  /** Records a reply of the server, which may be an error. */
  answered(): void {
    this.#consecutiveFailures = 0;
  }

  /**
   * Records a call without a reply that was sent in `epoch`. Calls that fail together count once.
   */
  failed(epoch: number): void {
    if (epoch < this.epoch) return;
    this.epoch++;
    this.#consecutiveFailures++;
    if (this.#consecutiveFailures >= this.#options.failures) {
      this.#openUntil = this.#now() + this.#options.pauseMs;
    }
  }

  /**
   * Logs the beginning of an outage once. Logs again if the server was unreachable and then replies
   * but cannot decide: it may have restarted without the module.
   */
  logOutage(reason: string, isUnable: boolean): void {
    this.reason = reason;
    if (this.#lastFailure === undefined || (isUnable && !this.#loggedUnable)) {
      const state = isUnable ? "refuses calls" : "is away";
      this.#log(`rate limits: ${this.address} ${state}: ${reason}`, "warn");
      this.#loggedUnable = isUnable;
    }
    this.#lastFailure = this.#now();
  }

  /**
   * Logs the end of an outage if the server decides after a pause without failures, so that
   * alternating results do not fill the log.
   */
  logRecovery(): void {
    if (this.#lastFailure === undefined) return;
    if (this.#now() < this.#lastFailure + this.#options.pauseMs) return;
    const state = this.#loggedUnable ? "decides again" : "is back";
    this.#log(`rate limits: ${this.address} ${state}`, "warn");
    this.#lastFailure = undefined;
    this.#loggedUnable = false;
  }
}

/** Minimum milliseconds between two log messages of errors with the same code. */
const LOG_INTERVAL_MS = 60_000;

/** Log of errors that need an operator, with at most one message a minute for each error code. */
export class Complaint {
  readonly #now: () => number;
  readonly #log: Log;
  /** Time of the last log message for each code, which is the first word of the error. */
  readonly #loggedAt = new Map<string, number>();

  constructor(now: () => number, log: Log) {
    this.#now = now;
    this.#log = log;
  }

  /** Logs the reply to a call for `key`, unless its code was logged lately. `error` explains it. */
  log(address: string, reply: string, key: string | undefined, error: Error): void {
    const code = /^\S*/.exec(reply)![0];
    const now = this.#now();
    if (now - (this.#loggedAt.get(code) ?? -Infinity) < LOG_INTERVAL_MS) return;
    this.#loggedAt.set(code, now);
    const suffix = key === undefined ? "" : ` for ${JSON.stringify(key)}`;
    this.#log(`rate limits: ${address} refuses a call${suffix}: ${error.message}`, "error");
  }
}
