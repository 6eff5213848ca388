/**
 * Limits for handlers of web requests, as of Next.js, Deno, Bun and workers:
 * `export const GET = rateLimit(api, { key })(handler)`.
 */

import { gateFor, type GateWords } from "./http.js";

export {
  decisionFor,
  type GateWords,
  type RateLimitOptions,
  type RequestLimits,
  type RequestOptions,
} from "./http.js";

export type Handler<Rest extends unknown[]> = (
  request: Request,
  ...rest: Rest
) => Response | Promise<Response>;

/**
 * Makes a handler of a handler: requests are denied with 429, or with 503 if the limits cannot be checked
 * and `onOutage` is "closed". A web request does not say where it is from, so `key` is needed.
 */
export function rateLimit(
  ...words: GateWords<Request>
): <Rest extends unknown[]>(handler: Handler<Rest>) => Handler<Rest> {
  const decide = gateFor((): string => {
    throw new TypeError("a web request has no address: say by key whose limit it has");
  }, words);
  return (handler) =>
    async (request, ...rest) => {
      const answer = await decide(request);
      if (!answer) return handler(request, ...rest);
      if (answer.denial) return denied(answer.denial, answer.headers);
      return told(await handler(request, ...rest), answer.headers);
    };
}

/** The response to a request that is denied. */
export function denied(
  { status, type, body }: { status: number; type: string; body: object },
  headers: Record<string, string>,
): Response {
  return new Response(JSON.stringify(body), {
    status,
    headers: { ...headers, "Content-Type": type },
  });
}

/** With header fields that it does not have yet. The headers of some responses cannot be changed. */
function told(response: Response, fields: Record<string, string>): Response {
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(fields)) {
    if (!headers.has(name)) headers.set(name, value);
  }
  const { status, statusText } = response;
  return new Response(response.body, { status, statusText, headers });
}
