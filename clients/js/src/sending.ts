/** Sending of calls: timeouts, resends, and circuit breaking. */

import { Breaker, Complaint, type Log } from "./breaker.js";
import type { Call } from "./calls.js";
import { isCluster, senderOf, type Client, type Send } from "./clients.js";
import { connectionOf, type Connection } from "./connection.js";
import { FullError, SetupError, UnavailableError } from "./errors.js";
import type { Duration } from "./limits.js";
import { addressOf, nodeOf } from "./nodes.js";
import { Timeouts, type Awaited } from "./timeouts.js";
import { explainedError, messageOf, refusalOf, replyOf } from "./replies.js";

export interface SendingOptions {
  readonly timeoutMs: number;
  readonly connectTimeoutMs: number;
  readonly resends: number;
  readonly failures: number;
  readonly pauseMs: number;
  readonly log: Log;
  readonly now: () => number;
}

/** Wait of a call in the server, which replies when the call passes or the time is over. */
export interface Wait<Reply> {
  /** Deadline by the limiter's clock. */
  readonly until: number;
  /** Returns the call with an option that lets it block for up to `block`. */
  readonly blocking: (block: Duration) => Call<Reply>;
  readonly signal: AbortSignal;
}

/** Pause before a resend, in milliseconds. */
const RESEND_PAUSE_MS = 10;

/**
 * Minimum number of resends of a blocking call: its separate connection may fail to be established.
 */
const MIN_BLOCKING_RESENDS = 3;

/**
 * Milliseconds of blocking after which a lost connection does not count towards the resends.
 */
const LONG_BLOCK_MS = 1000;

/** Longest duration that the server accepts, in milliseconds. */
const MAX_DURATION_MS = 3650 * 86_400_000;

