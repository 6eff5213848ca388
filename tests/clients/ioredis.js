// Sends the calls that it reads, a line each, to the port that it is given; see tests/support/callers.py.

import { createInterface } from "node:readline/promises";
import { Redis } from "ioredis";

// How often a caller sends a call again that its client has given up.
const MOST_ATTEMPTS = 5;

const redis = new Redis({ host: "127.0.0.1", port: Number(process.argv[2]) });
redis.on("error", () => {}); // A connection that is lost is made anew.

async function send([command, ...words]) {
  for (let attempts = 1; ; attempts++) {
    try {
      return [await redis.call(command, ...words), attempts];
    } catch (error) {
      if (error.name === "ReplyError" || attempts === MOST_ATTEMPTS) throw error;
    }
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [reply, attempts] = await send(line.split(" "));
  console.log(Number(reply[0] === 1), attempts);
}
redis.disconnect();
