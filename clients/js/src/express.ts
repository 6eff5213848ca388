/** Limits for Express: `app.use(rateLimit(redis, fixed(100, "1m")))`. */

import type { Request, RequestHandler, Response } from "express";

import { gate, type GateWords, type Keys } from "./http.js";

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
 * Behind a proxy, set Express's "trust proxy": addresses come from `request.ip`. A bound limit can
 * replace client and limits: `rateLimit(limiter.limit("api", limit))`.
 */
export function rateLimit(...args: GateWords<Request, Response>): RequestHandler & Keys {
  const { decide, keyOf } = gate(args);
  const handler: RequestHandler = (request, response, next) => {
    decide(request).then((answer) => {
      if (answer) response.set(answer.headers);
      if (answer?.refund) response.once("close", () => void answer.refund!(response));
      if (!answer?.denial) return next();
      const { status, type, body } = answer.denial;
      response.status(status).type(type).send(body);
    }, next);
  };
  return Object.assign(handler, { keyOf });
}
