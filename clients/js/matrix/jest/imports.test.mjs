import { Limiter, fixed } from "redis-ratelimit-client";
import { RateLimitStore } from "redis-ratelimit-client/express-rate-limit";

test("an ES module imports the package", async () => {
  const limiter = new Limiter({ sendCommand: async () => [1, 5, 4, 0, 60000] });
  expect((await limiter.take("user:42", fixed(5, "1m"))).remaining).toBe(4);
  expect(new RateLimitStore({ sendCommand: async () => [] }).localKeys).toBe(false);
});
