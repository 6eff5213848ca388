/** What Express and Fastify have in common: a request is decided, and the client is told. */

import { network } from "./address.js";
import { BoundLimit } from "./bound.js";
import type { Keyed } from "./calls.js";
import type { Client } from "./clients.js";
import type { Decision } from "./decision.js";
import { denial, fields, violated, type Denial } from "./headers.js";
import { Limiter } from "./limiter.js";
import type { LimiterOptions } from "./options.js";
import type { Limit, Limits } from "./limits.js";

/** What a middleware does with each request. */
export interface RequestOptions<Request> {
  /**
   * Whose limit this is. By default the address's: an IPv4 address, or the /64 of an IPv6 one.
   * undefined: this request is not limited.
   */
  readonly key?: (request: Request) => string | undefined;
  /** What a request costs. 1 by default. */
  readonly cost?: number | ((request: Request) => number);
  /** Tell clients of their limits. true by default. */
  readonly headers?: boolean;
  /** `X-RateLimit-Reset` in seconds since 1970, not from now. false by default. */
  readonly unixReset?: boolean;
  /** Told of every decision, for metrics and logs. */
  readonly report?: (decision: Decision, request: Request) => void;
}

/** And how the limiter is set up that it makes. */
export interface RateLimitOptions<Request> extends RequestOptions<Request>, LimiterOptions {}

/** What every key of a middleware begins with, unless its limiter says otherwise. */
const PREFIX = "limit:";

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

/** What a middleware is made of: a bound limit, or a client or limiter with limits. */
export type GateWords<Request> =
  | [limit: BoundLimit, options?: RequestOptions<Request>]
  | [client: Client | Limiter, limits: RequestLimits<Request>, options?: RateLimitOptions<Request>];

/** undefined: this request is not limited. */
export function gate<Request extends { readonly ip?: string | undefined }>(
  ...words: GateWords<Request>
): (request: Request) => Promise<Answer | undefined> {
  return gateFor(({ ip }) => ip, words);
}

/** Of requests that know their address in another way. */
export function gateFor<Request extends object>(
  addressOf: (request: Request) => string | undefined,
  words: GateWords<Request>,
): (request: Request) => Promise<Answer | undefined> {
  const [limiter, limits, options] = partsOf(words);
  const { key: keyOf = (request) => network(addressOf(request)), cost = 1, report } = options;

  async function decide(request: Request): Promise<Decision | undefined> {
    const units = typeof cost === "function" ? cost(request) : cost;
    if (limiter instanceof BoundLimit) {
      const key = keyOf(request);
      const each = [limiter.limits].flat().length > 1;
      // Most requests: nothing that the limit does not say.
      if (units === 1 && !each) return key === undefined ? undefined : limiter.take(key);
      return key === undefined ? undefined : limiter.take(key, { cost: units, each });
    }
    const own = typeof limits === "function" ? limits(request) : limits!;
    if (isKeyed(own)) return limiter.takeAll(own, { cost: units });
    const key = keyOf(request);
    if (key === undefined) return undefined;
    const each = [own].flat().length > 1;
    return units === 1 && !each
      ? limiter.take(key, own)
      : limiter.take(key, own, { cost: units, each });
  }

  return async (request) => {
    const decision = await decide(request);
    if (!decision) return undefined;
    DECISIONS.set(request, decision);
    report?.(decision, request);
    return {
      headers: options.headers === false ? {} : fields(decision, options),
      denial: decision.allowed ? undefined : denial(decision, violated(decision)),
    };
  };
}

function partsOf<Request>(words: GateWords<Request>) {
  const [first, second, third = {}] = words;
  if (first instanceof BoundLimit) {
    return [first, undefined, (second ?? {}) as RequestOptions<Request>] as const;
  }
  const limits = second as RequestLimits<Request>;
  if (limits === undefined) throw new TypeError("limits are missing: rateLimit(client, limits)");
  const limiter =
    first instanceof Limiter ? first : new Limiter(first, { prefix: PREFIX, ...third });
  return [limiter, limits, third] as const;
}

function isKeyed(limits: Limits | Keyed): limits is Keyed {
  return !Array.isArray(limits) && !Array.isArray((limits as Limit).words);
}
