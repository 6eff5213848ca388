/** Common part of the middleware: decides requests and builds responses. */

import { BoundLimit } from "./bound.js";
import type { Log } from "./breaker.js";
import type { Keyed, TakeOptions } from "./calls.js";
import type { Client } from "./clients.js";
import type { Decision } from "./decision.js";
import { denial, fields, violated } from "./headers.js";
import { specOf } from "./keys.js";
import { Limiter } from "./limiter.js";
import type { Duration, Limit } from "./limits.js";
import type { LimiterOptions } from "./options.js";
import { isLimit, limitOf, limitsOf, type Limits, type ParsedLimits } from "./rates.js";
import { RequestKeys, UNLIMITED, type AddressOf, type KeyOptions } from "./request-keys.js";

/** Options of a middleware for each request. */
export interface RequestOptions<Request, Response = unknown> extends KeyOptions<Request> {
  /** Cost of a request. 1 by default. */
  readonly cost?: number | ((request: Request) => number);
  /** Send header fields about the limits to clients. true by default. */
  readonly headers?: boolean;
  /** `X-RateLimit-Reset` in seconds since 1970, not from now. false by default. */
  readonly unixReset?: boolean;
  /** Called with every decision, for metrics and logs. */
  readonly report?: (decision: Decision, request: Request) => void;
  /** Returns `true` for a response that does not count: its charge is given back. */
  readonly refund?: (response: Response) => boolean;
  /** Builds the response to a denied request. Missing parts have their defaults. */
  readonly deny?: (decision: Decision, request: Request) => Denied | Promise<Denied>;
}

/** Options of a middleware, and of the limiter that it creates for a client. */
export interface RateLimitOptions<Request, Response = unknown>
  extends RequestOptions<Request, Response>, LimiterOptions {
  /** Name of the limits, which their keys begin with and clients see. */
  readonly name?: string;
  /**
   * Prefix of every key. Without `name` it replaces the name: the key is the prefix and the client.
   */
  readonly prefix?: string;
}

/** Response to a denied request. */
export interface Denied {
  readonly status?: number;
  /** Additional header fields. */
  readonly headers?: Record<string, string>;
  /** Content type. By default JSON, or plain text if the body is a string. */
  readonly type?: string;
  readonly body?: string | object;
}

/**
 * Limits of a key; or a function that returns the limits of a request, or limits of several keys in
 * one slot.
 */
export type RequestLimits<Request> =
  Limits | ((request: Request) => Limits | Keyed | typeof UNLIMITED);

export interface Answer<Response> {
  readonly headers: Record<string, string>;
  readonly denial: { readonly status: number; type: string; body: string } | undefined;
  /** Gives the charge back if the response says so. Undefined if there is no charge. */
  readonly refund: ((response: Response) => Promise<void>) | undefined;
}

/** Function that returns the key of a client by the value of `key`, or else by its address. */
export type KeyOf = (who?: string | null, address?: string | null) => string;

/** Decisions of a middleware, and its keys. */
export interface Gate<Request, Response> {
  /** Decides a request. Returns undefined if it is not limited. */
  readonly decide: (request: Request) => Promise<Answer<Response> | undefined>;
  readonly keyOf: KeyOf;
}

/** Middleware that exposes its keys, for `limiter.ban` and `limiter.reset`. */
export interface Keys {
  readonly keyOf: KeyOf;
}

const DECISIONS = new WeakMap<object, Decision>();

/** Returns the decision of a request by the last limiter that it passed through. */
export function decisionFor(request: object): Decision | undefined {
  return DECISIONS.get(request);
}

/** Arguments of a middleware: a bound limit, or a client or limiter with limits. */
export type GateWords<Request, Response = unknown> =
  | [limit: BoundLimit, options?: RequestOptions<Request, Response>]
  | [
      client: Client | Limiter,
      limits: RequestLimits<Request>,
      options?: RateLimitOptions<Request, Response>,
    ];

/** Creates the gate of requests that have an `ip`. */
export function gate<Request extends { readonly ip?: string | undefined }, Response>(
  words: GateWords<Request, Response>,
): Gate<Request, Response> {
  return gateFor(({ ip }) => ip, words);
}

