/** Starts the application, and a server with the module unless REDIS_URL names one. */

import { once } from "node:events";
import { setTimeout } from "node:timers/promises";

import { trustProxy } from "./address.js";
import { createApp } from "./app.js";
import type { Options } from "./rate-limiter.js";
import { connect } from "./redis.js";
import { Server } from "./server.js";

const { REDIS_URL, TRUST_PROXY, PORT = "3000", PROCESSES = "1", SHADOW, WHEN_AWAY } = process.env;

const ownServer = REDIS_URL === undefined ? await new Server().start() : undefined;
// Several addresses are nodes of a cluster.
const redis = connect(ownServer ? [ownServer.url] : REDIS_URL!.split(","));
// Waits a second at most: without a connection, requests are handled as in an outage.
await Promise.race([once(redis, "ready"), setTimeout(1000)]).catch(() => {});

const app = createApp({
  redis,
  trustProxy: trustProxy(TRUST_PROXY),
  shadow: SHADOW === "yes",
  onOutage: onOutage(WHEN_AWAY),
  report: ({ allowed, source, ...rest }) => {
    // The limiter logs an outage once, so decisions without Redis are not logged here.
    if (!allowed && source === "server") console.log(JSON.stringify({ allowed, ...rest }));
  },
});
const http = app.listen(Number(PORT), (error) => {
  if (error) {
    console.error(`cannot listen on port ${PORT}: ${error.message}`);
    process.exit(1);
  }
  console.log(
    `http://localhost:${PORT} with ${ownServer ? `a server of its own, ${ownServer.url}` : REDIS_URL}`,
  );
});

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.once(signal, () => {
    http.close(() => {
      redis.disconnect();
      void ownServer?.stop();
    });
  });
}

function onOutage(name = "local"): NonNullable<Options["onOutage"]> {
  if (name === "local") return { share: 1 / Number(PROCESSES) };
  if (name === "open" || name === "closed") return name;
  throw new Error(`WHEN_AWAY is ${name}, not local, open or closed`);
}
