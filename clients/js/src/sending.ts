/** Sending of calls: timeouts, resends, and circuit breaking. */

import { Breaker, Complaint, type Log } from "./breaker.js";
import type { Call } from "./calls.js";
import { isCluster, senderOf, type Client, type Send } from "./clients.js";
import { connectionOf, type Connection } from "./connection.js";
import { FullError, SetupError, UnavailableError } from "./errors.js";
import type { Duration } from "./limits.js";
import { addressOf, nodeOf } from "./nodes.js";
import { Timeouts, type Awaited } from "./timeouts.js";
import { explained, messageOf, refusalOf, replyOf } from "./replies.js";

export interface SendingOptions {
  readonly timeoutMs: number;
  readonly connectTimeoutMs: number;
  readonly resends: number;
  readonly failures: number;
  readonly pauseMs: number;
  readonly log: Log;
  readonly now: () => number;
}

/** Blocking call, which the server may answer late. */
export interface Wait<Reply> {
  /** Deadline by the limiter's clock. */
  readonly until: number;
  /** Returns the call that may block for this time. */
  readonly blocking: (block: Duration) => Call<Reply>;
  readonly signal: AbortSignal;
}

/** Pause before a resend, in milliseconds. */
const RESEND_PAUSE_MS = 10;

/**
 * Minimum number of resends of a blocking call, whose connection of its own is established first.
 */
const LEAST_OF_WAITS = 3;

/**
 * Milliseconds of waiting after which a lost connection does not count as a consecutive failure.
 */
const LONG_MS = 1000;

/** Longest duration that the server accepts, in milliseconds. */
const LONGEST_MS = 3650 * 86_400_000;

/** Returns the duration of BLOCK in whole microseconds, where 0 waits without a timeout. */
function blockOf(ms: number): Duration {
  return ms < LONGEST_MS ? `${Math.ceil(ms * 1000)}us` : 0;
}

const UNCONNECTED = "the client was never connected: await client.connect() before its first use";

const NO_TLS =
  "no connection by TLS came about: if the port does not speak TLS, use redis:// in place of rediss://";

export class Sending {
  readonly connection: Connection;
  readonly #client: Client;
  readonly #isCluster: boolean;
  readonly #address: string;
  readonly #send: Send;
  readonly #options: SendingOptions;
  readonly #timeouts: Timeouts;
  readonly #ticks: number;
  /** Number of ticks for which a call waits for a connection. */
  readonly connectTicks: number;
  readonly #complaint: Complaint;
  /** Circuit breakers by node of a cluster; a single server has one. */
  readonly #breakers = new Map<string, Breaker>();

  constructor(client: Client, options: SendingOptions) {
    this.connection = connectionOf(client);
    this.#client = client;
    this.#isCluster = isCluster(client);
    this.#address = addressOf(client);
    this.#send = senderOf(client);
    this.#options = options;
    this.#timeouts = new Timeouts(options.timeoutMs);
    this.#ticks = this.#timeouts.ticksOf(options.timeoutMs);
    this.connectTicks = this.#timeouts.ticksOf(options.connectTimeoutMs);
    this.#complaint = new Complaint(options.now, options.log);
  }

