/** The middleware. */

import type { Request, RequestHandler, Response } from "express";
import type { Cluster, Redis } from "ioredis";

import { fields } from "./fields.js";
import { Leases } from "./lease.js";
import { PREFIX, keyOf, longestWait } from "./limits.js";
import type { Caller, Decision, Policy, Verdict } from "./limits.js";
import { LocalLimits } from "./local.js";
import { Limiters, PATIENCE, type Patience } from "./redis.js";

export interface Options {
  readonly redis: Redis | Cluster;
  readonly policies: readonly Policy[];
  /** Who is asking; the route adds its name. */
  readonly identify: (request: Request) => Omit<Caller, "endpoint">;
  /**
   * When Redis does not answer:
   * "local": this process's share of every limit holds. "open": everything passes.
   * "closed": nothing does, and 503 is the answer.
   */
  readonly whenAway?: "local" | "open" | "closed";
  /** This process's share: 1 / the number of processes. */
  readonly share?: number;
  /** Decides and reports as usual, and lets everything pass: to try new limits on live traffic. */
  readonly shadow?: boolean;
  /** What keys begin with. A shadow needs another than the limiter beside it. */
  readonly prefix?: string;
  readonly patience?: Partial<Patience>;
  readonly leaseGoodForMs?: number;
  /** Told of every decision, for metrics and logs. */
  readonly report?: (report: Report) => void;
  /** Told when an outage begins and when it is over. */
  readonly log?: (line: string) => void;
}

export interface Report {
  readonly caller: Caller;
  readonly allowed: boolean;
  readonly shadow: boolean;
  readonly by: "redis" | "local" | "open" | "closed";
  /** The limits that denied. */
  readonly violated: readonly string[];
  /** Why Redis did not decide. */
  readonly error?: unknown;
}

interface Route {
  /** Its name, as `Caller.endpoint`. */
  readonly endpoint: string;
  /** What one request takes of every limit. */
  readonly cost?: number;
}

interface Place {
  readonly policy: Policy;
  readonly key: string;
}

/** One call: it charges all its limits or none. */
interface Step {
  readonly places: readonly Place[];
  readonly take: () => Promise<Decision[]>;
  readonly undo: () => void | Promise<void>;
}

/** `const limit = rateLimiter({...}); app.get("/search", limit({ endpoint: "search" }), ...)` */
export function rateLimiter(options: Options): (route: Route) => RequestHandler {
  const { policies, whenAway = "local", shadow = false, prefix = PREFIX } = options;
  const patience = { ...PATIENCE, ...options.patience };
  const limiters = new Limiters(options.redis, patience, options.log);
  void limiters.check();
  const leases = new Leases(limiters, options.leaseGoodForMs);
  const local = new LocalLimits(options.share ?? 1);
  if (new Set(policies.map(({ name }) => name)).size < policies.length) {
    throw new Error("two policies have one name, and so would share their keys");
  }

  return ({ endpoint, cost = 1 }) => {
    async function judge(request: Request): Promise<Verdict> {
      const caller = { ...options.identify(request), endpoint };
      const { verdict, ...how } = await decide(caller, cost);
      const violated = [...verdict.decisions].filter(([, { allowed }]) => !allowed);
      options.report?.({
        caller,
        allowed: verdict.allowed,
        shadow,
        violated: violated.map(([{ name }]) => name),
        ...how,
      });
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
      response.set(fields(verdict));
      if (verdict.allowed) next();
      else deny(response, verdict);
    };
  };

  async function decide(
    caller: Caller,
    cost: number,
  ): Promise<{ verdict: Verdict; by: Report["by"]; error?: unknown }> {
    const places = policies.flatMap((policy) => {
      const key = keyOf(policy, caller, prefix);
      return key === undefined ? [] : [{ policy, key }];
    });
    try {
      return { verdict: await ask(places, cost), by: "redis" };
    } catch (error) {
      // A call that got no reply may have charged all the same. In time that is forgotten.
      const { allowed, ...rest } =
        whenAway === "local"
          ? local.take(places, cost)
          : { allowed: whenAway === "open", decisions: new Map<Policy, Decision>() };
      // Whatever denied, the time to come back is when Redis is asked again.
      const verdict = { ...rest, allowed, waitMs: allowed ? 0 : patience.pauseMs };
      return { verdict, by: whenAway, error };
    }
  }

  /** One call after another, until one denies: then what the others took is given back. */
  async function ask(places: readonly Place[], cost: number): Promise<Verdict> {
    const decisions = new Map<Policy, Decision>();
    const taken: Step[] = [];
    for (const step of steps(places, cost)) {
      const said = await step.take();
      step.places.forEach(({ policy }, index) => decisions.set(policy, said[index]!));
      if (said.some(({ allowed }) => !allowed)) {
        await Promise.all(taken.map(({ undo }) => undo()));
        return { allowed: false, waitMs: longestWait(said), decisions };
      }
      taken.push(step);
    }
    return { allowed: true, waitMs: 0, decisions };
  }

  /** A call for each limit that lies apart, then one for all that share the tenant's slot. */
  function steps(places: readonly Place[], cost: number): Step[] {
    const apart = places.filter(({ policy }) => policy.apart);
    const together = places.filter(({ policy }) => !policy.apart);
    const all = [...apart.map((place) => [place]), ...(together.length > 0 ? [together] : [])];
    return all.map((places) => {
      const [{ policy, key }] = places as [Place];
      if (typeof policy.apart === "object") {
        const { lease } = policy.apart;
        return {
          places,
          take: async () => [await leases.take(key, policy.limit, cost, lease)],
          undo: () => leases.putBack(key, cost),
        };
      }
      const charged = new Map(places.map(({ policy, key }) => [key, policy.limit]));
      return {
        places,
        take: () => limiters.takeAll(charged, cost),
        undo: () => limiters.giveBack(charged, cost),
      };
    });
  }
}

/** The body is a problem document (RFC 9457), of the types that the draft of the fields defines. */
function deny(response: Response, { decisions, waitMs }: Verdict): void {
  const violated = [...decisions].filter(([, { allowed }]) => !allowed);
  // No limit denied: Redis is away, and that is not the client's doing.
  const [status, type, title] =
    violated.length > 0
      ? [429, "quota-exceeded", "Too many requests"]
      : [503, "temporary-reduced-capacity", "Rate limits cannot be checked at the moment"];
  response
    .status(status as number)
    .type("application/problem+json")
    .json({
      type: `https://iana.org/assignments/http-problem-types#${type}`,
      title,
      status,
      "violated-policies": violated.map(([{ name }]) => name),
      ...(waitMs < 0 && { detail: "This request costs more than the limit ever allows" }),
    });
}
