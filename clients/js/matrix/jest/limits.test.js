const { Limiter, fixed } = require("redis-ratelimit-client");
const { rateLimit } = require("redis-ratelimit-client/express");

test("a limit decides and a middleware is made", async () => {
  const limiter = new Limiter({ sendCommand: async () => [1, 5, 4, 0, 60000] });
  expect(await limiter.take("user:42", fixed(5, "1m"))).toMatchObject({
    allowed: true,
    remaining: 4,
  });
  expect(typeof rateLimit(limiter, fixed(5, "1m"))).toBe("function");
});
