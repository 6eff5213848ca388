/** Limits for Hono: `app.use(rateLimit(limiter.limit("api", fixed(100, "1m"))))`. */

import type { Context, MiddlewareHandler } from "hono";

import { gateFor, type GateWords } from "./http.js";
import { denied } from "./web.js";

export { network } from "./address.js";
export {
  decisionFor,
  type GateWords,
  type RateLimitOptions,
  type RequestLimits,
  type RequestOptions,
} from "./http.js";

/**
 * Denies requests with 429, or 503 if the limits cannot be checked and `onOutage` is "closed". By
 * default the address of the connection is limited, as @hono/node-server knows it; elsewhere, and behind
 * a proxy, say by `key` whose limit a request has. In place of a bound limit there can be a client or a
 * limiter, with limits.
 */
export function rateLimit(...words: GateWords<Context>): MiddlewareHandler {
  const decide = gateFor(addressOf, words);
  return async (context, next) => {
    const answer = await decide(context);
    if (answer?.denial) return denied(answer.denial, answer.headers);
    await next();
    for (const [name, value] of Object.entries(answer?.headers ?? {})) context.header(name, value);
    return undefined;
  };
}

interface NodeServer {
  readonly incoming?: { readonly socket?: { readonly remoteAddress?: string } };
}

function addressOf({ env }: Context): string {
  const address = (env as NodeServer | undefined)?.incoming?.socket?.remoteAddress;
  if (address !== undefined) return address;
  throw new TypeError("the address is not known here: say by key whose limit a request has");
}
