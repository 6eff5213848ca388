// iovalkey, as docs/clients.md shows it; tests/support/libraries.py describes the questions.

import { mode, port, serve } from "./serve.js";

// [one server]
import { Redis } from "iovalkey";
// [end]

// [cluster]
import { Cluster, Command } from "iovalkey";

// A command that names its keys.
class Limit extends Command {
  constructor(keys, name, ...words) {
    super(name, words);
    this.getKeys = () => keys;
  }
}
// [end]

function connect() {
  // [cluster]
  const cluster = new Cluster([{ host: "127.0.0.1", port }]);
  // [end]
  return cluster;
}

function connectWithoutResends() {
  // [never twice]
  const cluster = new Cluster([{ host: "127.0.0.1", port }], {
    redisOptions: { autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 },
    retryDelayOnFailover: 0,
  });
  // [end]
  return cluster;
}

if (mode === "server") {
  // [one server]

  const redis = new Redis({ port });
  const [allowed, limit, remaining, waitMs, resetMs] = await redis.call("RL.FIXED", "user:42", 100, "1m");
  // [end]
  redis.on("error", () => {});
  await serve({
    first: () => [allowed, limit, remaining, waitMs, resetMs],
    call: (...words) => redis.call(...words),
  });
} else if (mode === "server-no-resends") {
  const redis = new Redis({ port, autoResendUnfulfilledCommands: false, maxRetriesPerRequest: 0 });
  redis.on("error", () => {});
  await serve({ call: (...words) => redis.call(...words) });
} else if (mode === "replicas") {
  // [replicas]
  const cluster = new Cluster([{ host: "127.0.0.1", port }], { scaleReads: "slave" });
  // [end]
  cluster.on("error", () => {});
  await serve({
    peek: async (key) => {
      // [replicas]
      const peek = new Limit([key], "RL.PEEK", key, "FIXED", 100, "1m");
      peek.isReadOnly = true;
      const reply = await cluster.sendCommand(peek);
      // [end]
      return reply;
    },
  });
} else {
  const cluster = mode === "cluster" ? connect() : connectWithoutResends();
  cluster.on("error", () => {});
  await serve({
    plain: (...words) => cluster.call(...words),
    one: async (key) => {
      // [cluster]
      const reply = await cluster.sendCommand(new Limit([key], "RL.FIXED", key, 100, "1m"));
      // [end]
      return reply;
    },
    several: async (tag) => {
      // [cluster]
      const keys = [`{${tag}}:minute`, `{${tag}}:day`];
      const words = ["FIXED", 100, "1m", "FIXED", 5000, "1d"];
      const reply = await cluster.sendCommand(new Limit(keys, "RL.MTAKE", 2, ...keys, ...words));
      // [end]
      return reply;
    },
    "plain-pipeline": async (...keys) => {
      const pipeline = cluster.pipeline();
      for (const key of keys) pipeline.call("RL.FIXED", key, 100, "1m");
      return results(await pipeline.exec());
    },
    pipeline: async (...keys) => {
      // [cluster]
      const pipeline = cluster.pipeline();
      for (const key of keys) pipeline.sendCommand(new Limit([key], "RL.FIXED", key, 100, "1m"));
      const replies = await pipeline.exec();
      // [end]
      return results(replies);
    },
  });
}

// Returns the error or the reply of each call, from the pairs of both that the library returns.
function results(pairs) {
  return pairs.map(([error, reply]) => error ?? reply);
}
