// All entry points by require, and beside them by import: both are one copy.
const assert = require("node:assert/strict");
const { exports: entries } = require("redis-ratelimit-client/package.json");

async function main() {
  const paths = Object.keys(entries).filter((path) => !path.endsWith(".json"));
  for (const path of paths) {
    const name = `redis-ratelimit-client${path.slice(1)}`;
    const [required, imported] = [require(name), await import(name)];
    assert.ok(Object.keys(required).length > 0, name);
    for (const [what, value] of Object.entries(required)) assert.equal(imported[what], value, what);
  }
  const { Limiter, fixed } = require("redis-ratelimit-client");
  const limiter = new Limiter({ sendCommand: async () => [1, 5, 4, 0, 60000] });
  const { allowed, remaining } = await limiter.take("user:42", fixed(5, "1m"));
  console.log(process.version, paths.length, allowed, remaining);
}

main();