/** Creates the gate of requests whose address `addressOf` returns. */
export function gateFor<Request extends object, Response>(
  addressOf: AddressOf<Request>,
  words: GateWords<Request, Response>,
): Gate<Request, Response> {
  const { limiter, limits, log, options, naming } = partsOf(words);
  const { cost, report, refund, deny } = options;
  const keys = new RequestKeys(addressOf, options, naming, log);

  /** Returns the options of a call; undefined for most calls. */
  function optionsOf(request: Request, own: ParsedLimits | Keyed): TakeOptions | undefined {
    const units = typeof cost === "function" ? cost(request) : cost;
    const each = Array.isArray(own) && own.length > 1;
    if (units === undefined && !each && !refund) return undefined;
    return {
      ...(units === undefined ? {} : { cost: units }),
      ...(each ? { each } : {}),
      ...(refund ? { refundable: true, ttl: refundTime(own) } : {}),
    };
  }

  async function taken(request: Request): Promise<Decision | undefined> {
    const own = typeof limits === "function" ? limits(request) : limits;
    if (own === UNLIMITED) return undefined;
    if (isKeyed(own)) return limiter.takeAll(keys.prefixed(own), optionsOf(request, own));
    const key = keys.of(request);
    if (key === undefined) return undefined;
    const parsed = typeof limits === "function" ? keys.labelled(limitsOf(own)) : limits;
    return limiter.take(key, parsed, optionsOf(request, parsed));
  }

  async function denied(decision: Decision, request: Request) {
    const usual = denial(decision, violated(decision));
    const { body = usual.body, ...own } = (await deny?.(decision, request)) ?? {};
    const text = typeof body === "string";
    const type = body === usual.body ? usual.type : text ? "text/plain" : "application/json";
    return {
      more: own.headers,
      denial: {
        status: own.status ?? usual.status,
        type: own.type ?? type,
        body: text ? body : JSON.stringify(body),
      },
    };
  }

  async function refunded(decision: Decision, response: Response): Promise<void> {
    try {
      if (refund?.(response)) await decision.settle(0);
    } catch (error) {
      log(`rate limits: a request was not refunded: ${String(error)}`, "error");
    }
  }

  return {
    keyOf: (who, address) => keys.keyOf(who, address),
    decide: async (request) => {
      const decision = await taken(request);
      if (!decision) return undefined;
      DECISIONS.set(request, decision);
      report?.(decision, request);
      const headers = options.headers === false ? {} : fields(decision, options);
      if (decision.allowed) {
        const back = (response: Response) => refunded(decision, response);
        return { headers, denial: undefined, refund: refund && back };
      }
      const { more, denial } = await denied(decision, request);
      return { headers: { ...headers, ...more }, denial, refund: undefined };
    },
  };
}

/** Longest time within which a request can be refunded, in seconds. */
const REFUNDED_WITHIN = 600;

/** Returns the time within which a charge is refundable: after its window it has recovered. */
function refundTime(limits: ParsedLimits | Keyed): Duration {
  const all = isKeyed(limits) ? Object.values(limits).map(limitOf) : [limits].flat();
  const longest = Math.max(1, ...all.map(({ window = REFUNDED_WITHIN }: Limit) => window));
  return Math.ceil(Math.min(longest, REFUNDED_WITHIN));
}

function partsOf<Request, Response>(words: GateWords<Request, Response>) {
  const [first, second, third = {}] = words;
  if (first instanceof BoundLimit) {
    const { limits, name } = first;
    const options = (second ?? {}) as RequestOptions<Request, Response>;
    const naming = { before: "", shown: "", prefix: "", name, spec: undefined };
    return { limiter: first.ofKeys, limits, log: logOf(first), options, naming };
  }
  const requestLimits = second as RequestLimits<Request>;
  const { name, prefix = "" } = third;
  const isOwn = !(first instanceof Limiter);
  // A prefix in place of a name is part of the key, after the mark of addresses.
  const own = isOwn && name !== undefined ? prefix : "";
  const limiter = isOwn ? new Limiter(first, { ...third, prefix: own }) : first;
  const naming = { before: name === undefined || isOwn ? "" : prefix, shown: own, name, prefix };
  const common = { limiter, log: limiter.log, options: third };
  if (typeof requestLimits === "function") {
    return { ...common, limits: requestLimits, naming: { ...naming, spec: undefined } };
  }
  const limits = limitsOf(requestLimits);
  if (name === undefined) return { ...common, limits, naming: { ...naming, spec: specOf(limits) } };
  const bound = limiter.limit(naming.before + name, limits);
  // The name is in use as long as the middleware exists.
  return {
    ...common,
    limiter: bound.ofKeys,
    limits: bound.limits,
    naming: { ...naming, spec: undefined },
  };
}

function logOf({ limiter }: BoundLimit): Log {
  return limiter.log ?? ((line, level) => console[level](line));
}

function isKeyed(limits: unknown): limits is Keyed {
  const isObject = typeof limits === "object" && limits !== null;
  return isObject && !Array.isArray(limits) && !isLimit(limits);
}
