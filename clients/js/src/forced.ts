/** Policies with a limit that has FORCE: what they deny may have been charged, past the limit. */

import { takeParsed, type Call } from "./calls.js";
import type { Decision } from "./decision.js";
import type { Limit, PolicyLimit } from "./limits.js";

/** Each attempt would be charged once more. */
export const FORCED =
  "the policy has a limit with FORCE, which charges denied calls: it is not for wait and units";

/** Lifetime of an answer, that of a denial by a policy, and the maximum number of answers. */
const HOLDS_MS = 1000;
const MOST = 10_000;

export class ForcedPolicies {
  readonly #answer: (call: Call<Decision>) => Promise<Decision>;
  readonly #now: () => number;
  readonly #known = new Map<string, { readonly forces?: boolean; readonly until: number }>();

  constructor(answer: (call: Call<Decision>) => Promise<Decision>, now: () => number) {
    this.#answer = answer;
    this.#now = now;
  }

  /**
   * Tells whether the limits of a key are a policy with FORCE; undefined if that is not known. What a
   * decision has told is not asked.
   */
  async has(key: string, limits: readonly Limit[], told?: Decision): Promise<boolean | undefined> {
    const policy = limits[0];
    if (policy === undefined || !("policies" in policy)) return false;
    if (told?.forced !== undefined) return told.forced;
    const name = JSON.stringify((policy as PolicyLimit).policies);
    const now = this.#now();
    const known = this.#known.get(name);
    if (known && now < known.until) return known.forces;
    // What is wrong with the call, it says itself.
    const facts = await this.#answer(takeParsed(key, policy, { cost: 0, each: true })).catch(
      () => undefined,
    );
    if (this.#known.size >= MOST) this.#known.clear();
    const forces = facts?.forced;
    this.#known.set(name, { ...(forces === undefined ? {} : { forces }), until: now + HOLDS_MS });
    return forces;
  }
}
