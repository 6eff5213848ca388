/** Limiter, which charges limits on the server and falls back during an outage. */

import type { Log } from "./breaker.js";
import { BoundLimit } from "./bound.js";
import * as calls from "./calls.js";
import type { Call, CallOptions, Keyed, Once, PeekOptions, TakeOptions } from "./calls.js";
import { byKey, ofItem, ofKey, ofKeys, type Charge } from "./charges.js";
import type { Client } from "./clients.js";
import { governs, type Decision } from "./decision.js";
import { CallError, FullError, RateLimitError } from "./errors.js";
import { FORCED, ForcedPolicies } from "./forced.js";
import { Ids } from "./ids.js";
import { bind, checkName } from "./keys.js";
import { acquired, type Lease, type LeaseOptions } from "./lease.js";
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
import { MERGED, refuse, sketchOf } from "./sketches.js";
import { Units, type UnitsOptions } from "./units.js";
import { canReserve, endless, reserved, retried, unbounded, type Waiter } from "./waits.js";

/** Time within which clients themselves resend calls after a lost connection. */
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

  /** Creates a limiter. With "memory", for tests, it decides in this process as the server does. */
  constructor(given: Client | "memory", options: LimiterOptions = {}) {
    const { client, now, sleep } = routeOf(given, options);
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
    const resentMs = Math.ceil(connectTimeoutMs + 2 * timeoutMs + RESENT_WITHIN_MS);
    this.#ids = new Ids(options.once ?? true, `${resentMs}ms`);
    const remembers = given !== "memory" && options.rememberDenials !== false;
    this.#denials = remembers ? new Remembering(this.#sending.connection, now) : undefined;
    this.#forced = new ForcedPolicies((call) => this.#answer(call), now);
    this.#outage = new Outage(onOutage, options.setupErrors ?? "raise", now);
    this.#now = now;
    this.#sleep = sleep;
    this.policies = new Policies((call) => this.#answer(call));
  }

  /**
   * Binds limits to a name: `limiter.limit("api", fixed(100, "1m"))`. Its keys are `api:` and the
   * client. The options are the defaults of every call. Throws a TypeError if the name is in use
   * for limits of another algorithm or window.
   */
  limit(name: string, limits: Limits, options?: TakeOptions): BoundLimit<Limiter> {
    checkName(name);
    const bound = new BoundLimit(this, name, limits, options);
    bind(this.#client, this.#prefix + name, bound.limits, bound);
    return bound;
  }

  /** Charges all the limits of a key, or none of them. */
  async take(key: string, given: Limits, options?: TakeOptions): Promise<Decision> {
    const limits = limitsOf(given);
    const sketch = sketchOf(limits);
    if (sketch) return this.#waited(ofItem(this.#keyOf, key, sketch), options ?? {});
    const full = this.#keyOf(key);
    if (!options) return this.#plain(full, key, limits);
    return this.#waited({ full, limits: [limits].flat(), charged: ofKey(key, limits) }, options);
  }

  /**
   * Returns the decision that `take` would make, and charges nothing. A replica may answer,
   * depending on the client's settings.
   */
  async peek(key: string, given: Limits, options: PeekOptions = {}): Promise<Decision> {
    amount(options.cost ?? 1, "cost");
    const limits = limitsOf(given);
    const sketch = sketchOf(limits);
    const {
      full,
      limits: entries,
      charged,
    } = sketch
      ? ofItem(this.#keyOf, key, sketch)
      : { full: this.#keyOf(key), limits, charged: ofKey(key, limits) };
    return this.#decide(calls.peek(full!, entries, options), charged, options, true);
  }

  /**
   * Charges limits of several keys together: all, or none. In a cluster the keys must be in one
   * slot, so use a common hash tag: `{acme}:user:42` and `{acme}:all`.
   */
  async takeAll(
    keyed: Keyed,
    options: Omit<TakeOptions, "upto" | "each" | "ban"> = {},
  ): Promise<Decision> {
    return this.#waited(ofKeys(this.#keyOf, keyed), options);
  }

  /** Returns the decision that `takeAll` would make, and charges nothing. */
  async peekAll(
    keyed: Keyed,
    options: Omit<PeekOptions, "upto" | "each" | "ban"> = {},
  ): Promise<Decision> {
    amount(options.cost ?? 1, "cost");
    const { keyed: entries, charged } = ofKeys(this.#keyOf, keyed);
    return this.#decide(calls.peekAll(entries!, options), charged, options, true);
  }

  /**
   * Corrects a charge by its id, if the decision with `decision.settle` is not available. Takes the
   * limits of the first call. Denied if the id is unknown or expired.
   */
  async settle(key: string, given: Limits, id: string, cost: number): Promise<Decision> {
    amount(cost, "cost");
    const limits = limitsOf(given);
    refuse(limits);
    return this.#correct(calls.settle(this.#keyOf(key), limits, id, cost), ofKey(key, limits));
  }

  /**
   * Gives back units of any client. The call is not idempotent, so it is not resent if there is no
   * reply. To give back a charge of your own, settle it with 0.
   */
  async giveBack(key: string, given: Limits, cost = 1): Promise<Decision> {
    amount(cost, "cost", { zero: false });
    const limits = limitsOf(given);
    refuse(limits);
    const call = calls.takeParsed(this.#keyOf(key), limits, { cost: -cost });
    return this.#correct(call, ofKey(key, limits), -cost);
  }

  /** Deletes the usage of a key. Returns `true` if there was any. */
  async reset(key: string): Promise<boolean> {
    return this.#change(calls.reset(this.#keyOf(key)));
  }

  /**
   * Acquires a lease, renews it three times in each ttl, and releases it at the end: `await using
   * lease = await limiter.lease(...)`. Throws a DeniedError if there is no room until the timeout.
   */
  async lease(key: string, limit: ConcurrencyLimit, options: LeaseOptions = {}): Promise<Lease> {
    const full = this.#keyOf(key);
    const { cost } = options;
    return acquired(limit, options, {
      now: this.#now,
      closing: this.#closing.signal,
      acquire: (holder, how) => calls.acquire(full, limit, holder, how),
      answer: (call) => this.#answer(call),
      decide: (call, wait) =>
        this.#decide(call, [[key, limit]], cost === undefined ? {} : { cost }, false, wait),
      release: (holder) => this.#change(calls.release(full, holder)),
    });
  }

  /** Releases leases by their holders. Returns how many were held. */
  async release(key: string, ...holders: string[]): Promise<number> {
    return this.#change(calls.release(this.#keyOf(key), ...holders));
  }

  /** Bans a key, or with 0 lifts its ban. Returns the remaining ban in milliseconds. */
  async ban(key: string, time: Duration): Promise<number> {
    return this.#change(calls.banKey(this.#keyOf(key), time));
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
   * are given back when their time is over, and by `close`.
   */
  units(key: string, given: Limits, options: UnitsOptions = {}): Units {
    const limits = limitsOf(given);
    const full = this.#keyOf(key);
    // Unspent units could not be given back.
    refuse(limits);
    return new Units(options, {
      now: this.#now,
      take: async (cost, once) => {
        if (await this.#forced.has(full, [limits].flat())) throw new CallError(FORCED);
        return this.#answer(calls.takeParsed(full, limits, { cost, upto: true, once }));
      },
      settle: (id, cost) => this.#change(calls.settle(full, limits, id, cost)),
      instead: (cost, error) =>
        this.#instead(error, calls.reset(full), ofKey(key, limits), { cost }),
    });
  }

  /**
   * Ends all waits for leases, and closes the connections that were opened beside the client. The
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

  readonly #keyOf = (key: string): string => {
    if (typeof key !== "string") throw new TypeError(`a key must be a string: ${String(key)}`);
    return this.#prefix + key;
  };

  /** Fast path: one key, no options, and nothing to be added to the call. */
  #plain(full: string, key: string, limits: ParsedLimits): Promise<Decision> {
    const charge = () => ({ full, limits: [limits].flat(), charged: ofKey(key, limits) });
    const once = this.#ids.of(limits, NO_OPTIONS);
    if (once) return this.#take(charge(), {}, once);
    const call = calls.takeParsed(full, limits, undefined, this.#ids.mayRepeat);
    const denied = this.#denials?.find(full, call);
    if (denied) return Promise.resolve(denied);
    const sentAt = this.#now();
    return this.#answer(call).then(
      (decision) => {
        if (decision.allowed) return decision;
        return this.#remember(full, call, decision, sentAt, charge());
      },
      (error: unknown) => {
        if (this.#ids.learns(limits, error)) return this.#plain(full, key, limits);
        return this.#instead(error, call, ofKey(key, limits), NO_OPTIONS);
      },
    );
  }

  /** Charges with options, and waits until the call passes if it may. */
  async #waited(what: Charge, options: TakeOptions): Promise<Decision> {
    const { wait = 0, once, ttl, refundable, signal, ...how } = options;
    amount(options.cost ?? 1, "cost");
    const isOfItem = what.itemKey !== undefined;
    const needsId = once || refundable || ttl !== undefined;
    if (isOfItem && (needsId || options.ban)) throw new TypeError(MERGED);
    const charge = once === false ? { ...what, isSentOnce: true } : what;
    const waitMs = seconds(wait) * 1000;
    const take = (more: PeekOptions, ids: TakeOptions) =>
      this.#take(
        charge,
        { ...how, ...more },
        isOfItem ? undefined : this.#ids.of(what.limits, ids),
      );
    if (waitMs === 0) return take({}, options);
    const entries = what.keyed
      ? Object.entries(what.keyed)
      : [[what.full!, what.limits[0]!] as const];
    for (const [key, limit] of entries) {
      if (await this.#forced.has(key, [limitOf(limit)])) throw new CallError(FORCED);
    }
    const signals = [this.#closing.signal, ...(signal ? [unbounded(signal)] : [])];
    const waiter: Omit<Waiter, "take"> = {
      now: this.#now,
      undo: (decision) => this.#undo(charge.charged, decision, options.cost),
      sleep: (ms) => this.#sleep(ms, signals),
    };
    if (isOfItem || !canReserve(what.limits, how)) {
      return retried({ ...waiter, take: (more) => take(more, options) }, waitMs);
    }
    // The reservation can be given back until its wait is over.
    const ids = this.#ids.ofWait(options, waitMs);
    return reserved({ ...waiter, take: (more) => take(more, ids) }, waitMs);
  }

  async #take(what: Charge, options: CallOptions, once: Once | undefined): Promise<Decision> {
    const { full, itemKey, charged } = what;
    const callOf = (how: CallOptions) => this.#callOf(what, how);
    const plain = callOf(options);
    const isOurs = once?.isOurs ?? true;
    // Only the server can record a strike or answer a call with an idempotency key.
    const remembers = isOurs && !options.ban && !options.upto && !options.force;
    const key = remembers && full !== undefined ? (itemKey ?? full) : undefined;
    const denied = key === undefined ? undefined : this.#denials?.find(key, plain);
    if (denied) return denied;
    const sentAt = this.#now();
    const call = once ? callOf({ ...options, once }) : plain;
    try {
      const decision = await this.#answer(call);
      if (!decision.allowed) {
        return key === undefined
          ? decision
          : await this.#remember(key, plain, decision, sentAt, what);
      }
      if (!once) return decision;
      const settle = (id: string, cost: number) => this.#settled(charged, id, cost);
      return decision.but({ id: once.id }, settle);
    } catch (error) {
      if (!once && itemKey === undefined && this.#ids.learns(what.limits, error)) {
        return this.#take(what, options, this.#ids.of(what.limits, options as PeekOptions));
      }
      const mayPass = error instanceof FullError && mayPassWithoutId(messageOf(error.cause));
      if (!mayPass || !once || !isOurs || options.upto) {
        return this.#instead(error, call, charged, options);
      }
      // Rather than deny a valid call, risk a double charge if it is resent.
      return this.#decide(plain, charged, options, false).catch((without: unknown) => {
        // The call without an id was rejected for lack of one: report the first error.
        if (!(without instanceof CallError)) throw without;
        return this.#instead(error, call, charged, options);
      });
    }
  }

  /** Remembers a denial, unless it may have been charged. Returns the decision. */
  async #remember(
    key: string,
    call: Call<Decision>,
    decision: Decision,
    sentAt: number,
    { full, limits }: Charge,
  ): Promise<Decision> {
    if (this.#denials && (await this.#forced.has(full!, limits, decision)) === false) {
      this.#denials.remember(key, call, decision, sentAt);
    }
    return decision;
  }

  #callOf({ full, limits, keyed, isSentOnce }: Charge, how: CallOptions): Call<Decision> {
    const again = this.#ids.mayRepeat && how.once === undefined && !isSentOnce;
    return keyed ? calls.takeAll(keyed, how, again) : calls.takeParsed(full!, limits, how, again);
  }

  /** Gives back the reservation of a call that no longer waits. */
  async #undo(charged: Charged, decision: Decision, cost = 1): Promise<void> {
    if (decision.id !== undefined) await decision.settle(0);
    else if (cost > 0) {
      await Promise.all(byKey(charged).map(([key, limits]) => this.giveBack(key, limits, cost)));
    }
  }

  /** Settles a charge by the id that all its keys have. */
  async #settled(charged: Charged, id: string, cost: number): Promise<Decision> {
    const settled = await Promise.all(
      byKey(charged).map(([key, limits]) => this.settle(key, limits, id, cost)),
    );
    return governs(
      settled,
      settled.every(({ allowed }) => allowed),
      () => cost,
    );
  }

  /** Sends a call that may invalidate denials of its keys. */
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
    peeks: boolean,
    wait?: Wait<Decision>,
  ): Promise<Decision> {
    try {
      return await this.#answer(call, wait);
    } catch (error) {
      return this.#instead(error, call, charged, options, peeks);
    }
  }

  async #correct(call: Call<Decision>, charged: Charged, cost?: number): Promise<Decision> {
    try {
      return await this.#change(call);
    } catch (error) {
      return this.#outage.correct(error, charged, cost);
    }
  }

  #instead(
    error: unknown,
    call: Call<unknown>,
    charged: Charged,
    options: PeekOptions,
    peeks = false,
  ): Decision {
    return this.#outage.decide(error, this.#sending.pauseMs(call), charged, options, peeks);
  }

  async #answer<Reply>(call: Call<Reply>, wait?: Wait<Reply>): Promise<Reply> {
    calls.wordsAreText(call);
    return this.#sending.answer(call, wait);
  }
}

const NO_OPTIONS: TakeOptions = {};
