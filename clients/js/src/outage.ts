/** Fallback decisions while the server does not decide. */

import type { PeekOptions } from "./calls.js";
import { Decision, type DecisionData } from "./decision.js";
import { FullError, SetupError, UnavailableError } from "./errors.js";
import { LocalLimits, type Charged, type LocalOptions } from "./local.js";

export type OnOutage = "open" | "closed" | "raise" | LocalOptions;

/** Reaction to a misconfiguration: throw a SetupError, or fall back as in an outage. */
export type SetupErrors = "raise" | "outage";

export class Outage {
  readonly #holds: "open" | "closed" | "raise" | LocalLimits;

  readonly #takesSetup: boolean;

  constructor(onOutage: OnOutage, setupErrors: SetupErrors, now: () => number) {
    const isKnown = typeof onOutage === "object" || ["open", "closed", "raise"].includes(onOutage);
    if (!isKnown) {
      throw new RangeError(`onOutage must be open, closed, raise or a share: ${String(onOutage)}`);
    }
    if (!["raise", "outage"].includes(setupErrors)) {
      throw new RangeError(`setupErrors must be raise or outage: ${String(setupErrors)}`);
    }
    this.#holds = typeof onOutage === "string" ? onOutage : new LocalLimits(onOutage, now);
    this.#takesSetup = setupErrors === "outage";
  }

  /**
   * Decides in place of the server, or throws the error of a rejected call. `waitMs` is the time
   * until the server is tried again.
   */
  decide(
    error: unknown,
    waitMs: number,
    charged: Charged,
    { cost = 1, upto = false, force = false }: PeekOptions,
    peeks = false,
  ): Decision {
    const holds = this.#holds;
    const isFull = error instanceof FullError;
    if (!isFull && (!this.#isOutage(error) || holds === "raise")) throw error;
    const local =
      isFull || typeof holds === "string"
        ? undefined
        : holds.take(charged, { cost, upto, force }, peeks);
    // The wait until the server, with its larger limit, is tried again, not until a local unit is
    // free.
    if (local) return local.but({ error, ...(local.allowed ? {} : { waitMs }) });
    // Local limits do not know a policy's limits, unless `otherwise` replaces them.
    const allowed = !isFull && holds !== "closed";
    const granted = upto ? { granted: allowed ? Math.floor(cost) : 0 } : {};
    return undecided(allowed, allowed ? 0 : waitMs, error, granted);
  }

  /** Settles in place of the server. Only a charge by local limits can be corrected. */
  correct(error: unknown, charged: Charged, cost: number | undefined): Decision {
    if (error instanceof FullError) return undecided(false, null, error);
    if (!this.#isOutage(error) || this.#holds === "raise") throw error;
    const isLocal = this.#holds instanceof LocalLimits && cost !== undefined;
    const local = isLocal ? (this.#holds as LocalLimits).take(charged, { cost }) : undefined;
    return local?.but({ error }) ?? undecided(false, null, error);
  }

  #isOutage(error: unknown): boolean {
    return error instanceof UnavailableError || (this.#takesSetup && error instanceof SetupError);
  }
}

function undecided(
  allowed: boolean,
  waitMs: number | null,
  error: unknown,
  more: Partial<DecisionData> = {},
): Decision {
  const unknown = { limit: null, remaining: null, resetMs: null };
  return new Decision({ allowed, waitMs, ...unknown, source: "none", error, ...more });
}
