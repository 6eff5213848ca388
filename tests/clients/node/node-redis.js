// node-redis, as docs/clients.md shows it; tests/support/libraries.py describes the questions.

import { mode, port, serve } from "./serve.js";

// [one server]
import { createClient } from "redis";
// [end]

// [cluster]
import { createCluster } from "redis";
// [end]

const url = `redis://127.0.0.1:${port}`;

if (mode === "server") {
  // [one server]

  const redis = createClient({ url });
  redis.on("error", console.error); // without it, a connection that is lost ends the process
  await redis.connect();
  const [allowed, limit, remaining, waitMs, resetMs] =
    await redis.sendCommand(["RL.FIXED", "user:42", "100", "1m"]);
  // [end]
  await serve({
    first: () => [allowed, limit, remaining, waitMs, resetMs],
    call: (...words) => redis.sendCommand(words),
  });
} else if (mode === "replicas") {
  // [replicas]
  const cluster = createCluster({ rootNodes: [{ url }], useReplicas: true });
  // [end]
  cluster.on("error", console.error);
  await cluster.connect();
  await serve({
    peek: async (key) => {
      // [replicas]
      const reply = await cluster.sendCommand(key, true, ["RL.PEEK", key, "FIXED", "100", "1m"]);
      // [end]
      return reply;
    },
  });
} else {
  // [cluster]

  const cluster = createCluster({ rootNodes: [{ url }] });
  cluster.on("error", console.error);
  await cluster.connect();
  // [end]
  await serve({
    one: async (key) => {
      // [cluster]
      const reply = await cluster.sendCommand(key, false, ["RL.FIXED", key, "100", "1m"]);
      // [end]
      return reply;
    },
    several: async (tag) => {
      // [cluster]
      const keys = [`{${tag}}:minute`, `{${tag}}:day`];
      const words = ["FIXED", "100", "1m", "FIXED", "5000", "1d"];
      const reply = await cluster.sendCommand(keys[0], false, ["RL.MTAKE", "2", ...keys, ...words]);
      // [end]
      return reply;
    },
    pipeline: async (...keys) => {
      // [cluster]
      const pipeline = cluster.multi();
      for (const key of keys) pipeline.addCommand(key, false, ["RL.FIXED", key, "100", "1m"]);
      const replies = await pipeline.execAsPipeline();
      // [end]
      return replies;
    },
  });
}
