// Compiled under each way of finding modules that TypeScript has.
import { Cluster, Redis } from "ioredis";
import { Limiter, fixed, type Decision } from "redis-ratelimit-client";
import { rateLimit } from "redis-ratelimit-client/express";
import { RateLimitStore } from "redis-ratelimit-client/express-rate-limit";
import { rateLimit as hook } from "redis-ratelimit-client/fastify";
import { addCommands } from "redis-ratelimit-client/ioredis";
import { rl } from "redis-ratelimit-client/node-redis";

export async function decide(redis: Redis): Promise<number> {
  const decision: Decision = await new Limiter(redis).take("user:42", fixed(5, "1m"));
  const { remaining } = await addCommands(redis).rlTake("user:42", fixed(5, "1m"));
  return (decision.remaining ?? 0) + (remaining ?? 0);
}

export const all = (cluster: Cluster) => [
  rateLimit(cluster, fixed(5, "1m"), { key: (request) => request.get("x-user") }),
  hook(cluster, fixed(5, "1m"), { key: (request) => request.ip }),
  new RateLimitStore(cluster),
  rl.take,
];

// @ts-expect-error: types are there, and not any.
fixed("many", 5);
