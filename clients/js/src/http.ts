/** What Express and Fastify have in common: a request is decided, and the client is told. */

import { network } from "./address.js";
import type { Keyed } from "./calls.js";
import type { Client } from "./clients.js";
import type { Decision } from "./decision.js";
import { denial, fields, violated, type Denial } from "./headers.js";
import { Limiter } from "./limiter.js";
import type { LimiterOptions } from "./options.js";
import type { Limit, Limits } from "./limits.js";

export interface RateLimitOptions<Request> extends LimiterOptions {
  /**
   * Whose limit this is. By default the address's: an IPv4 address, or the /64 of an IPv6 one.
   * undefined: this request is not limited.
   */
  readonly key?: (request: Request) => string | undefined;
  /** What a request costs. 1 by default. */
  readonly cost?: number | ((request: Request) => number);
  /** Tell clients of their limits. true by default. */
  readonly headers?: boolean;
  /** Told of every decision, for metrics and logs. */
  readonly report?: (decision: Decision, request: Request) => void;
}

/** The limits of a key; or, from a request, those of several keys of one slot. */
export type RequestLimits<Request> = Limits | ((request: Request) => Limits | Keyed);

export interface Answer {
  readonly headers: Record<string, string>;
  readonly denial: Denial | undefined;
}

const DECISIONS = new WeakMap<object, Decision>();

/** What was decided of a request, by the last limiter that it came through. */
export function decisionFor(request: object): Decision | undefined {
  return DECISIONS.get(request);
}

/** undefined: this request is not limited. */
export function gate<Request extends { readonly ip?: string | undefined }>(
  client: Client | Limiter,
  limits: RequestLimits<Request>,
  options: RateLimitOptions<Request>,
): (request: Request) => Promise<Answer | undefined> {
  const limiter =
    client instanceof Limiter ? client : new Limiter(client, { prefix: "rl:", ...options });
  const { key: keyOf = ({ ip }) => network(ip), cost = 1, report } = options;

  async function decide(request: Request): Promise<Decision | undefined> {
    const own = typeof limits === "function" ? limits(request) : limits;
    const units = typeof cost === "function" ? cost(request) : cost;
    if (isKeyed(own)) return limiter.takeAll(own, { cost: units });
    const key = keyOf(request);
    if (key === undefined) return undefined;
    return limiter.take(key, own, { cost: units, each: [own].flat().length > 1 });
  }

  return async (request) => {
    const decision = await decide(request);
    if (!decision) return undefined;
    DECISIONS.set(request, decision);
    report?.(decision, request);
    return {
      headers: options.headers === false ? {} : fields(decision),
      denial: decision.allowed ? undefined : denial(decision, violated(decision)),
    };
  };
}

function isKeyed(limits: Limits | Keyed): limits is Keyed {
  return !Array.isArray(limits) && !Array.isArray((limits as Limit).words);
}
