/** Policies with FORCE, whose denied calls may have been charged past the limit. */

import { takeParsed, type Call } from "./calls.js";
import type { Decision } from "./decision.js";
import type { Limit, PolicyLimit } from "./limits.js";

/** Error text for `wait` and units by a policy with FORCE, which would charge each attempt. */
export const FORCED =
  "the policy has a limit with FORCE, which charges denied calls: it is not for wait and units";

/** Lifetime of a cached answer in milliseconds. */
const CACHED_MS = 1000;
/** Maximum number of cached answers. */
const MAX_ANSWERS = 10_000;

/** Cache of the policies that have FORCE. */
export class ForcedPolicies {
  readonly #answer: (call: Call<Decision>) => Promise<Decision>;
  readonly #now: () => number;
  readonly #byName = new Map<string, { readonly forces?: boolean; readonly until: number }>();

  constructor(answer: (call: Call<Decision>) => Promise<Decision>, now: () => number) {
    this.#answer = answer;
    this.#now = now;
  }

  /**
   * Returns `true` if the limits of a key are a policy with FORCE, or undefined if the server does
   * not answer. Asks the server unless the answer is cached or part of `decision`.
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
    // Errors are ignored here: the call that follows reports them.
    const policyDecision = await this.#answer(
      takeParsed(key, policy, { cost: 0, each: true }),
    ).catch(() => undefined);
    if (this.#byName.size >= MAX_ANSWERS) this.#byName.clear();
    const forces = policyDecision?.forced;
    this.#byName.set(name, { ...(forces === undefined ? {} : { forces }), until: now + CACHED_MS });
    return forces;
  }
}
