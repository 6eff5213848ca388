/** Limiter, which charges limits on the server and falls back during an outage. */

import type { Log } from "./breaker.js";
import { BoundLimit } from "./bound.js";
import * as calls from "./calls.js";
import type { Call, CallOptions, Keyed, Once, PeekOptions, TakeOptions } from "./calls.js";
import {
  chargedOfKey,
  chargeOfItem,
  chargeOfKey,
  chargeOfKeys,
  groupByKey,
  type Charge,
} from "./charges.js";
import type { Client } from "./clients.js";
import { governingDecision, type Decision } from "./decision.js";
import { CallError, FullError, RateLimitError } from "./errors.js";
import { FORCED, ForcedPolicies } from "./forced.js";
import { Ids } from "./ids.js";
import { bind, checkName } from "./keys.js";
import { acquireLease, type Lease, type LeaseOptions } from "./lease.js";
import { amount, fixed, seconds } from "./limits.js";
import type { ConcurrencyLimit, Duration } from "./limits.js";
import type { Charged } from "./local.js";
import { routeOf, type Sleep } from "./memory/route.js";
import type { LimiterOptions } from "./options.js";
import { Outage } from "./outage.js";
import { Policies } from "./policies.js";
import { limitOf, limitsOf, type Limits, type ParsedLimits } from "./rates.js";
import { Remembering } from "./remembering.js";
import { mayPassWithoutId, messageOf } from "./replies.js";
import { Sending, type Wait } from "./sending.js";
import { MERGED, refuseSketch, sketchOf } from "./sketches.js";
import { Units, type UnitsOptions } from "./units.js";
import { canReserve, endless, reserved, retried, unbounded, type Waiter } from "./waits.js";

/** Milliseconds within which client libraries resend calls after a lost connection. */
const RESENT_WITHIN_MS = 1000;

export class Limiter {
  /** Policies: named limits stored on the server. */
  readonly policies: Policies;
  /** Log of outages and errors: the option of this name. */
  readonly log: Log;
  readonly #client: Client;
  readonly #sending: Sending;
  /** Aborted when the limiter is closed, to end waiting calls. */
  #closing = endless();
  readonly #prefix: string;
  readonly #ids: Ids;
  readonly #denials: Remembering | undefined;
  readonly #forced: ForcedPolicies;
  readonly #outage: Outage;
  readonly #now: () => number;
  readonly #sleep: Sleep;

