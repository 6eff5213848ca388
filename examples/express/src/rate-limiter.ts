/** Middleware with several limits, some of which are hidden, in shadow mode or in other slots. */

import type { Request, RequestHandler } from "express";
import { Limiter } from "redis-ratelimit-client";
import type {
  Client,
  Decision,
  Limit,
  LimiterOptions,
  LocalOptions,
  Units,
} from "redis-ratelimit-client";

import { deny, headers, violated, type Verdict } from "./answer.js";
import { PREFIX, keyOf, type Caller, type Policy } from "./limits.js";

export interface Options extends LimiterOptions {
  readonly redis: Client;
  readonly policies: readonly Policy[];
  /** Returns the caller without the endpoint, which the route adds. */
  readonly identify: (request: Request) => Omit<Caller, "endpoint">;
  /** Behaviour during an outage of Redis. "closed" responds 503. */
  readonly onOutage?: "open" | "closed" | LocalOptions;
  /** Seconds between probes during an outage. */
  readonly pause?: number;
  /** Shadow mode: decides and reports as usual, but lets every request pass. */
  readonly shadow?: boolean;
  /** Called with every decision, for metrics and logs. */
  readonly report?: (report: Report) => void;
}

export interface Report extends Pick<Decision, "allowed" | "source" | "error"> {
  readonly caller: Caller;
  readonly shadow: boolean;
  /** Names of the limits that denied. */
  readonly violated: readonly string[];
}

interface Route {
  /** Name of the route, as `Caller.endpoint`. */
  readonly endpoint: string;
  /** Units that one request takes of every limit. */
  readonly cost?: number;
}

/** Single call that charges all its limits or none. */
interface Step {
  readonly take: () => Promise<Decision>;
  readonly undo?: () => Promise<unknown>;
}

/** `const limit = rateLimiter({...}); app.get("/search", limit({ endpoint: "search" }), ...)` */
export function rateLimiter(options: Options): (route: Route) => RequestHandler {
  const { policies, shadow = false } = options;
  const limiter = new Limiter(options.redis, { prefix: PREFIX, ...options });
  // Logs a server without the module before the first request.
  limiter.check().catch(() => {});
  const units = new Map<string, Units>();
  const byName = new Map(policies.map((policy) => [policy.name, policy]));
  if (byName.size < policies.length) {
    throw new Error("two policies have the same name, and would share their keys");
  }

  return ({ endpoint, cost = 1 }) => {
    async function evaluate(request: Request): Promise<Verdict> {
      const caller = { ...options.identify(request), endpoint };
      const verdict = await decide(caller, cost);
      const { allowed, source, error } = verdict;
      options.report?.({ caller, allowed, source, error, shadow, violated: violated(verdict) });
      return verdict;
    }

    if (shadow) {
      // The request does not wait for the decision, and errors do not affect it.
      return (request, _response, next) => {
        evaluate(request).catch((error) => console.error(error));
        next();
      };
    }
    return async (request, response, next) => {
      const verdict = await evaluate(request);
      response.set(headers(verdict));
      if (verdict.allowed) next();
      else deny(response, verdict);
    };
  };

  /**
   * Runs the steps in order until a step is denied. Then the charges of the earlier steps are
   * refunded.
   */
  async function decide(caller: Caller, cost: number): Promise<Verdict> {
    const results: [Policy, Decision][] = [];
    const chargedSteps: Step[] = [];
    let origin: Pick<Verdict, "source" | "error"> = { source: "server" };
    for (const step of stepsOf(caller, cost)) {
      const decision = await step.take();
      for (const each of decision.each) results.push([byName.get(each.name!)!, each]);
      if (!decision.allowed) {
        await Promise.allSettled(chargedSteps.map(({ undo }) => undo?.()));
        return { ...decision, results };
      }
      if (decision.source !== "server") origin = decision;
      chargedSteps.push(step);
    }
    return { ...origin, allowed: true, waitMs: 0, results };
  }

  /** Returns a step for all limits in the tenant's slot, then one for each other limit. */
  function stepsOf(caller: Caller, cost: number): Step[] {
    const tenant: Record<string, Limit> = {};
    const separate: Record<string, Limit>[] = [];
    const batches: Step[] = [];
    for (const policy of policies) {
      const key = keyOf(policy, caller);
      if (key === undefined) continue;
      const limit = { ...policy.limit, name: policy.name };
      if (!policy.apart) {
        tenant[key] = limit;
      } else if (policy.apart === "give-back") {
        separate.push({ [key]: limit });
      } else {
        const batch = units.get(key) ?? limiter.units(key, limit, policy.apart);
        units.set(key, batch);
        batches.push({
          take: async () => {
            const decision = await batch.take(cost);
            if (decision.source !== "server") return decision;
            return decision.but({ each: [decision.but({ name: policy.name })] });
          },
        });
      }
    }
    const charged = [tenant, ...separate].filter((keyed) => Object.keys(keyed).length > 0);
    return [
      ...charged.map((keyed) => ({
        take: () => limiter.takeAll(keyed, { cost }),
        undo: () =>
          Promise.allSettled(
            Object.entries(keyed).map(([key, limit]) => limiter.giveBack(key, limit, cost)),
          ),
      })),
      // Batches are last, because spent units cannot be refunded.
      ...batches,
    ];
  }
}
