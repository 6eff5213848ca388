/** Fallback decisions while the server does not decide. */

import type { PeekOptions } from "./calls.js";
import { Decision } from "./decision.js";
import type { DecisionData } from "./decision-data.js";
import { FullError, SetupError, UnavailableError } from "./errors.js";
import { LocalLimits, type Charged, type LocalOptions } from "./local.js";

export type OnOutage = "open" | "closed" | "raise" | LocalOptions;

/** Reaction to a misconfiguration: throw a SetupError, or fall back as in an outage. */
export type SetupErrors = "raise" | "outage";

export class Outage {
  readonly #fallback: "open" | "closed" | "raise" | LocalLimits;
  readonly #coversSetupErrors: boolean;

  constructor(onOutage: OnOutage, setupErrors: SetupErrors, now: () => number) {
    const isKnown = typeof onOutage === "object" || ["open", "closed", "raise"].includes(onOutage);
    if (!isKnown) {
      throw new RangeError(`onOutage must be open, closed, raise or a share: ${String(onOutage)}`);
    }
    if (!["raise", "outage"].includes(setupErrors)) {
      throw new RangeError(`setupErrors must be raise or outage: ${String(setupErrors)}`);
    }
    this.#fallback = typeof onOutage === "string" ? onOutage : new LocalLimits(onOutage, now);
    this.#coversSetupErrors = setupErrors === "outage";
  }

  /**
   * Decides in place of the server, or throws the error if no fallback covers it. `waitMs` is the
   * time until the server is tried again.
   */
  decide(
    error: unknown,
    waitMs: number,
    charged: Charged,
    { cost = 1, upto = false, force = false }: PeekOptions,
    isPeek = false,
  ): Decision {
    const fallback = this.#fallback;
    const isFull = error instanceof FullError;
    if (!isFull && (!this.#isOutage(error) || fallback === "raise")) throw error;
    const local =
      isFull || typeof fallback === "string"
        ? undefined
        : fallback.take(charged, { cost, upto, force }, isPeek);
    // A denied caller waits until the server, with its larger limit, is tried again, not until a
    // local unit is free.
    if (local) return local.but({ error, ...(local.allowed ? {} : { waitMs }) });
    // Without `otherwise`, local limits know no limit of a policy, and allow the call.
    const allowed = !isFull && fallback !== "closed";
    const granted = upto ? { granted: allowed ? Math.floor(cost) : 0 } : {};
    return undecided(allowed, allowed ? 0 : waitMs, error, granted);
  }

  /**
   * Corrects a charge in place of the server, or throws the error if no fallback covers it. Only
   * local limits can be corrected, and only by giving back `cost` units, a negative number.
   */
  correct(error: unknown, charged: Charged, cost: number | undefined): Decision {
    if (error instanceof FullError) return undecided(false, null, error);
    const fallback = this.#fallback;
    if (!this.#isOutage(error) || fallback === "raise") throw error;
    const isLocal = fallback instanceof LocalLimits && cost !== undefined;
    const local = isLocal ? fallback.take(charged, { cost }) : undefined;
    return local?.but({ error }) ?? undecided(false, null, error);
  }

  #isOutage(error: unknown): boolean {
    return (
      error instanceof UnavailableError || (this.#coversSetupErrors && error instanceof SetupError)
    );
  }
}

/** Returns a decision that neither the server nor local limits made. */
function undecided(
  allowed: boolean,
  waitMs: number | null,
  error: unknown,
  extraData: Partial<DecisionData> = {},
): Decision {
  const unknown = { limit: null, remaining: null, resetMs: null };
  return new Decision({ allowed, waitMs, ...unknown, source: "none", error, ...extraData });
}
