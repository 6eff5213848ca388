/** API with several limits. */

import express, { type Express, type Request } from "express";
import { network, sliding, tokenBucket } from "redis-ratelimit-client";

import type { Policy } from "./limits.js";
import { rateLimiter, type Options } from "./rate-limiter.js";

/** Limits from the widest to the narrowest. One call charges all limits of a tenant. */
export const POLICIES: readonly Policy[] = [
  // Shared by all tenants, so it is in no tenant's slot. Units are taken in batches of at most 1000.
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

/** Placeholder for sessions or signed tokens. */
const TOKENS = new Map([
  ["alice-token", { tenant: "acme", user: "alice" }],
  ["bob-token", { tenant: "acme", user: "bob" }],
  ["carol-token", { tenant: "globex", user: "carol" }],
]);

function authenticated(request: Request): { tenant: string; user: string } | undefined {
  return TOKENS.get(request.get("authorization")?.replace(/^Bearer /, "") ?? "");
}

/**
 * Identifies the caller. Only authenticated names are users, because a client could invent names.
 * Other callers are identified by their address, which is also their tenant.
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

  // Limits come before authentication, so that guessing tokens is limited as well.
  app.get("/hello", limit({ endpoint: "hello" }), (request, response) => {
    response.json({ hello: authenticated(request)?.user ?? "stranger" });
  });
  app.get("/report", limit({ endpoint: "report", cost: 10 }), (request, response) => {
    if (authenticated(request)) response.json({ report: "a big one" });
    else response.status(401).json({ error: "who are you?" });
  });
  // Not limited, for health checks.
  app.get("/health", (_request, response) => {
    response.json({ healthy: true });
  });
  return app;
}
