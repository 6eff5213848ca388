/**
 * Store for @fastify/rate-limit: `app.register(rateLimit, { max: 100, timeWindow: "1m", store:
 * storeFor(redis) })`.
 */

import type { Client } from "./clients.js";
import { Limiter } from "./limiter.js";
import { fixed } from "./limits.js";
import type { LimiterOptions } from "./options.js";

type Callback = (error: Error | null, hits?: { current: number; ttl: number }) => void;

/** Part of the plugin's parameters that is used here. */
interface Parameters {
  readonly routeInfo?: { readonly method?: string | readonly string[]; readonly url?: string };
}

interface Store {
  incr(key: string, callback: Callback, timeWindow: number, max: number): void;
  read(key: string, callback: Callback, timeWindow: number, max: number): void;
  child(parameters: object): Store;
}

/**
 * Returns the class of a store. A denied request is reported as one hit above the limit, and is not
 * charged. By default an outage is an error, and the plugin's `skipOnError` decides about the
 * request; `onOutage` changes this. A route with its own limit has its own keys. `prefix` is
 * "fastify:" by default; the other options are the limiter's. The plugin's `ban`,
 * `continueExceeding` and `exponentialBackoff` have no effect.
 */
export function storeFor(
  client: Client,
  { prefix = "fastify:", ...options }: LimiterOptions = {},
): new (parameters: object) => Store {
  const limiter = new Limiter(client, { onOutage: "raise", ...options, prefix });

  return class RateLimitStore implements Store {
    readonly #route: string;

    constructor(parameters: object) {
      const { method, url } = (parameters as Parameters).routeInfo ?? {};
      this.#route = url === undefined ? "" : `${[method ?? ""].flat().join(",")}${url}:`;
    }

    incr(key: string, callback: Callback, timeWindow: number, max: number): void {
      const call = limiter.take(this.#route + key, fixed(max, `${timeWindow}ms`));
      call.then(
        ({ allowed, remaining, resetMs, waitMs }) => {
          const current = allowed ? max - (remaining ?? max) : max + 1;
          callback(null, { current, ttl: (allowed ? resetMs : waitMs) ?? timeWindow });
        },
        (error: Error) => callback(error),
      );
    }

    read(key: string, callback: Callback, timeWindow: number, max: number): void {
      const call = limiter.peek(this.#route + key, fixed(max, `${timeWindow}ms`));
      call.then(
        ({ remaining, resetMs }) =>
          callback(null, { current: max - (remaining ?? max), ttl: resetMs ?? 0 }),
        (error: Error) => callback(error),
      );
    }

    child(parameters: object): Store {
      return new RateLimitStore(parameters);
    }
  };
}
