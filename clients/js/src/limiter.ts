/** The limiter: charges limits on the server, and says what holds while the server is away. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import { Breaker, Complaint, type Log } from "./breaker.js";
import * as calls from "./calls.js";
import type { Call, CallOptions, Keyed, Once, PeekOptions } from "./calls.js";
import { isCluster, senderOf, wordsAreText, type Client, type Send } from "./clients.js";
import { decisionOf, type Decision } from "./decision.js";
import {
  CallError,
  DeniedError,
  FullError,
  RateLimitError,
  SetupError,
  UnavailableError,
} from "./errors.js";
import { Lease, type LeaseOptions } from "./lease.js";
import {
  amount,
  fixed,
  seconds,
  type ConcurrencyLimit,
  type Duration,
  type Limits,
} from "./limits.js";
import { LocalLimits, type Charged, type LocalOptions } from "./local.js";
import * as policies from "./policies.js";
import { explained, mayPassWithoutId, messageOf, refusalOf, replyOf } from "./replies.js";
import { Units, type UnitsOptions } from "./units.js";
import { connectionOf, type Connection } from "./waiting.js";

export interface LimiterOptions {
  /** What every key begins with. Nothing by default. */
  readonly prefix?: string;
  /**
   * Whether calls bring an id of their own, so that sending one again charges nothing. true by
   * default. false: keys stay at their smallest, and what a client sends twice may be charged twice.
   */
  readonly once?: boolean;
  /**
   * For how long the server remembers an id: somewhat longer than your client goes on sending. 30
   * seconds by default.
   */
  readonly onceTtl?: Duration;
  /** How long a call may take, with all that is sent again. 250 ms by default. */
  readonly timeout?: Duration;
  /** How often a call is sent again whose connection was lost. 3 by default. */
  readonly resends?: number;
  /** After so many calls in a row without an answer nobody asks ... 5 by default. */
  readonly failures?: number;
  /** ... for this long. Then one call tries again. 1 second by default. */
  readonly pause?: Duration;
  /**
   * What holds while the server does not decide:
   * - "open", the default: everything passes;
   * - "closed": nothing does;
   * - "throw": an UnavailableError is thrown;
   * - a share: this process's part of each limit, in its own memory.
   *
   * A mistake is no outage: it is always thrown. Nor is a key without room: it is always denied.
   */
  readonly onOutage?: "open" | "closed" | "throw" | LocalOptions;
  /**
   * Told when an outage begins and when it is over ("warn"), and of what somebody has to mend
   * ("error"). console.warn and console.error by default.
   */
  readonly log?: Log;
  /** Milliseconds that never go back. performance.now by default. */
  readonly now?: () => number;
}

export interface TakeOptions extends PeekOptions {
  /**
   * An id of your own, to settle the charge by or to send the call again by yourself. true: a new
   * one. false: none.
   */
  readonly once?: boolean | string | Once;
}

/** Between one sending and the next. */
const RESEND_PAUSE_MS = 10;

/** Of a call that the server may answer late. */
interface Wait<Reply> {
  /** Until when, by the limiter's clock. */
  readonly until: number;
  /** The call, if it may wait for so long yet. */
  readonly blocking: (block: Duration) => Call<Reply>;
  readonly signal: AbortSignal;
}

/** To be answered, or to be lost: not one of several failures in a row. */
const LONG_MS = 1000;

/** Longer than this a timer does not sleep; and longer than that the server takes no duration. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
const LONGEST_MS = 3650 * 86_400_000;

/** As the server takes it, in whole microseconds. To it 0 is as long as it takes. */
function blockOf(ms: number): Duration {
  return ms < LONGEST_MS ? `${Math.ceil(ms * 1000)}us` : 0;
}

export class Limiter {
  /** The limits that the server keeps under a name. */
  readonly policies: Policies;
  readonly #send: Send;
  readonly #connection: Connection;
  readonly #isCluster: boolean;
  /** Ends what waits, when the limiter is closed. */
  #closing = new AbortController();
  readonly #prefix: string;
  readonly #once: boolean;
  readonly #onceTtl: Duration;
  readonly #timeoutMs: number;
  readonly #resends: number;
  readonly #breaker: Breaker;
  readonly #complaint: Complaint;
  readonly #onOutage: "open" | "closed" | "throw" | LocalLimits;
  readonly #now: () => number;

