/**
 * Limits for Fastify: `app.addHook("onRequest", rateLimit(redis, fixed(100, "1m")))` for all
 * routes, or `{ onRequest: rateLimit(...) }` for one.
 */

import type { FastifyReply, FastifyRequest } from "fastify";

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
 * Behind a proxy, set Fastify's `trustProxy`: addresses come from `request.ip`. A bound limit can
 * replace client and limits: `rateLimit(limiter.limit("api", limit))`.
 */
export function rateLimit(
  ...args: GateWords<FastifyRequest, FastifyReply>
): ((request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply | undefined>) & Keys {
  const { decide, keyOf } = gate(args);
  const hook = async (request: FastifyRequest, reply: FastifyReply) => {
    const answer = await decide(request);
    if (answer) reply.headers(answer.headers);
    if (answer?.refund) reply.raw.once("close", () => void answer.refund!(reply));
    if (!answer?.denial) return undefined;
    const { status, type, body } = answer.denial;
    return reply.code(status).type(type).send(body);
  };
  return Object.assign(hook, { keyOf });
}
