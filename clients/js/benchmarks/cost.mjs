/**
 * CPU time of a `take` compared with the raw call of the same words, with a stub in place of the
 * server, and of a remembered denial, in microseconds of this process.
 *
 * `--check` counts executed blocks of JavaScript instead, and fails above the budgets. A block is a
 * function, the body of a loop or a branch, also of the client library and of Node.js. The count
 * varies by less than 1 % from run to run, however busy the machine is.
 */

import { fork } from "node:child_process";
import { once } from "node:events";
import { Session } from "node:inspector";
import { setFlagsFromString } from "node:v8";

const counts = process.argv.includes("--check");
const CALLS = Number(process.env.CALLS ?? (counts ? 1000 : 20_000));
const ROUNDS = Number(process.env.ROUNDS ?? (counts ? 3 : 7));
const AT_ONCE = 50;

/**
 * Budgets of blocks beyond those of the raw call; for a denial, of all blocks. Measured on Node.js
 * 20 and 22: 53 to 58, 56 to 61, and 27; fewer on 24.
 */
const BUDGETS = { take: 64, bound: 68, denied: 30 };

const measure = counts ? blocksRun() : microsecondsOfCpu();
// Only code that is loaded after counting has begun is counted.
const { Redis } = await import("ioredis");
const { createClient } = await import("redis");
const { Limiter, fixed } = await import("redis-ratelimit-client");

function microsecondsOfCpu() {
  let before;
  return {
    unit: "us",
    begin: () => (before = process.cpuUsage()),
    end: () => {
      const { user, system } = process.cpuUsage(before);
      return user + system;
    },
  };
}

function blocksRun() {
  // Optimized code runs functions within others, and those are not counted.
  setFlagsFromString("--no-opt");
  const session = new Session();
  session.connect();
  // The session replies before post() returns.
  const post = (method, params) => {
    let answer;
    session.post(method, params, (error, result) => (answer = error ?? result));
    if (answer instanceof Error) throw answer;
    return answer;
  };
  post("Profiler.enable");
  post("Profiler.startPreciseCoverage", { callCount: true, detailed: true });
  // Returns the number of blocks executed since the last call.
  const blocks = () => {
    let sum = 0;
    for (const { functions } of post("Profiler.takePreciseCoverage").result)
      for (const { ranges } of functions) for (const { count } of ranges) sum += count;
    return sum;
  };
  return { unit: "blocks", begin: blocks, end: blocks };
}

async function stubFor(...words) {
  const stub = fork(new URL("stub.mjs", import.meta.url), words, { stdio: "inherit" });
  return (await once(stub, "message"))[0];
}

/** Returns the cost of one call, with a number of calls in flight. */
async function cost(call) {
  let begun = 0;
  const one = async () => {
    while (begun < CALLS) await call(`user:${begun++ % 1000}`);
  };
  measure.begin();
  await Promise.all(Array.from({ length: AT_ONCE }, one));
  return measure.end() / CALLS;
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
      const found = await cost(call);
      if (round >= 0) least[which] = Math.min(found, least[which] ?? Infinity);
    }
  }
  for (const [which, found] of Object.entries(least)) {
    const ratio = found / least.raw;
    const more = found - least.raw;
    console.log(
      `${name}, ${which}: ${found.toFixed(1)} ${measure.unit}, ${ratio.toFixed(2)} x raw, ` +
        `${more.toFixed(1)} ${measure.unit} more`,
    );
    const charged = which === "denied" ? found : more;
    if (counts && charged > (BUDGETS[which] ?? 0)) {
      isOver = true;
      console.log(`above the budget of ${BUDGETS[which]} blocks`);
    }
  }
}
process.exit(isOver ? 1 : 0);
