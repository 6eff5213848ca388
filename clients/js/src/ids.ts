/** Choice of the calls that have an idempotency key, so that the server charges them once. */

import { randomUUID } from "node:crypto";

import type { Once, TakeOptions } from "./calls.js";
import { CallError } from "./errors.js";
import type { Duration, Limit, PolicyLimit } from "./limits.js";
import type { ParsedLimits } from "./rates.js";

/** Largest share of a limit that may be charged twice. */
const NEGLIGIBLE_SHARE = 0.01;

/** Default time within which a charge of several units can be settled. */
const SETTLED_WITHIN: Duration = "1m";

/** Milliseconds after the wait of a reservation within which it can be given back. */
const UNDONE_WITHIN_MS = 30_000;

/** Default lifetime of an idempotency key that the caller chose. */
const CALLERS_ID_TTL: Duration = "10m";

export class Ids {
  readonly #byDefault: boolean;
  readonly #ttl: Duration;
  /** Policies with a concurrency limit, whose calls need an id as the holder. */
  readonly #concurrencyPolicies = new Set<string>();

  /**
   * Creates the generator. Without `byDefault`, only calls that ask for an id get one. `ttl` is the
   * lifetime of the ids of calls that are not settled: a little longer than a call is resent.
   */
  constructor(byDefault: boolean, ttl: Duration) {
    this.#byDefault = byDefault;
    this.#ttl = ttl;
  }

  /** `true` if a call without an id may be resent. */
  get mayResendWithoutId(): boolean {
    return this.#byDefault;
  }

  /** Returns the options of a waiting call, whose charge can be undone until its wait is over. */
  forWait(options: TakeOptions, waitMs: number): TakeOptions {
    const { once = this.#byDefault, ttl = `${Math.ceil(waitMs) + UNDONE_WITHIN_MS}ms` } = options;
    return once === false ? options : { ...options, once, ttl };
  }

  /** Returns the idempotency key of a call, if it needs one. */
  forCall(
    limits: ParsedLimits,
    { once, ttl, refundable, cost = 1 }: TakeOptions,
  ): Once | undefined {
    if (refundable && once === false) {
      throw new TypeError("a call with once: false has no id: it is not refundable");
    }
    if (cost <= 0) return undefined;
    if (typeof once === "string") return { id: once, ttl: ttl ?? CALLERS_ID_TTL, isOurs: false };
    if (once !== undefined && typeof once !== "boolean") {
      throw new TypeError(`once must be true, false or a string: ${String(once)}`);
    }
    const isNeeded = () =>
      ttl !== undefined ||
      isDoubleChargeHarmful(limits, cost) ||
      this.#hasConcurrencyPolicy(limits);
    if (!(refundable || (once ?? (this.#byDefault && isNeeded())))) return undefined;
    const defaultTtl = refundable || cost > 1 ? SETTLED_WITHIN : this.#ttl;
    return { id: randomUUID(), ttl: ttl ?? defaultTtl, isOurs: true };
  }

  /**
   * Records that calls with these limits need an id, if the error of a call says so. Returns `true`
   * if this was unknown, so that the call is worth another attempt.
   */
  learnFromError(limits: ParsedLimits, error: unknown): boolean {
    if (!this.#byDefault || !(error instanceof CallError)) return false;
    if (!error.message.startsWith("the policy has a CONCURRENCY limit")) return false;
    const names = policiesOf(limits).filter((name) => !this.#concurrencyPolicies.has(name));
    for (const name of names) this.#concurrencyPolicies.add(name);
    return names.length > 0;
  }

  #hasConcurrencyPolicy(limits: ParsedLimits): boolean {
    return (
      this.#concurrencyPolicies.size > 0 &&
      policiesOf(limits).some((name) => this.#concurrencyPolicies.has(name))
    );
  }
}

/**
 * Returns `true` if a call charges more than one unit or more than a negligible share of a limit.
 * Only the server knows the limits of a policy.
 */
function isDoubleChargeHarmful(limits: ParsedLimits, cost: number): boolean {
  if (Array.isArray(limits))
    return limits.some((limit: Limit) => isDoubleChargeHarmful(limit, cost));
  const { quota = Infinity, cost: units = cost } = limits as Limit;
  return units > 1 || units > quota * NEGLIGIBLE_SHARE;
}

function policiesOf(limits: ParsedLimits): string[] {
  return [limits]
    .flat()
    .flatMap((limit) => ("policies" in limit ? (limit as PolicyLimit).policies : []));
}
