import { Limiter, fixed } from "redis-ratelimit-client";
import { rateLimit } from "redis-ratelimit-client/express";
import { RateLimitStore } from "redis-ratelimit-client/express-rate-limit";
import { rateLimit as hook } from "redis-ratelimit-client/fastify";
import { addCommands } from "redis-ratelimit-client/ioredis";
import { rl } from "redis-ratelimit-client/node-redis";

const limiter = new Limiter({ sendCommand: async () => [1, 5, 4, 0, 60000] });
const { allowed, remaining } = await limiter.take("user:42", fixed(5, "1m"));
const functions = [rateLimit, RateLimitStore, hook, addCommands].map((one) => typeof one);
console.log(process.version, functions.length, typeof rl.take, allowed, remaining);
