/** What holds while the server does not decide. */

import type { PeekOptions } from "./calls.js";
import { Decision, type Told } from "./decision.js";
import { FullError, SetupError, UnavailableError } from "./errors.js";
import { LocalLimits, type Charged, type LocalOptions } from "./local.js";

export type OnOutage = "open" | "closed" | "raise" | LocalOptions;

/** What a mistake of setup leads to: a SetupError, or what holds in an outage. */
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

  /** In place of the server's decision. A mistake is still an error. `waitMs`: until it is asked again. */
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
    // Not when there is a unit here, but when the server is asked again, whose limit is larger.
    if (local) return local.but({ error, ...(local.allowed ? {} : { waitMs }) });
    // Local limits know no numbers of a policy, unless somebody has said what stands in for it.
    const allowed = !isFull && holds !== "closed";
    const granted = upto ? { granted: allowed ? Math.floor(cost) : 0 } : {};
    return nobody(allowed, allowed ? 0 : waitMs, error, granted);
  }

  /** In place of a correction: what nobody charged cannot be corrected, but by local limits. */
  correct(error: unknown, charged: Charged, cost: number | undefined): Decision {
    if (error instanceof FullError) return nobody(false, null, error);
    if (!this.#isOutage(error) || this.#holds === "raise") throw error;
    const isLocal = this.#holds instanceof LocalLimits && cost !== undefined;
    const local = isLocal ? (this.#holds as LocalLimits).take(charged, { cost }) : undefined;
    return local?.but({ error }) ?? nobody(false, null, error);
  }

  #isOutage(error: unknown): boolean {
    return error instanceof UnavailableError || (this.#takesSetup && error instanceof SetupError);
  }
}

function nobody(
  allowed: boolean,
  waitMs: number | null,
  error: unknown,
  more: Partial<Told> = {},
): Decision {
  const unknown = { limit: null, remaining: null, resetMs: null };
  return new Decision({ allowed, waitMs, ...unknown, source: "none", error, ...more });
}
