/** The middleware: several limits of a request, also such as lie apart, are hidden or on trial. */

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
  /** The caller; the route adds its name. */
  readonly identify: (request: Request) => Omit<Caller, "endpoint">;
  /** Behaviour while Redis does not decide. "closed" answers 503. */
  readonly onOutage?: "open" | "closed" | LocalOptions;
  /** Seconds. */
  readonly pause?: number;
  /** Decides and reports as usual, and lets everything pass: to try new limits on live traffic. */
  readonly shadow?: boolean;
  /** Told of every decision, for metrics and logs. */
  readonly report?: (report: Report) => void;
}

export interface Report extends Pick<Decision, "allowed" | "source" | "error"> {
  readonly caller: Caller;
  readonly shadow: boolean;
  /** The limits that denied. */
  readonly violated: readonly string[];
}

interface Route {
  /** Name of the route, as `Caller.endpoint`. */
  readonly endpoint: string;
  /** Units that one request takes of every limit. */
  readonly cost?: number;
}

/** A single call that charges all its limits or none. */
interface Step {
  readonly take: () => Promise<Decision>;
  readonly undo?: () => Promise<unknown>;
}

/** `const limit = rateLimiter({...}); app.get("/search", limit({ endpoint: "search" }), ...)` */
export function rateLimiter(options: Options): (route: Route) => RequestHandler {
  const { policies, shadow = false } = options;
  const limiter = new Limiter(options.redis, { prefix: PREFIX, ...options });
  // A server without the module is told to the log before the first request.
  limiter.check().catch(() => {});
  const units = new Map<string, Units>();
  const byName = new Map(policies.map((policy) => [policy.name, policy]));
  if (byName.size < policies.length) {
    throw new Error("two policies have one name, and so would share their keys");
  }

  return ({ endpoint, cost = 1 }) => {
    async function judge(request: Request): Promise<Verdict> {
      const caller = { ...options.identify(request), endpoint };
      const verdict = await decide(caller, cost);
      const { allowed, source, error } = verdict;
      options.report?.({ caller, allowed, source, error, shadow, violated: violated(verdict) });
      return verdict;
    }

    if (shadow) {
      // Not waited for, and whatever goes wrong is no request's business.
      return (request, _response, next) => {
        judge(request).catch((error) => console.error(error));
        next();
      };
    }
    return async (request, response, next) => {
      const verdict = await judge(request);
      response.set(headers(verdict));
      if (verdict.allowed) next();
      else deny(response, verdict);
    };
  };

  /**
   * Runs the steps in order until one denies; then the units of the earlier ones are given back.
   */
  async function decide(caller: Caller, cost: number): Promise<Verdict> {
    const said: [Policy, Decision][] = [];
    const taken: Step[] = [];
    let without: Pick<Verdict, "source" | "error"> = { source: "server" };
    for (const step of stepsOf(caller, cost)) {
      const decision = await step.take();
      for (const one of decision.each) said.push([byName.get(one.name!)!, one]);
      if (!decision.allowed) {
        await Promise.allSettled(taken.map(({ undo }) => undo?.()));
        return { ...decision, said };
      }
      if (decision.source !== "server") without = decision;
      taken.push(step);
    }
    return { ...without, allowed: true, waitMs: 0, said };
  }

  /** A call for all that share the tenant's slot, then one for each limit that lies apart. */
  function stepsOf(caller: Caller, cost: number): Step[] {
    const tenant: Record<string, Limit> = {};
    const apart: Record<string, Limit>[] = [];
    const spent: Step[] = [];
    for (const policy of policies) {
      const key = keyOf(policy, caller);
      if (key === undefined) continue;
      const limit = { ...policy.limit, name: policy.name };
      if (!policy.apart) {
        tenant[key] = limit;
      } else if (policy.apart === "give-back") {
        apart.push({ [key]: limit });
      } else {
        const batch = units.get(key) ?? limiter.units(key, limit, policy.apart);
        units.set(key, batch);
        spent.push({
          take: async () => {
            const decision = await batch.take(cost);
            if (decision.source !== "server") return decision;
            return decision.but({ each: [decision.but({ name: policy.name })] });
          },
        });
      }
    }
    const charged = [tenant, ...apart].filter((keyed) => Object.keys(keyed).length > 0);
    return [
      ...charged.map((keyed) => ({
        take: () => limiter.takeAll(keyed, { cost }),
        undo: () =>
          Promise.allSettled(
            Object.entries(keyed).map(([key, limit]) => limiter.giveBack(key, limit, cost)),
          ),
      })),
      // Last, since units that were spent cannot be put back.
      ...spent,
    ];
  }
}
