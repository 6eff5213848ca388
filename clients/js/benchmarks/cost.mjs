/**
 * What a `take` costs beside the raw call of the same words: CPU time of this process, with a stub
 * in place of the server, both turn by turn.
 *
 * `--check` fails above the budgets.
 */

import { fork } from "node:child_process";
import { once } from "node:events";

import { Redis } from "ioredis";
import { createClient } from "redis";
import { Limiter, fixed } from "redis-ratelimit-client";

const CALLS = Number(process.env.CALLS ?? 20_000);
const ROUNDS = Number(process.env.ROUNDS ?? 7);
const AT_ONCE = 50;

const stub = fork(new URL("stub.mjs", import.meta.url), { stdio: "inherit" });
const [port] = await once(stub, "message");

/** Microseconds of CPU for one call, with so many on their way. */
async function cost(call) {
  let begun = 0;
  const one = async () => {
    while (begun < CALLS) await call(`user:${begun++ % 1000}`);
  };
  const before = process.cpuUsage();
  await Promise.all(Array.from({ length: AT_ONCE }, one));
  const { user, system } = process.cpuUsage(before);
  return (user + system) / CALLS;
}

const LIMIT = fixed(100, "1m");
const ioredis = new Redis(port, "127.0.0.1");
const nodeRedis = await createClient({ url: `redis://127.0.0.1:${port}` }).connect();
const raw = {
  ioredis: (key) => ioredis.call("RL.TAKE", key, "FIXED", "100", "1m"),
  "node-redis": (key) => nodeRedis.sendCommand(["RL.TAKE", key, "FIXED", "100", "1m"]),
};
for (const [name, client] of Object.entries({ ioredis, "node-redis": nodeRedis })) {
  const limiter = new Limiter(client);
  const calls = { raw: raw[name], take: (key) => limiter.take(key, LIMIT) };
  if (limiter.limit) {
    const api = limiter.limit("api", LIMIT);
    calls.bound = (key) => api.take(key);
  }
  const times = Object.fromEntries(Object.keys(calls).map((which) => [which, []]));
  for (let round = -1; round < ROUNDS; round++) {
    for (const [which, call] of Object.entries(calls)) {
      const us = await cost(call);
      if (round >= 0) times[which].push(us);
    }
  }
  for (const [which, all] of Object.entries(times)) {
    const least = Math.min(...all);
    const ratio = least / Math.min(...times.raw);
    const more = least - Math.min(...times.raw);
    console.log(
      `${name}: ${which} ${least.toFixed(1)} us, ${ratio.toFixed(2)} x raw, ${more.toFixed(1)} us more`,
    );
  }
}
process.exit();
