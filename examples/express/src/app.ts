/** An API with the limits of a real one. */

import express, { type Express, type Request } from "express";
import { network, sliding, tokenBucket } from "redis-ratelimit-client";

import type { Policy } from "./limits.js";
import { rateLimiter, type Options } from "./rate-limiter.js";

/** From the widest to the narrowest. Those of a tenant are charged together, by one call. */
export const POLICIES: readonly Policy[] = [
  // All tenants share it, so it cannot be in the slot of each: a thousand units are taken at a time.
  {
    name: "service",
    limit: tokenBucket(1_000_000, 1_000_000, 1),
    of: () => "all",
    apart: { batch: 1000 },
    hidden: true,
  },
  { name: "tenant", limit: tokenBucket(20_000, 20_000, 1), of: () => "all", hidden: true },
  {
    name: "endpoint",
    limit: tokenBucket(10_000, 10_000, 1),
    of: ({ endpoint }) => endpoint,
    hidden: true,
  },
  { name: "user", limit: tokenBucket(200, 100, 60), of: ({ user }) => user },
  { name: "ip", limit: sliding(50, 60), of: ({ address }) => address },
];

/** Stands in for sessions, or for tokens that somebody signed. */
const TOKENS = new Map([
  ["alice-token", { tenant: "acme", user: "alice" }],
  ["bob-token", { tenant: "acme", user: "bob" }],
  ["carol-token", { tenant: "globex", user: "carol" }],
]);

function authenticated(request: Request): { tenant: string; user: string } | undefined {
  return TOKENS.get(request.get("authorization")?.replace(/^Bearer /, "") ?? "");
}

/**
 * Only what was proved counts as a user: a name that anybody can put into a header is a new limit
 * for every name. Everybody else is known by the address only, which then is the tenant as well.
 */
export function identify(request: Request) {
  const address = network(request.ip) ?? "unknown";
  return { address, ...(authenticated(request) ?? { tenant: `ip ${address}` }) };
}

export type AppOptions = Pick<Options, "redis"> &
  Partial<Options> & { trustProxy?: false | number | string[] };

export function createApp({ trustProxy = false, ...options }: AppOptions): Express {
  const app = express();
  app.disable("x-powered-by");
  app.set("trust proxy", trustProxy);

  const limit = rateLimiter({ policies: POLICIES, identify, ...options });

  // Limits come before the check of who it is, so that guessing tokens is limited as well.
  app.get("/hello", limit({ endpoint: "hello" }), (request, response) => {
    response.json({ hello: authenticated(request)?.user ?? "stranger" });
  });
  app.get("/report", limit({ endpoint: "report", cost: 10 }), (request, response) => {
    if (authenticated(request)) response.json({ report: "a big one" });
    else response.status(401).json({ error: "who are you?" });
  });
  // Not limited: whoever watches over this process must get through.
  app.get("/health", (_request, response) => {
    response.json({ healthy: true });
  });
  return app;
}
