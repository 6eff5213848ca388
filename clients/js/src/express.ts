/** Limits for Express: `app.use(rateLimit(redis, fixed(100, "1m")))`. */

import type { Request, RequestHandler } from "express";

import type { Client } from "./clients.js";
import { gate, type RateLimitOptions, type RequestLimits } from "./http.js";
import type { Limiter } from "./limiter.js";

export { network } from "./address.js";
export { decisionFor, type RateLimitOptions, type RequestLimits } from "./http.js";

/**
 * Denies requests with 429, or 503 if the limits cannot be checked and `onOutage` is "closed".
 * Behind a proxy, set Express's "trust proxy": addresses are what `request.ip` says. With a limiter
 * in place of a client, its options hold.
 */
export function rateLimit(
  client: Client | Limiter,
  limits: RequestLimits<Request>,
  options: RateLimitOptions<Request> = {},
): RequestHandler {
  const decide = gate(client, limits, options);
  return (request, response, next) => {
    decide(request).then((answer) => {
      if (answer) response.set(answer.headers);
      if (!answer?.denial) return next();
      const { status, type, body } = answer.denial;
      response.status(status).type(type).send(JSON.stringify(body));
    }, next);
  };
}
