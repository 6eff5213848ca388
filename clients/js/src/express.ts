/** Limits for Express: `app.use(rateLimit(redis, fixed(100, "1m")))`. */

import type { Request, RequestHandler } from "express";

import { gate, type GateWords } from "./http.js";

export { network } from "./address.js";
export {
  decisionFor,
  type GateWords,
  type RateLimitOptions,
  type RequestLimits,
  type RequestOptions,
} from "./http.js";

/**
 * Denies requests with 429, or 503 if the limits cannot be checked and `onOutage` is "closed".
 * Behind a proxy, set Express's "trust proxy": addresses are what `request.ip` says. In
 * place of a client and limits there can be a bound limit: `rateLimit(limiter.limit("api", limit))`.
 */
export function rateLimit(...words: GateWords<Request>): RequestHandler {
  const decide = gate(...words);
  return (request, response, next) => {
    decide(request).then((answer) => {
      if (answer) response.set(answer.headers);
      if (!answer?.denial) return next();
      const { status, type, body } = answer.denial;
      response.status(status).type(type).send(JSON.stringify(body));
    }, next);
  };
}
