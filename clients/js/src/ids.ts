/** Choice of the calls that bring an idempotency key, so that the server charges them once. */

import { randomUUID } from "node:crypto";

import type { Once, TakeOptions } from "./calls.js";
import { CallError } from "./errors.js";
import type { Duration, Limit, PolicyLimit } from "./limits.js";
import type { ParsedLimits } from "./rates.js";

/** Share of a limit above which charging a call twice would matter. */
const MATTERS = 0.01;

/** Default time within which a charge of several units can be settled. */
const SETTLED_WITHIN: Duration = "1m";

/** Time after its wait within which a reservation can be given back. */
const UNDONE_WITHIN_MS = 30_000;

/** Default lifetime of a caller's own id. */
const OWN: Duration = "10m";

export class Ids {
  readonly #mayHave: boolean;
  readonly #ttl: Duration;
  /** Policies with a concurrency limit, whose calls need an id as the holder. */
  readonly #concurrencyPolicies = new Set<string>();

  /**
   * Creates the generator. Without `mayHave`, only calls that ask for an id get one. `ttl` is the
   * time for which a call may be resent.
   */
  constructor(mayHave: boolean, ttl: Duration) {
    this.#mayHave = mayHave;
    this.#ttl = ttl;
  }

  /** `true` if a call without an id may be resent. */
  get mayRepeat(): boolean {
    return this.#mayHave;
  }

  /** Returns the options of a waiting call, whose charge can be undone until its wait is over. */
  ofWait(options: TakeOptions, waitMs: number): TakeOptions {
    const { once = this.#mayHave, ttl = `${Math.ceil(waitMs) + UNDONE_WITHIN_MS}ms` } = options;
    return once === false ? options : { ...options, once, ttl };
  }

  /** Returns the idempotency key of a call, if it needs one. */
  of(limits: ParsedLimits, { once, ttl, refundable, cost = 1 }: TakeOptions): Once | undefined {
    if (refundable && once === false) {
      throw new TypeError("a call with once: false has no id: it is not refundable");
    }
    if (cost <= 0) return undefined;
    if (typeof once === "string") return { id: once, ttl: ttl ?? OWN, isOurs: false };
    if (once !== undefined && typeof once !== "boolean") {
      throw new TypeError(`once must be true, false or a string: ${String(once)}`);
    }
    const isNeeded = () => ttl !== undefined || matters(limits, cost) || this.#isHeld(limits);
    if (!(refundable || (once ?? (this.#mayHave && isNeeded())))) return undefined;
    const settled = refundable || cost > 1 ? SETTLED_WITHIN : this.#ttl;
    return { id: randomUUID(), ttl: ttl ?? settled, isOurs: true };
  }

  /**
   * Records that calls for these limits need an id, if an error says so. Returns `true` if that is
   * new.
   */
  learns(limits: ParsedLimits, error: unknown): boolean {
    if (!this.#mayHave || !(error instanceof CallError)) return false;
    if (!error.message.startsWith("the policy has a CONCURRENCY limit")) return false;
    const names = policiesOf(limits).filter((name) => !this.#concurrencyPolicies.has(name));
    for (const name of names) this.#concurrencyPolicies.add(name);
    return names.length > 0;
  }

  #isHeld(limits: ParsedLimits): boolean {
    return (
      this.#concurrencyPolicies.size > 0 &&
      policiesOf(limits).some((name) => this.#concurrencyPolicies.has(name))
    );
  }
}

/**
 * Returns `true` if charging a call twice would matter. Only the server knows the size of a
 * policy's limits.
 */
function matters(limits: ParsedLimits, cost: number): boolean {
  if (Array.isArray(limits)) return limits.some((one: Limit) => matters(one, cost));
  const { quota = Infinity, cost: units = cost } = limits as Limit;
  return units > 1 || units > quota * MATTERS;
}

function policiesOf(limits: ParsedLimits): string[] {
  return [limits].flat().flatMap((one) => ("policies" in one ? (one as PolicyLimit).policies : []));
}
