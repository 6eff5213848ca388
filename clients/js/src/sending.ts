/** The course of a call: sent, waited for, sent again, and given up. */

import { Breaker, Complaint, type Log } from "./breaker.js";
import type { Call } from "./calls.js";
import { isCluster, senderOf, type Client, type Send } from "./clients.js";
import { connectionOf, type Connection } from "./connection.js";
import { FullError, SetupError, UnavailableError } from "./errors.js";
import type { Duration } from "./limits.js";
import { addressOf, nodeOf } from "./nodes.js";
import { Patience, type Awaited } from "./patience.js";
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

/** Of a call that the server may answer late. */
export interface Wait<Reply> {
  /** Until when, by the limiter's clock. */
  readonly until: number;
  /** The call, if it may wait for so long yet. */
  readonly blocking: (block: Duration) => Call<Reply>;
  readonly signal: AbortSignal;
}

/** Between one sending and the next, in milliseconds. */
const RESEND_PAUSE_MS = 10;

/** Whoever waits in line has a connection of its own, which is made first. */
const LEAST_OF_WAITS = 3;

/** To be answered, or to be lost: not one of several failures in a row. */
const LONG_MS = 1000;

/** Longer than this the server takes no duration. */
const LONGEST_MS = 3650 * 86_400_000;

