/**
 * Limits for Fastify: `app.addHook("onRequest", rateLimit(redis, fixed(100, "1m")))` for all routes,
 * or `{ onRequest: rateLimit(...) }` for one.
 */

import type { FastifyReply, FastifyRequest } from "fastify";

import type { Client } from "./clients.js";
import { gate, type RateLimitOptions, type RequestLimits } from "./http.js";
import type { Limiter } from "./limiter.js";

export { network } from "./address.js";
export { decisionFor, type RateLimitOptions, type RequestLimits } from "./http.js";

/**
 * Denies requests with 429, or 503 if the limits cannot be checked and `onOutage` is "closed".
 * Behind a proxy, set Fastify's `trustProxy`: addresses are what `request.ip` says. With a limiter
 * in place of a client, its options hold.
 */
export function rateLimit(
  client: Client | Limiter,
  limits: RequestLimits<FastifyRequest>,
  options: RateLimitOptions<FastifyRequest> = {},
): (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply | undefined> {
  const decide = gate(client, limits, options);
  return async (request, reply) => {
    const answer = await decide(request);
    if (answer) reply.headers(answer.headers);
    if (!answer?.denial) return undefined;
    const { status, type, body } = answer.denial;
    return reply.code(status).type(type).send(JSON.stringify(body));
  };
}
