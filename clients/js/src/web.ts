/**
 * Limits for handlers of web requests, for Next.js, Deno, Bun and workers: `export const GET =
 * rateLimit(api, { key })(handler)`.
 */

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

export type Handler<Rest extends unknown[]> = (
  request: Request,
  ...rest: Rest
) => Response | Promise<Response>;

/**
 * Wraps a handler: requests are denied with 429, or with 503 if the limits cannot be checked and
 * `onOutage` is "closed". A web request does not contain the client's address, so `key` or
 * `address` is needed.
 */
export function rateLimit(
  ...args: GateWords<Request, Response>
): (<Rest extends unknown[]>(handler: Handler<Rest>) => Handler<Rest>) & Keys {
  const { decide, keyOf } = gateFor((_: Request) => null, args);
  const limited =
    <Rest extends unknown[]>(handler: Handler<Rest>): Handler<Rest> =>
    async (request, ...rest) => {
      const answer = await decide(request);
      if (!answer) return handler(request, ...rest);
      if (answer.denial) return denied(answer.denial, answer.headers);
      let response: Response | undefined;
      try {
        response = await handler(request, ...rest);
      } finally {
        // A handler that throws becomes a response with 500.
        await answer.refund?.(response ?? new Response(null, { status: 500 }));
      }
      return withFields(response, answer.headers);
    };
  return Object.assign(limited, { keyOf });
}

/** Returns the response to a denied request. */
export function denied(
  { status, type, body }: { status: number; type: string; body: string | object },
  headers: Record<string, string>,
): Response {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  return new Response(text, { status, headers: { ...headers, "Content-Type": type } });
}

/**
 * Adds header fields that the response does not have. Copies it, as the headers of some responses
 * are immutable.
 */
function withFields(response: Response, fields: Record<string, string>): Response {
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(fields)) {
    if (!headers.has(name)) headers.set(name, value);
  }
  const { status, statusText } = response;
  return new Response(response.body, { status, statusText, headers });
}
