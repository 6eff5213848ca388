/** Limits for Koa: `app.use(rateLimit(limiter.limit("api", fixed(100, "1m"))))`. */

import type { Context, Middleware, Response } from "koa";

import { gateFor, type GateWords, type Keys } from "./http.js";

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
 * Denies requests with 429, or 503 if the limits cannot be checked and `onOutage` is "closed".
 * Behind a proxy, set Koa's `app.proxy`: addresses come from `context.ip`. A client or a limiter,
 * with limits, can replace the bound limit.
 */
export function rateLimit(...args: GateWords<Context, Response>): Middleware & Keys {
  const { decide, keyOf } = gateFor(({ ip }: Context) => ip, args);
  const middleware: Middleware = async (context, next) => {
    const answer = await decide(context);
    if (answer) context.set(answer.headers);
    if (answer?.refund) context.res.once("close", () => void answer.refund!(context.response));
    if (!answer?.denial) return next();
    const { status, type, body } = answer.denial;
    context.status = status;
    context.type = type;
    context.body = body;
  };
  return Object.assign(middleware, { keyOf });
}