/** Converts a wait to the argument of BLOCK. 0 waits without a timeout. */
function blockOf(ms: number): Duration {
  return ms < MAX_DURATION_MS ? `${Math.ceil(ms * 1000)}us` : 0;
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
  /** Timeout of a call in ticks. */
  readonly #timeoutTicks: number;
  /** Timeout of connecting in ticks. */
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
    this.#timeoutTicks = this.#timeouts.ticksOf(options.timeoutMs);
    this.connectTicks = this.#timeouts.ticksOf(options.connectTimeoutMs);
    this.#complaint = new Complaint(options.now, options.log);
  }

  /** Returns the milliseconds until a call is sent again to the server of this call. */
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
      const message = `the server did not answer lately: ${breaker.reason}`;
      return Promise.reject(new UnavailableError(message));
    }
    return new Promise((resolve, reject) => {
      const attempt = new Attempt(this, call, breaker, this.#ticksOf(wait), resolve, reject, wait);
      this.#timeouts.begin(attempt);
      this.send(attempt);
    });
  }

  /** Sends or resends the call of an attempt. */
  send<Reply>(attempt: Attempt<Reply>): void {
    const { call, wait } = attempt;
    const { isReady, readyCount } = this.connection;
    attempt.readyCountWhenQueued = isReady ? undefined : readyCount;
    attempt.sentAt = wait ? this.#options.now() : 0;
    const remaining = wait ? wait.until - attempt.sentAt : 0;
    const sent =
      wait && remaining > 0
        ? this.connection.waiting.send(wait.blocking(blockOf(remaining)), attempt.signal())
        : // Only a call that the client queues may have to be cancelled before it is sent.
          this.#send(call, isReady ? undefined : attempt.signal());
    sent.then(
      (reply) => attempt.answered(reply),
      (error: unknown) => attempt.failed(error),
    );
  }

  /** Ends an attempt whose call the server decided. */
  decided(attempt: Attempt<any>): void {
    this.#timeouts.end(attempt);
    this.connection.refusal = undefined;
    this.connection.hasAnswered = true;
    attempt.breaker.answered();
    attempt.breaker.logRecovery();
  }

  /** Ends an attempt that its caller cancelled, which is not a failure of the server. */
  abandoned(attempt: Attempt<any>): void {
    this.#timeouts.end(attempt);
  }

  get isConnecting(): boolean {
    return this.connection.isConnecting(this.#options.connectTimeoutMs);
  }

  /**
   * Returns the milliseconds before a call without a reply is resent, or undefined if it is not.
   */
  pauseBeforeResend(attempt: Attempt<any>, error: unknown): number | undefined {
    const { call, wait } = attempt;
    if (replyOf(error, this.#isCluster) !== undefined) return undefined;
    if (wait && this.#options.now() - attempt.sentAt >= LONG_BLOCK_MS) attempt.resent = 0;
    if (!call.repeatable) return undefined;
    // A call that waits for its first connection was never sent: trying again is no resend.
    const isUnsent = attempt.readyCountWhenQueued === this.connection.readyCount;
    if (isUnsent && this.isConnecting) return RESEND_PAUSE_MS;
    const { resends } = this.#options;
    const maxResends = wait ? Math.max(resends, MIN_BLOCKING_RESENDS) : resends;
    return attempt.resent++ < maxResends ? RESEND_PAUSE_MS * attempt.resent : undefined;
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
      const setupError = new SetupError(UNCONNECTED, { cause: error });
      this.#complaint.log(breaker.address, UNCONNECTED, call.keys[0] ?? call.route, setupError);
      return setupError;
    }
    if (reply === undefined) {
      // The error of the connection is the cause; the error of the call is its consequence.
      const reason = this.connection.lastError ?? messageOf(error);
      const message = this.connection.lacksTls ? `${reason}: ${NO_TLS}` : reason;
      breaker.failed(attempt.epoch);
      breaker.logOutage(message, false);
      return new UnavailableError(message, { cause: error });
    }
    breaker.answered();
    const explained = explainedError(reply, error);
    if (explained instanceof UnavailableError) breaker.logOutage(explained.message, true);
    if (explained instanceof SetupError || explained instanceof FullError) {
      this.#complaint.log(breaker.address, reply, call.keys[0] ?? call.route, explained);
    }
    return explained;
  }

  /** Message of the error for a call that timed out. */
  get timeoutMessage(): string {
    return `no answer within ${Math.round(this.#options.timeoutMs)} ms`;
  }

  #ticksOf<Reply>(wait: Wait<Reply> | undefined): number {
    if (!wait) return this.#timeoutTicks;
    const waitMs = Math.max(0, wait.until - this.#options.now());
    return this.#timeouts.ticksOf(this.#options.timeoutMs + waitMs);
  }

  #breakerOf(call: Call<unknown>): Breaker {
    const node = this.#isCluster ? nodeOf(this.#client, call) : "";
    const existing = this.#breakers.get(node);
    if (existing) return existing;
    const { log, now } = this.#options;
    const breaker = new Breaker(node || this.#address, this.#options, now, log);
    this.#breakers.set(node, breaker);
    return breaker;
  }
}

/** Call in flight, and its resends. */
export class Attempt<Reply> implements Awaited {
  ticks = 0;
  connectingTicks = 0;
  readonly allowedConnectingTicks: number;
  /** Number of resends. */
  resent = 0;
  /** `readyCount` of the connection, if it was not ready, so that the client queued the call. */
  readyCountWhenQueued: number | undefined;
  /** Time of sending by the limiter's clock, for a blocking call. */
  sentAt = 0;
  readonly call: Call<Reply>;
  readonly breaker: Breaker;
  readonly allowedTicks: number;
  readonly wait: Wait<Reply> | undefined;
  readonly epoch: number;
  #isOver = false;
  /** Error of the last sending that is followed by a resend. */
  #lastError: unknown;
  #cancellation: AbortController | undefined;
  readonly #onAbort: (() => void) | undefined;
  readonly #sending: Sending;
  readonly #resolve: (reply: Reply) => void;
  readonly #reject: (reason: unknown) => void;

  constructor(
    sending: Sending,
    call: Call<Reply>,
    breaker: Breaker,
    allowedTicks: number,
    resolve: (reply: Reply) => void,
    reject: (reason: unknown) => void,
    wait: Wait<Reply> | undefined,
  ) {
    this.call = call;
    this.breaker = breaker;
    this.allowedTicks = allowedTicks;
    this.wait = wait;
    this.epoch = breaker.epoch;
    this.allowedConnectingTicks = sending.connectTicks;
    this.#sending = sending;
    this.#resolve = resolve;
    this.#reject = reject;
    if (!wait) return;
    this.#onAbort = () => this.#abort(wait.signal.reason);
    wait.signal.addEventListener("abort", this.#onAbort);
  }

  /** Returns a signal that is aborted when the caller no longer waits. */
  signal(): AbortSignal {
    this.#cancellation ??= new AbortController();
    return this.#cancellation.signal;
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
    this.#end();
    this.#sending.decided(this);
    this.#resolve(decoded);
  }

  failed(error: unknown): void {
    if (this.#isOver) return;
    const pause = this.#sending.pauseBeforeResend(this, error);
    if (pause === undefined) {
      this.#end();
      this.#reject(this.#sending.failed(this, error));
      return;
    }
    this.#lastError = error;
    setTimeout(() => {
      if (!this.#isOver) this.#sending.send(this);
    }, pause);
  }

  giveUp(): void {
    this.#end();
    const timeout = new UnavailableError(this.#sending.timeoutMessage, { cause: this.#lastError });
    this.#reject(this.#sending.failed(this, this.#lastError ?? timeout));
    this.#cancellation?.abort();
  }

  /** Ends the attempt for its caller, which is not a failure of the server. */
  #abort(reason: unknown): void {
    if (this.#isOver) return;
    this.#end();
    this.#sending.abandoned(this);
    this.#reject(reason);
    this.#cancellation?.abort();
  }

  #end(): void {
    this.#isOver = true;
    if (this.#onAbort) this.wait?.signal.removeEventListener("abort", this.#onAbort);
  }
}