  constructor(client: Client, options: LimiterOptions = {}) {
    const { onOutage = "open", now = () => performance.now() } = options;
    const { log = (line, level) => console[level](line) } = options;
    this.#send = senderOf(client);
    this.#connection = connectionOf(client);
    this.#isCluster = isCluster(client);
    this.#prefix = options.prefix ?? "";
    this.#once = options.once ?? true;
    this.#onceTtl = options.onceTtl ?? 30;
    this.#timeoutMs = seconds(options.timeout ?? 0.25) * 1000;
    this.#resends = options.resends ?? 3;
    this.#breaker = new Breaker(
      { failures: options.failures ?? 5, pauseMs: seconds(options.pause ?? 1) * 1000 },
      now,
      log,
    );
    this.#complaint = new Complaint(now, log);
    this.#onOutage = typeof onOutage === "string" ? onOutage : new LocalLimits(onOutage, now);
    this.#now = now;
    this.policies = new Policies((call) => this.#answer(call));
  }

  /** Charges all the limits of a key, or none of them. */
  async take(key: string, limits: Limits, options: TakeOptions = {}): Promise<Decision> {
    return this.#take(options, ofKey(key, limits), (how) =>
      calls.take(this.#keyOf(key), limits, how),
    );
  }

  /** Says what `take` would, and charges nothing. A replica may answer: the client's settings say. */
  async peek(key: string, limits: Limits, options: PeekOptions = {}): Promise<Decision> {
    checkCost(options.cost);
    const call = calls.peek(this.#keyOf(key), limits, options);
    return this.#decide(call, ofKey(key, limits), options, true);
  }

  /**
   * Charges limits of several keys together: all, or none. In a cluster the keys have to be in one
   * slot, so give them a tag in common: `{acme}:user:42` and `{acme}:all`.
   */
  async takeAll(
    keyed: Keyed,
    options: Omit<TakeOptions, "upto" | "each" | "ban"> = {},
  ): Promise<Decision> {
    return this.#take(options, Object.entries(keyed), (how) =>
      calls.takeAll(this.#prefixed(keyed), how),
    );
  }

  /** Says what `takeAll` would, and charges nothing. */
  async peekAll(
    keyed: Keyed,
    options: Omit<PeekOptions, "upto" | "each" | "ban"> = {},
  ): Promise<Decision> {
    checkCost(options.cost);
    const call = calls.peekAll(this.#prefixed(keyed), options);
    return this.#decide(call, Object.entries(keyed), options, true);
  }

  /**
   * Corrects a charge by its id (`decision.id`, or your own): to the units that it turned out to
   * need. With the limits of the first call. Not allowed if the id is not known, or no longer.
   */
  async settle(key: string, limits: Limits, id: string, cost: number): Promise<Decision> {
    checkCost(cost);
    return this.#correct(calls.settle(this.#keyOf(key), limits, id, cost));
  }

  /**
   * Gives back units of whomever. Sent twice it gives back twice, so it is not sent again if there
   * is no answer. To give back a charge of your own, `settle` it with 0.
   */
  async giveBack(key: string, limits: Limits, cost = 1): Promise<Decision> {
    amount(cost, "cost", { zero: false });
    return this.#correct(calls.take(this.#keyOf(key), limits, { cost: -cost }), () =>
      this.#onOutage instanceof LocalLimits
        ? this.#onOutage.take(ofKey(key, limits), { cost: -cost })
        : undefined,
    );
  }

  /** Forgets all that a key has used. Returns whether there was anything to forget. */
  async reset(key: string): Promise<boolean> {
    return this.#answer(calls.reset(this.#keyOf(key)));
  }

  /**
   * Takes a lease, renews it three times in each ttl, and releases it at the end:
   * `await using lease = await limiter.lease(...)`. Throws a DeniedError if there is no room, and
   * none came while it waited.
   */
  async lease(key: string, limit: ConcurrencyLimit, options: LeaseOptions = {}): Promise<Lease> {
    const { holder = randomUUID(), cost, nx = false, wait = 0, signal } = options;
    const acquire = (again: boolean, block?: Duration) =>
      calls.acquire(this.#keyOf(key), limit, holder, {
        ...(cost === undefined ? {} : { cost }),
        ...(block === undefined ? {} : { block }),
        nx: nx && !again,
      });
    const release = () => this.#answer(calls.release(this.#keyOf(key), holder));
    const ttlMs = seconds(limit.ttl) * 1000;
    const waitMs = wait === Infinity ? Infinity : seconds(wait) * 1000;
    const until = this.#now() + waitMs;
    const ending = new AbortController();
    const signals = [this.#closing.signal, ...(signal ? [signal] : [])];
    const ends = signals.map((one) => () => ending.abort(one.reason));
    signals.forEach((one, index) => {
      if (one.aborted) ending.abort(one.reason);
      one.addEventListener("abort", ends[index]!);
    });
    try {
      for (let again = false; ; again = true) {
        const sentAt = this.#now();
        const blocking = (block: Duration) => acquire(again, block);
        const decision = await this.#decide(
          acquire(again),
          [[key, limit]],
          cost === undefined ? {} : { cost },
          false,
          waitMs > 0 ? { until, blocking, signal: ending.signal } : undefined,
        ).catch(async (error: unknown) => {
          // It may have been granted all the same.
          if (ending.signal.aborted) await release().catch(() => {});
          throw error;
        });
        if (!decision.allowed) throw new DeniedError(decision);
        // When it was granted is not known here, and that it was asked for then: if much of the ttl may
        // be over, it is renewed first.
        if (decision.source !== "server" || this.#now() - sentAt < ttlMs / 2) {
          const renew = () => this.#answer(acquire(true));
          return new Lease(decision, { holder, ttlMs, sentAt, now: this.#now, renew, release });
        }
      }
    } finally {
      signals.forEach((one, index) => one.removeEventListener("abort", ends[index]!));
    }
  }

  /** Releases leases by their holders. Returns how many were held. */
  async release(key: string, ...holders: string[]): Promise<number> {
    return this.#answer(calls.release(this.#keyOf(key), ...holders));
  }

  /** Bans a key, or with 0 lifts its ban. Returns for how many milliseconds it is banned. */
  async ban(key: string, time: Duration): Promise<number> {
    return this.#answer(calls.banKey(this.#keyOf(key), time));
  }

  /**
   * For the start: throws a SetupError that says what to do, such as of a server without the module,
   * or an UnavailableError if the server cannot be reached.
   */
  async check(): Promise<void> {
    await this.#answer(calls.peek(`${this.#prefix}{check}`, fixed(1, 1)));
  }

  /**
   * For a key that is hot: takes units by the batch and spends them in this process. What is not
   * spent is given back when its time is over, and by `close`.
   */
  units(key: string, limits: Limits, options: UnitsOptions = {}): Units {
    return new Units(options, {
      now: this.#now,
      take: (cost, once) =>
        this.#answer(calls.take(this.#keyOf(key), limits, { cost, upto: true, once })),
      settle: (id, cost) => this.#answer(calls.settle(this.#keyOf(key), limits, id, cost)),
      instead: (cost, error) => this.#instead(error, ofKey(key, limits), { cost }, false),
    });
  }

  /**
   * Ends what waits for a lease, and closes the connections that were opened to wait on. The client
   * is yours to close. Whoever asks after that is answered as ever.
   */
  close(): void {
    this.#closing.abort(new RateLimitError("the limiter was closed"));
    this.#closing = new AbortController();
    this.#connection.waiting.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  #keyOf(key: string): string {
    if (typeof key !== "string") throw new TypeError(`a key must be a string: ${String(key)}`);
    return this.#prefix + key;
  }

  #prefixed(keyed: Keyed): Keyed {
    return Object.fromEntries(
      Object.entries(keyed).map(([key, limit]) => [this.#keyOf(key), limit]),
    );
  }

  async #take(
    { once: asked = this.#once, ...options }: TakeOptions,
    charged: Charged,
    callOf: (options: CallOptions) => Call<Decision>,
  ): Promise<Decision> {
    const { cost = 1 } = options;
    checkCost(cost);
    const once = cost > 0 ? this.#onceOf(asked) : undefined;
    const named = callOf(once ? { ...options, once } : options);
    try {
      const decision = await this.#answer(named);
      return once && decision.allowed ? { ...decision, id: once.id } : decision;
    } catch (error) {
      const mayPass = error instanceof FullError && mayPassWithoutId(messageOf(error.cause));
      if (!mayPass || asked !== true || options.upto || !once) {
        return this.#instead(error, charged, options, false);
      }
      // Rather than deny what is in order: this one may be charged twice, if it is sent twice.
      return this.#decide(callOf(options), charged, options, false).catch((without: unknown) => {
        // It is the id that was missing.
        if (!(without instanceof CallError)) throw without;
        return this.#instead(error, charged, options, false);
      });
    }
  }

  #onceOf(asked: boolean | string | Once): Once | undefined {
    if (asked === false) return undefined;
    if (typeof asked === "object") return asked;
    return { id: asked === true ? randomUUID() : asked, ttl: this.#onceTtl };
  }

  async #decide(
    call: Call<Decision>,
    charged: Charged,
    options: PeekOptions,
    peeks: boolean,
    wait?: Wait<Decision>,
  ): Promise<Decision> {
    try {
      return await this.#answer(call, wait);
    } catch (error) {
      return this.#instead(error, charged, options, peeks);
    }
  }

