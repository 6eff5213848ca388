// valkey-glide for Node.js, as docs/clients.md shows it; tests/support/libraries.py describes the questions.

import { mode, port, serve } from "./serve.js";

// [one server]
import { GlideClient } from "@valkey/valkey-glide";
// [end]

// [cluster]
import { GlideClusterClient } from "@valkey/valkey-glide";
// [end]

import { ClusterBatch } from "@valkey/valkey-glide";

const addresses = [{ host: "127.0.0.1", port }];

if (mode === "server") {
  // [one server]

  const client = await GlideClient.createClient({ addresses });
  const [allowed, limit, remaining, waitMs, resetMs] =
    await client.customCommand(["RL.FIXED", "user:42", "100", "1m"]);
  // [end]
  await serve({
    first: () => [allowed, limit, remaining, waitMs, resetMs],
    call: (...words) => client.customCommand(words),
  });
} else if (mode === "replicas") {
  // [replicas]
  const client = await GlideClusterClient.createClient({ addresses, readFrom: "preferReplica" });
  // [end]
  await serve({
    peek: async (key) => {
      // [replicas]
      const route = { type: "replicaSlotKey", key };
      const reply = await client.customCommand(["RL.PEEK", key, "FIXED", "100", "1m"], { route });
      // [end]
      return reply;
    },
  });
} else {
  // [cluster]

  const client = await GlideClusterClient.createClient({ addresses });
  // [end]
  await serve({
    plain: (...words) => client.customCommand(words),
    one: async (key) => {
      return client.customCommand(["RL.FIXED", key, "100", "1m"]);
    },
    several: async (tag) => {
      // [cluster]
      const keys = [`{${tag}}:minute`, `{${tag}}:day`];
      const words = ["RL.MTAKE", "2", ...keys, "FIXED", "100", "1m", "FIXED", "5000", "1d"];
      const route = { type: "primarySlotKey", key: keys[0] };
      const reply = await client.customCommand(words, { route });
      // [end]
      return reply;
    },
    pipeline: async (...keys) => {
      const batch = new ClusterBatch(false);
      for (const key of keys) batch.customCommand(["RL.FIXED", key, "100", "1m"]);
      return client.exec(batch, true);
    },
  });
}