  /** Returns the milliseconds until the call's server is tried again. */
  pauseMs(call: Call<unknown>): number {
    return Math.ceil(this.#breakerOf(call).pauseMs);
  }

  /**
   * Sends a call and returns its reply. Rejects with an UnavailableError in an outage, and with the
   * server's error for a rejected call.
   */
  answer<Reply>(call: Call<Reply>, wait?: Wait<Reply>): Promise<Reply> {
    const breaker = this.#breakerOf(call);
    if (!breaker.allows()) {
      const why = `the server did not answer lately: ${breaker.reason}`;
      return Promise.reject(new UnavailableError(why));
    }
    return new Promise((resolve, reject) => {
      const attempt = new Attempt(this, call, breaker, this.#ticksOf(wait), resolve, reject, wait);
      this.#timeouts.begin(attempt);
      this.send(attempt);
    });
  }

  /** Sends a call, or resends it, for an attempt. */
  send<Reply>(attempt: Attempt<Reply>): void {
    const { call, wait } = attempt;
    const { isReady, times } = this.connection;
    attempt.sentIn = isReady ? undefined : times;
    attempt.sentAt = wait ? this.#options.now() : 0;
    const remaining = wait ? wait.until - attempt.sentAt : 0;
    const sent =
      wait && remaining > 0
        ? this.connection.waiting.send(wait.blocking(blockOf(remaining)), attempt.signal())
        : // Only a call that is not sent at once may have to be cancelled.
          this.#send(call, isReady ? undefined : attempt.signal());
    sent.then(
      (reply) => attempt.answered(reply),
      (error: unknown) => attempt.failed(error),
    );
  }

  decided(attempt: Attempt<any>): void {
    this.#timeouts.end(attempt);
    this.connection.refusal = undefined;
    this.connection.hasAnswered = true;
    attempt.breaker.answered();
    attempt.breaker.decided();
  }

  /** Ends an attempt that its caller cancelled, which is not a failure of the server. */
  abandoned(attempt: Attempt<any>): void {
    this.#timeouts.end(attempt);
  }

  get isConnecting(): boolean {
    return this.connection.isConnecting(this.#options.connectTimeoutMs);
  }

  /**
   * Returns the pause before a resend of a call without a reply, or undefined if it is not resent.
   */
  pauseBeforeResend(attempt: Attempt<any>, error: unknown): number | undefined {
    const { call, wait } = attempt;
    if (replyOf(error, this.#isCluster) !== undefined) return undefined;
    // After a long wait, a failure does not count as consecutive.
    if (wait && this.#options.now() - attempt.sentAt >= LONG_MS) attempt.resent = 0;
    if (!call.repeatable) return undefined;
    // A call that was never sent, as its connection is still being established, was not charged.
    const isUnsent = attempt.sentIn === this.connection.times;
    if (isUnsent && this.isConnecting) return RESEND_PAUSE_MS;
    const most = wait ? Math.max(this.#options.resends, LEAST_OF_WAITS) : this.#options.resends;
    return attempt.resent++ < most ? RESEND_PAUSE_MS * attempt.resent : undefined;
  }

  /** Returns the failure of a call as an error of this package. */
  failed(attempt: Attempt<any>, error: unknown): Error {
    this.#timeouts.end(attempt);
    const { call, breaker } = attempt;
    const refusal = refusalOf(error);
    if (refusal !== undefined) this.connection.refusal = refusal;
    // A rejected connection answers no calls.
    const reply = replyOf(error, this.#isCluster) ?? this.connection.refusal;
    if (reply === undefined && this.connection.isUnconnected) {
      breaker.answered();
      const why = new SetupError(UNCONNECTED, { cause: error });
      this.#complaint.of(breaker.where, UNCONNECTED, call.keys[0] ?? call.route, why);
      return why;
    }
    if (reply === undefined) {
      // The error of the connection is the cause; the error of the call is its consequence.
      const reason = this.connection.trouble ?? messageOf(error);
      const why = this.connection.lacksTls ? `${reason}: ${NO_TLS}` : reason;
      breaker.silent(attempt.epoch);
      breaker.outage(why, false);
      return new UnavailableError(why, { cause: error });
    }
    breaker.answered();
    const why = explained(reply, error);
    if (why instanceof UnavailableError) breaker.outage(why.message, true);
    if (why instanceof SetupError || why instanceof FullError) {
      this.#complaint.of(breaker.where, reply, call.keys[0] ?? call.route, why);
    }
    return why;
  }

  get lateness(): string {
    return `no answer within ${Math.round(this.#options.timeoutMs)} ms`;
  }

  #ticksOf<Reply>(wait: Wait<Reply> | undefined): number {
    if (!wait) return this.#ticks;
    const waitMs = Math.max(0, wait.until - this.#options.now());
    return this.#timeouts.ticksOf(this.#options.timeoutMs + waitMs);
  }

  #breakerOf(call: Call<unknown>): Breaker {
    const node = this.#isCluster ? nodeOf(this.#client, call) : "";
    const existing = this.#breakers.get(node);
    if (existing) return existing;
    const { log, now } = this.#options;
    const made = new Breaker(node || this.#address, this.#options, now, log);
    this.#breakers.set(node, made);
    return made;
  }
}

/** Call in flight. */
export class Attempt<Reply> implements Awaited {
  ticks = 0;
  connecting = 0;
  readonly connectTicks: number;
  /** Number of resends. */
  resent = 0;
  /** Number of connections so far, for a call that was sent before there was a connection. */
  sentIn: number | undefined;
  /** Time of sending by the limiter's clock, for a blocking call. */
  sentAt = 0;
  readonly call: Call<Reply>;
  readonly breaker: Breaker;
  readonly allowedTicks: number;
  readonly wait: Wait<Reply> | undefined;
  readonly epoch: number;
  #isOver = false;
  #lost: unknown;
  #calledOff: AbortController | undefined;
  readonly #aborts: (() => void) | undefined;
  readonly #sending: Sending;
  readonly #resolve: (reply: Reply) => void;
  readonly #reject: (why: unknown) => void;

  constructor(
    sending: Sending,
    call: Call<Reply>,
    breaker: Breaker,
    allowedTicks: number,
    resolve: (reply: Reply) => void,
    reject: (why: unknown) => void,
    wait: Wait<Reply> | undefined,
  ) {
    this.call = call;
    this.breaker = breaker;
    this.allowedTicks = allowedTicks;
    this.wait = wait;
    this.epoch = breaker.epoch;
    this.connectTicks = sending.connectTicks;
    this.#sending = sending;
    this.#resolve = resolve;
    this.#reject = reject;
    if (!wait) return;
    this.#aborts = () => this.#abort(wait.signal.reason);
    wait.signal.addEventListener("abort", this.#aborts);
  }

  /** Returns a signal that is aborted when the caller no longer waits. */
  signal(): AbortSignal {
    this.#calledOff ??= new AbortController();
    return this.#calledOff.signal;
  }

  isConnecting(): boolean {
    return this.#sending.isConnecting;
  }

  answered(reply: unknown): void {
    if (this.#isOver) return;
    let decoded: Reply;
    try {
      decoded = this.call.decode(reply);
    } catch (error) {
      this.failed(error);
      return;
    }
    this.#over();
    this.#sending.decided(this);
    this.#resolve(decoded);
  }

  failed(error: unknown): void {
    if (this.#isOver) return;
    const pause = this.#sending.pauseBeforeResend(this, error);
    if (pause === undefined) {
      this.#over();
      this.#reject(this.#sending.failed(this, error));
      return;
    }
    this.#lost = error;
    setTimeout(() => {
      if (!this.#isOver) this.#sending.send(this);
    }, pause);
  }

  giveUp(): void {
    this.#over();
    const timeout = new UnavailableError(this.#sending.lateness, { cause: this.#lost });
    this.#reject(this.#sending.failed(this, this.#lost ?? timeout));
    this.#calledOff?.abort();
  }

  /** Ends the attempt for its caller, which is not a failure of the server. */
  #abort(reason: unknown): void {
    if (this.#isOver) return;
    this.#over();
    this.#sending.abandoned(this);
    this.#reject(reason);
    this.#calledOff?.abort();
  }

  #over(): void {
    this.#isOver = true;
    if (this.#aborts) this.wait?.signal.removeEventListener("abort", this.#aborts);
  }
}
