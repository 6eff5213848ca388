/** Limits for Hono: `app.use(rateLimit(limiter.limit("api", fixed(100, "1m"))))`. */

import type { Context, MiddlewareHandler } from "hono";

import { gateFor, type GateWords, type Keys } from "./http.js";
import { denied } from "./web.js";

export { network } from "./address.js";
export {
  decisionFor,
  type Denied,
  type GateWords,
  type Keys,
  type RateLimitOptions,
  type RequestLimits,
  type RequestOptions,
} from "./http.js";
export { UNLIMITED } from "./request-keys.js";

/**
 * Denies requests with 429, or 503 if the limits cannot be checked and `onOutage` is "closed". By
 * default the limit is by the address of the connection, as @hono/node-server knows it. Elsewhere,
 * and behind a proxy, `key` or `address` must identify the client. A client or a limiter, with
 * limits, can replace the bound limit.
 */
export function rateLimit(...args: GateWords<Context, Response>): MiddlewareHandler & Keys {
  const { decide, keyOf } = gateFor(addressOf, args);
  const handler: MiddlewareHandler = async (context, next) => {
    const answer = await decide(context);
    if (answer?.denial) return denied(answer.denial, answer.headers);
    await next();
    for (const [name, value] of Object.entries(answer?.headers ?? {})) {
      // Keeps the fields of an inner limiter or a DeniedError: the client must see the inner limit.
      if (!context.res.headers.has(name)) context.header(name, value);
    }
    await answer?.refund?.(context.res);
    return undefined;
  };
  return Object.assign(handler, { keyOf });
}

/** Part of the environment of @hono/node-server that is used here. */
interface NodeServer {
  readonly incoming?: { readonly socket?: { readonly remoteAddress?: string } };
}

function addressOf({ env }: Context): string | null | undefined {
  const { incoming } = (env ?? {}) as NodeServer;
  return incoming ? incoming.socket?.remoteAddress : null;
}
