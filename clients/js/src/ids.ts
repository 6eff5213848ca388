/** Which calls bring an idempotency key, by which the server charges them once. */

import { randomUUID } from "node:crypto";

import type { Once, TakeOptions } from "./calls.js";
import { CallError } from "./errors.js";
import type { Duration, Limit, PolicyLimit } from "./limits.js";
import type { ParsedLimits } from "./rates.js";

/** Above this share of a limit, charging a call twice would matter. */
const MATTERS = 0.01;

/** Time for which a charge of several units can be settled, unless the call says otherwise. */
const SETTLED_WITHIN: Duration = "1m";

/** Time for which a turn can be given back after its wait. */
const UNDONE_WITHIN_MS = 30_000;

/** Time for which a caller's own id is remembered, unless the call says otherwise. */
const OWN: Duration = "10m";

export class Ids {
  readonly #mayHave: boolean;
  readonly #ttl: Duration;
  /** Policies with a concurrency limit: the id is the holder. */
  readonly #held = new Set<string>();

  /** false: no call has one that does not ask for it. `ttl`: as long as a call is sent again. */
  constructor(mayHave: boolean, ttl: Duration) {
    this.#mayHave = mayHave;
    this.#ttl = ttl;
  }

  /** Whether a call without an id may be sent again. */
  get mayRepeat(): boolean {
    return this.#mayHave;
  }

  /** Returns the options of a call whose charge can be undone for as long as it waits. */
  ofWait(options: TakeOptions, waitMs: number): TakeOptions {
    const { once = this.#mayHave, ttl = `${Math.ceil(waitMs) + UNDONE_WITHIN_MS}ms` } = options;
    return once === false ? options : { ...options, once, ttl };
  }

  /** Returns the id of a call, if it needs one. */
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

  /** Whether an error says that calls for these limits need an id, which was not known before. */
  learns(limits: ParsedLimits, error: unknown): boolean {
    if (!this.#mayHave || !(error instanceof CallError)) return false;
    if (!error.message.startsWith("the policy has a CONCURRENCY limit")) return false;
    const names = policiesOf(limits).filter((name) => !this.#held.has(name));
    for (const name of names) this.#held.add(name);
    return names.length > 0;
  }

  #isHeld(limits: ParsedLimits): boolean {
    return this.#held.size > 0 && policiesOf(limits).some((name) => this.#held.has(name));
  }
}

/** Whether charging a call twice would take much. Of a policy only the server knows how much it is. */
function matters(limits: ParsedLimits, cost: number): boolean {
  if (Array.isArray(limits)) return limits.some((one: Limit) => matters(one, cost));
  const { quota = Infinity, cost: units = cost } = limits as Limit;
  return units > 1 || units > quota * MATTERS;
}

function policiesOf(limits: ParsedLimits): string[] {
  return [limits].flat().flatMap((one) => ("policies" in one ? (one as PolicyLimit).policies : []));
}
