/** Common part of the middleware for all frameworks: decides requests and builds responses. */

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
  /** Name of the limits. Their keys begin with it, and clients see it in header fields. */
  readonly name?: string;
  /**
   * Prefix of every key. Without `name` it replaces the name: a key is the prefix and the caller.
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

/** Result of a decided request. */
export interface Answer<Response> {
  readonly headers: Record<string, string>;
  /** Response to a denied request; undefined if it is allowed. */
  readonly denial: { readonly status: number; type: string; body: string } | undefined;
  /** Gives the charge back if the option `refund` returns `true` for the response. */
  readonly refund: ((response: Response) => Promise<void>) | undefined;
}

/** Function that returns a key by the result of the option `key`, or without one by an address. */
export type KeyOf = (caller?: string | null, address?: string | null) => string;

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

/** Returns the decision of the last middleware that a request passed through. */
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

/** Creates the gate for requests with a property `ip`. */
export function gate<Request extends { readonly ip?: string | undefined }, Response>(
  args: GateWords<Request, Response>,
): Gate<Request, Response> {
  return gateFor(({ ip }) => ip, args);
}

/** Creates the gate for requests whose address is the result of `addressOf`. */
export function gateFor<Request extends object, Response>(
  addressOf: AddressOf<Request>,
  args: GateWords<Request, Response>,
): Gate<Request, Response> {
  const { limiter, limits, log, options, naming } = partsOf(args);
  const { cost, report, refund, deny } = options;
  const keys = new RequestKeys(addressOf, options, naming, log);

  /** Returns the options of a call; undefined for most calls. */
  function optionsOf(
    request: Request,
    requestLimits: ParsedLimits | Keyed,
  ): TakeOptions | undefined {
    const units = typeof cost === "function" ? cost(request) : cost;
    const each = Array.isArray(requestLimits) && requestLimits.length > 1;
    if (units === undefined && !each && !refund) return undefined;
    return {
      ...(units === undefined ? {} : { cost: units }),
      ...(each ? { each } : {}),
      ...(refund ? { refundable: true, ttl: refundTime(requestLimits) } : {}),
    };
  }

  /** Charges a request. Returns undefined if the request is not limited. */
  async function take(request: Request): Promise<Decision | undefined> {
    const requestLimits = typeof limits === "function" ? limits(request) : limits;
    if (requestLimits === UNLIMITED) return undefined;
    if (isKeyed(requestLimits)) {
      return limiter.takeAll(keys.prefixed(requestLimits), optionsOf(request, requestLimits));
    }
    const key = keys.of(request);
    if (key === undefined) return undefined;
    const parsed = typeof limits === "function" ? keys.labelled(limitsOf(requestLimits)) : limits;
    return limiter.take(key, parsed, optionsOf(request, parsed));
  }

  /** Returns the response to a denied request: the result of `deny`, with defaults. */
  async function denialOf(decision: Decision, request: Request) {
    const defaults = denial(decision, violated(decision));
    const { body = defaults.body, ...custom } = (await deny?.(decision, request)) ?? {};
    const isText = typeof body === "string";
    const type =
      body === defaults.body ? defaults.type : isText ? "text/plain" : "application/json";
    return {
      customHeaders: custom.headers,
      denial: {
        status: custom.status ?? defaults.status,
        type: custom.type ?? type,
        body: isText ? body : JSON.stringify(body),
      },
    };
  }

  async function refundIfAsked(decision: Decision, response: Response): Promise<void> {
    try {
      if (refund?.(response)) await decision.settle(0);
    } catch (error) {
      log(`rate limits: a request was not refunded: ${String(error)}`, "error");
    }
  }

  return {
    keyOf: (caller, address) => keys.keyOf(caller, address),
    decide: async (request) => {
      const decision = await take(request);
      if (!decision) return undefined;
      DECISIONS.set(request, decision);
      report?.(decision, request);
      const headers = options.headers === false ? {} : fields(decision, options);
      if (decision.allowed) {
        const giveBack = (response: Response) => refundIfAsked(decision, response);
        return { headers, denial: undefined, refund: refund && giveBack };
      }
      const { customHeaders, denial } = await denialOf(decision, request);
      return { headers: { ...headers, ...customHeaders }, denial, refund: undefined };
    },
  };
}

/** Longest time within which a request can be refunded, in seconds. */
const MAX_REFUND_SECONDS = 600;

/**
 * Returns the time within which a charge is refundable. After its window the charge has recovered.
 */
function refundTime(limits: ParsedLimits | Keyed): Duration {
  const all = isKeyed(limits) ? Object.values(limits).map(limitOf) : [limits].flat();
  const longest = Math.max(1, ...all.map(({ window = MAX_REFUND_SECONDS }: Limit) => window));
  return Math.ceil(Math.min(longest, MAX_REFUND_SECONDS));
}

/** Returns the limiter, limits and options of a middleware by its arguments. */
function partsOf<Request, Response>(args: GateWords<Request, Response>) {
  const [first, second, third = {}] = args;
  if (first instanceof BoundLimit) {
    const { limits, name } = first;
    const options = (second ?? {}) as RequestOptions<Request, Response>;
    const naming = { keyPrefix: "", limiterPrefix: "", prefix: "", name, spec: undefined };
    return { limiter: first.limiterWithDefaults, limits, log: logOf(first), options, naming };
  }
  const requestLimits = second as RequestLimits<Request>;
  const { name, prefix = "" } = third;
  const isClient = !(first instanceof Limiter);
  // A prefix in place of a name is no prefix of the limiter: it follows the "ip:" of keys by
  // address.
  const limiterPrefix = isClient && name !== undefined ? prefix : "";
  const limiter = isClient ? new Limiter(first, { ...third, prefix: limiterPrefix }) : first;
  const keyPrefix = name === undefined || isClient ? "" : prefix;
  const naming = { keyPrefix, limiterPrefix, name, prefix };
  const common = { limiter, log: limiter.log, options: third };
  if (typeof requestLimits === "function") {
    return { ...common, limits: requestLimits, naming: { ...naming, spec: undefined } };
  }
  const limits = limitsOf(requestLimits);
  if (name === undefined) return { ...common, limits, naming: { ...naming, spec: specOf(limits) } };
  const bound = limiter.limit(keyPrefix + name, limits);
  // The bound limit is part of the result, so that its name stays in use.
  return {
    ...common,
    limiter: bound.limiterWithDefaults,
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