/** As the server takes it, in whole microseconds. To it 0 is as long as it takes. */
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
  readonly #patience: Patience;
  readonly #ticks: number;
  /** Ticks for which a call waits for connections. */
  readonly connectPatience: number;
  readonly #complaint: Complaint;
  /** By the node of a cluster; of one server there is one. */
  readonly #breakers = new Map<string, Breaker>();

  constructor(client: Client, options: SendingOptions) {
    this.connection = connectionOf(client);
    this.#client = client;
    this.#isCluster = isCluster(client);
    this.#address = addressOf(client);
    this.#send = senderOf(client);
    this.#options = options;
    this.#patience = new Patience(options.timeoutMs);
    this.#ticks = this.#patience.ticksOf(options.timeoutMs);
    this.connectPatience = this.#patience.ticksOf(options.connectTimeoutMs);
    this.#complaint = new Complaint(options.now, options.log);
  }

  /** Milliseconds until the call's server is asked again, once it is not. */
  pauseMs(call: Call<unknown>): number {
    return Math.ceil(this.#breakerOf(call).pauseMs);
  }

  /** Fails with an UnavailableError if nobody decided, and with what the server says of a mistake. */
  answer<Reply>(call: Call<Reply>, wait?: Wait<Reply>): Promise<Reply> {
    const breaker = this.#breakerOf(call);
    if (!breaker.allows()) {
      const why = `the server did not answer lately: ${breaker.reason}`;
      return Promise.reject(new UnavailableError(why));
    }
    return new Promise((resolve, reject) => {
      const attempt = new Attempt(this, call, breaker, this.#ticksOf(wait), resolve, reject, wait);
      this.#patience.begin(attempt);
      this.send(attempt);
    });
  }

  /** For the attempt, as are those that follow. */
  send<Reply>(attempt: Attempt<Reply>): void {
    const { call, wait } = attempt;
    const { isReady, times } = this.connection;
    attempt.sentIn = isReady ? undefined : times;
    attempt.sentAt = wait ? this.#options.now() : 0;
    const left = wait ? wait.until - attempt.sentAt : 0;
    const sent =
      wait && left > 0
        ? this.connection.waiting.send(wait.blocking(blockOf(left)), attempt.signal())
        : // Only what is not sent at once may have to be called off.
          this.#send(call, isReady ? undefined : attempt.signal());
    sent.then(
      (reply) => attempt.answered(reply),
      (error: unknown) => attempt.failed(error),
    );
  }

  decided(attempt: Attempt<any>): void {
    this.#patience.end(attempt);
    this.connection.refusal = undefined;
    this.connection.hasAnswered = true;
    attempt.breaker.answered();
    attempt.breaker.decided();
  }

  /** The caller waits no more, which says nothing of the server. */
  abandoned(attempt: Attempt<any>): void {
    this.#patience.end(attempt);
  }

  get isConnecting(): boolean {
    return this.connection.isConnecting(this.#options.connectTimeoutMs);
  }

  /** Whether a call that had no reply is to be sent once more, and when. */
  pauseBeforeResend(attempt: Attempt<any>, error: unknown): number | undefined {
    const { call, wait } = attempt;
    if (replyOf(error, this.#isCluster) !== undefined) return undefined;
    // A call that has waited for long has not failed several times in a row.
    if (wait && this.#options.now() - attempt.sentAt >= LONG_MS) attempt.resent = 0;
    if (!call.repeatable) return undefined;
    // What was never sent, as its connection is still being made, cannot have been charged.
    const isUnsent = attempt.sentIn === this.connection.times;
    if (isUnsent && this.isConnecting) return RESEND_PAUSE_MS;
    const most = wait ? Math.max(this.#options.resends, LEAST_OF_WAITS) : this.#options.resends;
    return attempt.resent++ < most ? RESEND_PAUSE_MS * attempt.resent : undefined;
  }

  /** What became of a call, as an error of this package. */
  failed(attempt: Attempt<any>, error: unknown): Error {
    this.#patience.end(attempt);
    const { call, breaker } = attempt;
    const refusal = refusalOf(error);
    if (refusal !== undefined) this.connection.refusal = refusal;
    // A client that the server does not let in has no answer to calls either.
    const said = replyOf(error, this.#isCluster) ?? this.connection.refusal;
    if (said === undefined && this.connection.isUnconnected) {
      breaker.answered();
      const why = new SetupError(UNCONNECTED, { cause: error });
      this.#complaint.of(breaker.where, UNCONNECTED, call.keys[0] ?? call.route, why);
      return why;
    }
    if (said === undefined) {
      // What the connection says is the reason; what the client says of the call, its consequence.
      const reason = this.connection.trouble ?? messageOf(error);
      const why = this.connection.lacksTls ? `${reason}: ${NO_TLS}` : reason;
      breaker.silent(attempt.turn);
      breaker.outage(why, false);
      return new UnavailableError(why, { cause: error });
    }
    breaker.answered();
    const why = explained(said, error);
    if (why instanceof UnavailableError) breaker.outage(why.message, true);
    if (why instanceof SetupError || why instanceof FullError) {
      this.#complaint.of(breaker.where, said, call.keys[0] ?? call.route, why);
    }
    return why;
  }

  get lateness(): string {
    return `no answer within ${Math.round(this.#options.timeoutMs)} ms`;
  }

  #ticksOf<Reply>(wait: Wait<Reply> | undefined): number {
    if (!wait) return this.#ticks;
    const waitMs = Math.max(0, wait.until - this.#options.now());
    return this.#patience.ticksOf(this.#options.timeoutMs + waitMs);
  }

  #breakerOf(call: Call<unknown>): Breaker {
    const node = this.#isCluster ? nodeOf(this.#client, call) : "";
    const known = this.#breakers.get(node);
    if (known) return known;
    const { log, now } = this.#options;
    const made = new Breaker(node || this.#address, this.#options, now, log);
    this.#breakers.set(node, made);
    return made;
  }
}

/** One call on its way. */
export class Attempt<Reply> implements Awaited {
  ticks = 0;
  connecting = 0;
  readonly connectPatience: number;
  /** How often it has been sent again. */
  resent = 0;
  /** Of one that was sent before there was a connection: how many there had been. */
  sentIn: number | undefined;
  /** By the limiter's clock, of a call that waits. */
  sentAt = 0;
  readonly call: Call<Reply>;
  readonly breaker: Breaker;
  readonly patience: number;
  readonly wait: Wait<Reply> | undefined;
  readonly turn: number;
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
    patience: number,
    resolve: (reply: Reply) => void,
    reject: (why: unknown) => void,
    wait: Wait<Reply> | undefined,
  ) {
    this.call = call;
    this.breaker = breaker;
    this.patience = patience;
    this.wait = wait;
    this.turn = breaker.turn;
    this.connectPatience = sending.connectPatience;
    this.#sending = sending;
    this.#resolve = resolve;
    this.#reject = reject;
    if (!wait) return;
    this.#aborts = () => this.#abort(wait.signal.reason);
    wait.signal.addEventListener("abort", this.#aborts);
  }

  /** Aborted when nobody waits for the call any more. */
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
    const late = new UnavailableError(this.#sending.lateness, { cause: this.#lost });
    this.#reject(this.#sending.failed(this, this.#lost ?? late));
    this.#calledOff?.abort();
  }

  /** By the caller, which says nothing of the server. */
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