  async #correct(
    call: Call<Decision>,
    locally: () => Decision | undefined = () => undefined,
  ): Promise<Decision> {
    try {
      return await this.#answer(call);
    } catch (error) {
      if (error instanceof FullError) return nobody(false, null, error);
      if (!(error instanceof UnavailableError) || this.#onOutage === "throw") throw error;
      const decision = locally();
      return decision ? { ...decision, error } : nobody(false, null, error);
    }
  }

  /** What holds while the server does not decide. A mistake is still an error. */
  #instead(error: unknown, charged: Charged, options: PeekOptions, peeks: boolean): Decision {
    const { cost = 1, upto = false } = options;
    const nobodyDecides = (allowed: boolean, waitMs: number) => ({
      ...nobody(allowed, waitMs, error),
      ...(upto ? { granted: allowed ? Math.floor(cost) : 0 } : {}),
    });
    const askedAgainMs = Math.ceil(this.#breaker.pauseMs);
    if (error instanceof FullError) return nobodyDecides(false, askedAgainMs);
    if (!(error instanceof UnavailableError) || this.#onOutage === "throw") throw error;
    if (this.#onOutage === "open") return nobodyDecides(true, 0);
    if (this.#onOutage === "closed") return nobodyDecides(false, askedAgainMs);
    const decision = this.#onOutage.take(charged, options, peeks);
    // A policy, and nobody has said what stands in for it.
    if (!decision) return nobodyDecides(true, 0);
    if (decision.allowed) return { ...decision, error };
    // Not when there is a unit here, but when the server is asked again, whose limit is larger.
    return { ...decision, wait: askedAgainMs / 1000, waitMs: askedAgainMs, error };
  }

  /** Throws an UnavailableError if nobody decided, and what the server says if the call is wrong. */
  async #answer<Reply>(call: Call<Reply>, wait?: Wait<Reply>): Promise<Reply> {
    wait?.signal.throwIfAborted();
    wordsAreText(call);
    if (!this.#breaker.allows()) throw new UnavailableError("the server did not answer lately");
    try {
      const reply = await this.#inTime(call, wait);
      this.#connection.refusal = undefined;
      this.#breaker.answered();
      this.#breaker.decided();
      return reply;
    } catch (error) {
      // Of the server that says nothing.
      if (wait?.signal.aborted) throw error;
      throw this.#failed(error, call);
    }
  }

  /** What became of a call, as an error of this package. */
  #failed(error: unknown, call: Call<unknown>): Error {
    const refusal = refusalOf(error);
    if (refusal !== undefined) this.#connection.refusal = refusal;
    // A client that the server does not let in has no answer to calls either.
    const said = replyOf(error, this.#isCluster) ?? this.#connection.refusal;
    if (said === undefined) {
      this.#breaker.silent();
      this.#breaker.outage(messageOf(error), false);
      if (error instanceof UnavailableError) return error;
      return new UnavailableError(messageOf(error), { cause: error });
    }
    this.#breaker.answered();
    const why = explained(said, error);
    if (why instanceof UnavailableError) this.#breaker.outage(why.message, true);
    if (why instanceof SetupError || why instanceof FullError) {
      this.#complaint.of(said, call.keys[0] ?? call.route, why);
    }
    return why;
  }

  async #inTime<Reply>(call: Call<Reply>, wait?: Wait<Reply>): Promise<Reply> {
    const given = new AbortController();
    const patience = this.#timeoutMs + (wait ? Math.max(0, wait.until - this.#now()) : 0);
    let timer: NodeJS.Timeout | undefined;
    let stop = () => {};
    const late = new Promise<never>((_, reject) => {
      const giveUp = (why: unknown) => {
        reject(why);
        given.abort();
      };
      if (patience <= LONGEST_TIMER_MS) {
        const why = `no answer within ${Math.round(patience)} ms`;
        timer = setTimeout(() => giveUp(new UnavailableError(why)), patience);
      }
      stop = () => giveUp(wait?.signal.reason);
      wait?.signal.addEventListener("abort", stop);
    });
    try {
      return await Promise.race([this.#sent(call, given.signal, wait), late]);
    } finally {
      clearTimeout(timer);
      wait?.signal.removeEventListener("abort", stop);
    }
  }

  async #sent<Reply>(call: Call<Reply>, signal: AbortSignal, wait?: Wait<Reply>): Promise<Reply> {
    for (let again = 1; ; again++) {
      const sentAt = this.#now();
      const left = wait ? wait.until - sentAt : 0;
      try {
        return await (wait && left > 0
          ? this.#connection.waiting.send(wait.blocking(blockOf(left)), signal)
          : this.#send(call, signal));
      } catch (error) {
        // Who has waited for long has not failed several times in a row.
        if (wait && this.#now() - sentAt >= LONG_MS) again = 1;
        const final = !call.repeatable || again > this.#resends || signal.aborted;
        if (final || replyOf(error, this.#isCluster) !== undefined) throw error;
        await sleep(RESEND_PAUSE_MS * again);
      }
    }
  }
}

/** `limiter.policies`: see docs/commands.md for what they are. */
export class Policies {
  readonly #answer: <Reply>(call: Call<Reply>) => Promise<Reply>;

  constructor(answer: <Reply>(call: Call<Reply>) => Promise<Reply>) {
    this.#answer = answer;
  }

  /** Sets a policy. Returns the version that now stands. */
  async set(
    name: string,
    limits: Limits,
    options: policies.PolicySetOptions = {},
  ): Promise<number> {
    return this.#answer(policies.policySet(name, limits, options));
  }

  /** What there is to know about a policy; undefined if there is none. */
  async get(name: string): Promise<policies.PolicyInfo | undefined> {
    return this.#answer(policies.policyGet(name));
  }

  /** All policies, or those whose names match a pattern as in KEYS. */
  async list(pattern?: string): Promise<policies.PolicyEntry[]> {
    return this.#answer(policies.policyList(pattern));
  }

  /** Deletes policies. Returns how many there were. */
  async delete(...names: string[]): Promise<number> {
    const deleted = names.map((name) => this.#answer(policies.policyDelete(name)));
    return (await Promise.all(deleted)).filter(Boolean).length;
  }

  /** Multiplies the limits of a policy by 0 to 1000; after `duration` the factor is 1 again. */
  async scale(name: string, factor: number, duration?: Duration): Promise<policies.PolicyScale> {
    return this.#answer(policies.policyScale(name, factor, duration));
  }
}

function checkCost(cost = 1): void {
  amount(cost, "cost");
}

function ofKey(key: string, limits: Limits): Charged {
  return [limits].flat().map((limit) => [key, limit]);
}

function nobody(allowed: boolean, waitMs: number | null, error: unknown): Decision {
  const said = { allowed, limit: 0, remaining: 0, waitMs, resetMs: 0 };
  return decisionOf(said, { source: "none", error });
}