  /**
   * Creates a limiter. With "memory" in place of a client, for tests, it decides in this process as
   * the server does.
   */
  constructor(clientOrMemory: Client | "memory", options: LimiterOptions = {}) {
    const { client, now, sleep } = routeOf(clientOrMemory, options);
    const { onOutage = "open" } = options;
    const { log = (line, level) => console[level](line) } = options;
    const timeoutMs = seconds(options.timeout ?? 0.25) * 1000;
    const connectTimeoutMs = seconds(options.connectTimeout ?? 2) * 1000;
    this.log = log;
    this.#client = client;
    this.#sending = new Sending(client, {
      timeoutMs,
      connectTimeoutMs,
      resends: options.resends ?? 1,
      failures: options.failures ?? 3,
      pauseMs: seconds(options.pause ?? 1) * 1000,
      log,
      now,
    });
    this.#prefix = options.prefix ?? "";
    const idTtlMs = Math.ceil(connectTimeoutMs + 2 * timeoutMs + RESENT_WITHIN_MS);
    this.#ids = new Ids(options.once ?? true, `${idTtlMs}ms`);
    const remembers = clientOrMemory !== "memory" && options.rememberDenials !== false;
    this.#denials = remembers ? new Remembering(this.#sending.connection, now) : undefined;
    this.#forced = new ForcedPolicies((call) => this.#answer(call), now);
    this.#outage = new Outage(onOutage, options.setupErrors ?? "raise", now);
    this.#now = now;
    this.#sleep = sleep;
    this.policies = new Policies((call) => this.#answer(call));
  }

  /**
   * Binds limits to a name: `limiter.limit("api", fixed(100, "1m"))`. Their keys are `api:` and the
   * caller. The options are the defaults of every call. Throws a TypeError if the name is in use
   * for limits of another algorithm or window.
   */
  limit(name: string, limits: Limits, options?: TakeOptions): BoundLimit<Limiter> {
    checkName(name);
    const bound = new BoundLimit(this, name, limits, options);
    bind(this.#client, this.#prefix + name, bound.limits, bound);
    return bound;
  }

  /** Charges all the limits of a key, or none of them. */
  async take(key: string, limits: Limits, options?: TakeOptions): Promise<Decision> {
    const parsed = limitsOf(limits);
    const sketch = sketchOf(parsed);
    if (sketch) {
      return this.#takeWithOptions(chargeOfItem(this.#serverKeyOf, key, sketch), options ?? {});
    }
    const serverKey = this.#serverKeyOf(key);
    if (!options) return this.#takeWithoutOptions(serverKey, key, parsed);
    return this.#takeWithOptions(chargeOfKey(serverKey, key, parsed), options);
  }

  /**
   * Returns the decision that `take` would make, and charges nothing. A replica may answer,
   * depending on the client's settings.
   */
  async peek(key: string, limits: Limits, options: PeekOptions = {}): Promise<Decision> {
    amount(options.cost ?? 1, "cost");
    const parsed = limitsOf(limits);
    const sketch = sketchOf(parsed);
    const charge = sketch
      ? chargeOfItem(this.#serverKeyOf, key, sketch)
      : chargeOfKey(this.#serverKeyOf(key), key, parsed);
    const call = calls.peek(charge.serverKey!, charge.limits, options);
    return this.#decide(call, charge.charged, options, true);
  }

  /**
   * Charges limits of several keys together: all, or none. In a cluster the keys must be in one
   * slot, so use a common hash tag: `{acme}:user:42` and `{acme}:all`.
   */
  async takeAll(
    keyed: Keyed,
    options: Omit<TakeOptions, "upto" | "each" | "ban"> = {},
  ): Promise<Decision> {
    return this.#takeWithOptions(chargeOfKeys(this.#serverKeyOf, keyed), options);
  }

  /** Returns the decision that `takeAll` would make, and charges nothing. */
  async peekAll(
    keyed: Keyed,
    options: Omit<PeekOptions, "upto" | "each" | "ban"> = {},
  ): Promise<Decision> {
    amount(options.cost ?? 1, "cost");
    const { keyed: limitsByServerKey, charged } = chargeOfKeys(this.#serverKeyOf, keyed);
    return this.#decide(calls.peekAll(limitsByServerKey!, options), charged, options, true);
  }

  /**
   * Corrects a charge by its id, where `decision.settle` is not available. The limits must be those
   * of the charged call. Denied if the id is unknown or expired.
   */
  async settle(key: string, limits: Limits, id: string, cost: number): Promise<Decision> {
    amount(cost, "cost");
    const parsed = limitsOf(limits);
    refuseSketch(parsed);
    const call = calls.settle(this.#serverKeyOf(key), parsed, id, cost);
    return this.#correct(call, chargedOfKey(key, parsed));
  }

  /**
   * Gives back units of a key, charged by any caller. The call is not idempotent, so it is not
   * resent if there is no reply. To give back a charge of your own, settle it with 0.
   */
  async giveBack(key: string, limits: Limits, cost = 1): Promise<Decision> {
    amount(cost, "cost", { zero: false });
    const parsed = limitsOf(limits);
    refuseSketch(parsed);
    const call = calls.takeParsed(this.#serverKeyOf(key), parsed, { cost: -cost });
    return this.#correct(call, chargedOfKey(key, parsed), -cost);
  }

  /** Deletes the usage of a key. Returns `true` if there was any. */
  async reset(key: string): Promise<boolean> {
    return this.#change(calls.reset(this.#serverKeyOf(key)));
  }

  /**
   * Acquires a lease, renews it three times in each ttl, and releases it at the end: `await using
   * lease = await limiter.lease(...)`. Throws a DeniedError if there is no room within
   * `options.wait`.
   */
  async lease(key: string, limit: ConcurrencyLimit, options: LeaseOptions = {}): Promise<Lease> {
    const serverKey = this.#serverKeyOf(key);
    const { cost } = options;
    return acquireLease(limit, options, {
      now: this.#now,
      closing: this.#closing.signal,
      acquire: (holder, acquireOptions) => calls.acquire(serverKey, limit, holder, acquireOptions),
      answer: (call) => this.#answer(call),
      decide: (call, wait) =>
        this.#decide(call, [[key, limit]], cost === undefined ? {} : { cost }, false, wait),
      release: (holder) => this.#change(calls.release(serverKey, holder)),
    });
  }

  /** Releases leases by their holders. Returns how many of them were held. */
  async release(key: string, ...holders: string[]): Promise<number> {
    return this.#change(calls.release(this.#serverKeyOf(key), ...holders));
  }

  /** Bans a key, or lifts its ban if `time` is 0. Returns the remaining ban in milliseconds. */
  async ban(key: string, time: Duration): Promise<number> {
    return this.#change(calls.banKey(this.#serverKeyOf(key), time));
  }

  /**
   * Checks the server at the start of an application. Throws a SetupError that says what to do, for
   * example for a server without the module, or an UnavailableError if the server cannot be
   * reached.
   */
  async check(): Promise<void> {
    await this.#answer(calls.peek(`${this.#prefix}{check}`, fixed(1, 1)));
  }

  /**
   * Returns units of a hot key, which are taken in batches and spent in this process. Unspent units
   * are given back after `keep`, and by `close`.
   */
  units(key: string, limits: Limits, options: UnitsOptions = {}): Units {
    const parsed = limitsOf(limits);
    const serverKey = this.#serverKeyOf(key);
    // Unspent units could not be given back to a sketch.
    refuseSketch(parsed);
    return new Units(options, {
      now: this.#now,
      take: async (cost, once) => {
        if (await this.#forced.has(serverKey, [parsed].flat())) throw new CallError(FORCED);
        return this.#answer(calls.takeParsed(serverKey, parsed, { cost, upto: true, once }));
      },
      settle: (id, cost) => this.#change(calls.settle(serverKey, parsed, id, cost)),
      fallback: (cost, error) =>
        this.#fallback(error, calls.reset(serverKey), chargedOfKey(key, parsed), { cost }),
    });
  }

  /**
   * Ends all waiting calls, and closes the connections that limiters opened beside the client. The
   * client stays open. Later calls work as before.
   */
  close(): void {
    this.#closing.abort(new RateLimitError("the limiter was closed"));
    this.#closing = endless();
    this.#sending.connection.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  readonly #serverKeyOf = (key: string): string => {
    if (typeof key !== "string") throw new TypeError(`a key must be a string: ${String(key)}`);
    return this.#prefix + key;
  };

  /** Charges one key without options: the fast path, unless the call needs an idempotency key. */
  #takeWithoutOptions(serverKey: string, key: string, limits: ParsedLimits): Promise<Decision> {
    const chargeOf = () => chargeOfKey(serverKey, key, limits);
    const once = this.#ids.forCall(limits, NO_OPTIONS);
    if (once) return this.#take(chargeOf(), {}, once);
    const call = calls.takeParsed(serverKey, limits, undefined, this.#ids.mayResendWithoutId);
    const denied = this.#denials?.find(serverKey, call);
    if (denied) return Promise.resolve(denied);
    const sentAt = this.#now();
    return this.#answer(call).then(
      (decision) => {
        if (decision.allowed) return decision;
        return this.#remember(serverKey, call, decision, sentAt, chargeOf());
      },
      (error: unknown) => {
        if (this.#ids.learnFromError(limits, error)) {
          return this.#takeWithoutOptions(serverKey, key, limits);
        }
        return this.#fallback(error, call, chargedOfKey(key, limits), NO_OPTIONS);
      },
    );
  }

  /** Charges with options, and waits until the call passes if it may. */
  async #takeWithOptions(chargeOfCall: Charge, options: TakeOptions): Promise<Decision> {
    const { wait = 0, once, ttl, refundable, signal, ...callOptions } = options;
    amount(options.cost ?? 1, "cost");
    const isOfItem = chargeOfCall.itemKey !== undefined;
    const needsId = once || refundable || ttl !== undefined;
    if (isOfItem && (needsId || options.ban)) throw new TypeError(MERGED);
    const charge = once === false ? { ...chargeOfCall, isNeverResent: true } : chargeOfCall;
    const waitMs = seconds(wait) * 1000;
    const take = (waitOptions: PeekOptions, idOptions: TakeOptions) =>
      this.#take(
        charge,
        { ...callOptions, ...waitOptions },
        isOfItem ? undefined : this.#ids.forCall(charge.limits, idOptions),
      );
    if (waitMs === 0) return take({}, options);
    const entries = charge.keyed
      ? Object.entries(charge.keyed)
      : [[charge.serverKey!, charge.limits[0]!] as const];
    for (const [key, limit] of entries) {
      if (await this.#forced.has(key, [limitOf(limit)])) throw new CallError(FORCED);
    }
    const signals = [this.#closing.signal, ...(signal ? [unbounded(signal)] : [])];
    const waiter: Omit<Waiter, "take"> = {
      now: this.#now,
      undo: (decision) => this.#undo(charge.charged, decision, options.cost),
      sleep: (ms) => this.#sleep(ms, signals),
    };
    if (isOfItem || !canReserve(charge.limits, callOptions)) {
      return retried({ ...waiter, take: (waitOptions) => take(waitOptions, options) }, waitMs);
    }
    // The reservation can be given back until its wait is over.
    const idOptions = this.#ids.forWait(options, waitMs);
    return reserved({ ...waiter, take: (waitOptions) => take(waitOptions, idOptions) }, waitMs);
  }

  /**
   * Sends a take, with the idempotency key `once` if it has one, or answers it by a known denial.
   */
  async #take(charge: Charge, options: CallOptions, once: Once | undefined): Promise<Decision> {
    const { serverKey, itemKey, charged } = charge;
    const callWithoutId = this.#callOf(charge, options);
    const hasNoCallersId = once?.isOurs ?? true;
    // Only the server can record a strike, or answer a call with an id that the caller chose.
    const remembers = hasNoCallersId && !options.ban && !options.upto && !options.force;
    const key = remembers && serverKey !== undefined ? (itemKey ?? serverKey) : undefined;
    const denied = key === undefined ? undefined : this.#denials?.find(key, callWithoutId);
    if (denied) return denied;
    const sentAt = this.#now();
    const call = once ? this.#callOf(charge, { ...options, once }) : callWithoutId;
    try {
      const decision = await this.#answer(call);
      if (!decision.allowed) {
        return key === undefined
          ? decision
          : await this.#remember(key, callWithoutId, decision, sentAt, charge);
      }
      if (!once) return decision;
      const settle = (id: string, cost: number) => this.#settleAll(charged, id, cost);
      return decision.but({ id: once.id }, settle);
    } catch (error) {
      if (!once && itemKey === undefined && this.#ids.learnFromError(charge.limits, error)) {
        const neededId = this.#ids.forCall(charge.limits, options as PeekOptions);
        return this.#take(charge, options, neededId);
      }
      const mayPass = error instanceof FullError && mayPassWithoutId(messageOf(error.cause));
      if (!mayPass || !once || !hasNoCallersId || options.upto) {
        return this.#fallback(error, call, charged, options);
      }
      // The key has no room for the id. Rather than deny the call, risk a double charge if it is
      // resent.
      return this.#decide(callWithoutId, charged, options, false).catch((secondError: unknown) => {
        // The call without an id was rejected for lack of one: report the first error.
        if (!(secondError instanceof CallError)) throw secondError;
        return this.#fallback(error, call, charged, options);
      });
    }
  }

  /** Remembers a denial, unless a policy with FORCE may have charged it. Returns the decision. */
  async #remember(
    key: string,
    call: Call<Decision>,
    decision: Decision,
    sentAt: number,
    { serverKey, limits }: Charge,
  ): Promise<Decision> {
    if (this.#denials && (await this.#forced.has(serverKey!, limits, decision)) === false) {
      this.#denials.remember(key, call, decision, sentAt);
    }
    return decision;
  }

  #callOf(charge: Charge, options: CallOptions): Call<Decision> {
    const { serverKey, limits, keyed, isNeverResent } = charge;
    const isWithoutId = options.once === undefined;
    const mayResend = this.#ids.mayResendWithoutId && isWithoutId && !isNeverResent;
    return keyed
      ? calls.takeAll(keyed, options, mayResend)
      : calls.takeParsed(serverKey!, limits, options, mayResend);
  }

  /** Gives back the reservation of a call that no longer waits. */
  async #undo(charged: Charged, decision: Decision, cost = 1): Promise<void> {
    if (decision.id !== undefined) await decision.settle(0);
    else if (cost > 0) {
      const groups = groupByKey(charged);
      await Promise.all(groups.map(([key, limits]) => this.giveBack(key, limits, cost)));
    }
  }

  /** Settles a charge by the id that all its keys have. */
  async #settleAll(charged: Charged, id: string, cost: number): Promise<Decision> {
    const settled = await Promise.all(
      groupByKey(charged).map(([key, limits]) => this.settle(key, limits, id, cost)),
    );
    return governingDecision(
      settled,
      settled.every(({ allowed }) => allowed),
      () => cost,
    );
  }

  /** Sends a call that may end denials of its key, and forgets them. */
  async #change<Reply>(call: Call<Reply>): Promise<Reply> {
    const [key] = call.keys;
    try {
      return await this.#answer(call);
    } finally {
      if (key !== undefined) this.#sending.connection.denials.forget(key);
    }
  }

  async #decide(
    call: Call<Decision>,
    charged: Charged,
    options: PeekOptions,
    isPeek: boolean,
    wait?: Wait<Decision>,
  ): Promise<Decision> {
    try {
      return await this.#answer(call, wait);
    } catch (error) {
      return this.#fallback(error, call, charged, options, isPeek);
    }
  }

  async #correct(call: Call<Decision>, charged: Charged, cost?: number): Promise<Decision> {
    try {
      return await this.#change(call);
    } catch (error) {
      return this.#outage.correct(error, charged, cost);
    }
  }

  /** Returns the decision of `onOutage`, or throws the error. */
  #fallback(
    error: unknown,
    call: Call<unknown>,
    charged: Charged,
    options: PeekOptions,
    isPeek = false,
  ): Decision {
    return this.#outage.decide(error, this.#sending.pauseMs(call), charged, options, isPeek);
  }

  async #answer<Reply>(call: Call<Reply>, wait?: Wait<Reply>): Promise<Reply> {
    calls.requireTextWords(call);
    return this.#sending.answer(call, wait);
  }
}

const NO_OPTIONS: TakeOptions = {};
