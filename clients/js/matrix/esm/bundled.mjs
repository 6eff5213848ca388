import { Limiter, fixed } from "redis-ratelimit-client";

const limiter = new Limiter({ sendCommand: async () => [1, 5, 4, 0, 60000] });
limiter.take("user:42", fixed(5, "1m")).then(({ allowed, remaining }) => {
  if (!allowed || remaining !== 4) process.exitCode = 1;
});
