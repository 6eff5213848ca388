/**
 * What a `take` costs beside the raw call of the same words: CPU time of this process, with a stub
 * in place of the server, turn by turn; and what a denial costs that is remembered.
 *
 * `--check` fails above the budgets: ratios, which a slow machine leaves as they are.
 */

import { fork } from "node:child_process";
import { once } from "node:events";

import { Redis } from "ioredis";
import { createClient } from "redis";
import { Limiter, fixed } from "redis-ratelimit-client";

const CALLS = Number(process.env.CALLS ?? 20_000);
const ROUNDS = Number(process.env.ROUNDS ?? 7);
const AT_ONCE = 50;

/** At most so many times the raw call. Measured: 1.6 to 1.7, 1.2 to 1.3, and 0.2. */
const BUDGETS = {
  ioredis: { take: 2.4, bound: 2.4, denied: 0.5 },
  "node-redis": { take: 1.8, bound: 1.8, denied: 0.3 },
};

async function stubFor(...words) {
  const stub = fork(new URL("stub.mjs", import.meta.url), words, { stdio: "inherit" });
  return (await once(stub, "message"))[0];
}

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
const WORDS = ["FIXED", "100", "1m"];
const [admits, denies] = [await stubFor(), await stubFor("deny")];
const clientsAt = {
  ioredis: async (port) => new Redis(port, "127.0.0.1"),
  "node-redis": async (port) => createClient({ url: `redis://127.0.0.1:${port}` }).connect(),
};
const rawOf = {
  ioredis: (client) => (key) => client.call("RL.TAKE", key, ...WORDS),
  "node-redis": (client) => (key) => client.sendCommand(["RL.TAKE", key, ...WORDS]),
};

let isOver = false;
for (const [name, open] of Object.entries(clientsAt)) {
  const client = await open(admits);
  const limiter = new Limiter(client);
  const api = limiter.limit("api", LIMIT);
  const denying = new Limiter(await open(denies));
  const calls = {
    raw: rawOf[name](client),
    take: (key) => limiter.take(key, LIMIT),
    bound: (key) => api.take(key),
    denied: (key) => denying.take(key, LIMIT),
  };
  const least = {};
  // The first round warms up.
  for (let round = -1; round < ROUNDS; round++) {
    for (const [which, call] of Object.entries(calls)) {
      const us = await cost(call);
      if (round >= 0) least[which] = Math.min(us, least[which] ?? Infinity);
    }
  }
  for (const [which, us] of Object.entries(least)) {
    const ratio = us / least.raw;
    const budget = BUDGETS[name][which] ?? 1;
    const more = (us - least.raw).toFixed(1);
    console.log(
      `${name}, ${which}: ${us.toFixed(1)} us, ${ratio.toFixed(2)} x raw, ${more} us more`,
    );
    if (ratio > budget) {
      isOver = true;
      console.log(`more than ${budget} x raw`);
    }
  }
}
process.exit(isOver && process.argv.includes("--check") ? 1 : 0);
