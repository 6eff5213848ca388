/** Limits for Koa: `app.use(rateLimit(limiter.limit("api", fixed(100, "1m"))))`. */

import type { Context, Middleware } from "koa";

import { gateFor, type GateWords } from "./http.js";

export { network } from "./address.js";
export {
  decisionFor,
  type GateWords,
  type RateLimitOptions,
  type RequestLimits,
  type RequestOptions,
} from "./http.js";

/**
 * Denies requests with 429, or 503 if the limits cannot be checked and `onOutage` is "closed". Behind
 * a proxy, set Koa's `app.proxy`: addresses are what `context.ip` says. In place of a bound limit there
 * can be a client or a limiter, with limits.
 */
export function rateLimit(...words: GateWords<Context>): Middleware {
  const decide = gateFor(({ ip }: Context) => ip, words);
  return async (context, next) => {
    const answer = await decide(context);
    if (answer) context.set(answer.headers);
    if (!answer?.denial) return next();
    const { status, type, body } = answer.denial;
    context.status = status;
    context.type = type;
    context.body = JSON.stringify(body);
  };
}
