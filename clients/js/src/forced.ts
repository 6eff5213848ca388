/** Policies with FORCE, whose denied calls may have been charged past the limit. */

import { takeParsed, type Call } from "./calls.js";
import type { Decision } from "./decision.js";
import type { Limit, PolicyLimit } from "./limits.js";

/** Error text for `wait` and units, with which each attempt would be charged. */
export const FORCED =
  "the policy has a limit with FORCE, which charges denied calls: it is not for wait and units";

/** Lifetime in milliseconds and maximum number of cached answers. */
const HOLDS_MS = 1000;
const MOST = 10_000;

export class ForcedPolicies {
  readonly #answer: (call: Call<Decision>) => Promise<Decision>;
  readonly #now: () => number;
  readonly #byName = new Map<string, { readonly forces?: boolean; readonly until: number }>();

  constructor(answer: (call: Call<Decision>) => Promise<Decision>, now: () => number) {
    this.#answer = answer;
    this.#now = now;
  }

  /**
   * Returns `true` if the limits of a key are a policy with FORCE, or undefined if that is not
   * known. Asks the server unless the decision contains the answer.
   */
  async has(
    key: string,
    limits: readonly Limit[],
    decision?: Decision,
  ): Promise<boolean | undefined> {
    const policy = limits[0];
    if (policy === undefined || !("policies" in policy)) return false;
    if (decision?.forced !== undefined) return decision.forced;
    const name = JSON.stringify((policy as PolicyLimit).policies);
    const now = this.#now();
    const entry = this.#byName.get(name);
    if (entry && now < entry.until) return entry.forces;
    // The call itself reports its errors.
    const facts = await this.#answer(takeParsed(key, policy, { cost: 0, each: true })).catch(
      () => undefined,
    );
    if (this.#byName.size >= MOST) this.#byName.clear();
    const forces = facts?.forced;
    this.#byName.set(name, { ...(forces === undefined ? {} : { forces }), until: now + HOLDS_MS });
    return forces;
  }
}
