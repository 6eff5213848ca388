/** Every supported client, in the supported versions. */

import * as ioredis from "ioredis";
import * as ioredis5 from "ioredis5";
import * as iovalkey from "iovalkey";
import * as redis from "redis";
import * as redis4 from "redis4";
import * as redis5 from "redis5";
import type { Client } from "redis-ratelimit-client";

import type { Cluster, Scope } from "./server.js";

type Opened = { client: Client; close: () => unknown };

/** Client library, which opens a client of one server or of a cluster. */
export interface Kind {
  readonly name: string;
  readonly isIoredis: boolean;
  readonly open: (port: number) => Promise<Opened>;
  readonly openCluster: (ports: number[], readsReplicas: boolean) => Promise<Opened>;
}

const ioredisKind = (name: string, library: typeof ioredis): Kind => ({
  name,
  isIoredis: true,
  open: async (port) => {
    const client = new library.Redis(port, "127.0.0.1");
    client.on("error", () => {});
    return { client, close: () => client.disconnect() };
  },
  openCluster: async (ports, readsReplicas) => {
    const nodes = ports.map((port) => ({ host: "127.0.0.1", port }));
    const client = new library.Cluster(nodes, { scaleReads: readsReplicas ? "slave" : "master" });
    client.on("error", () => {});
    return { client, close: () => client.disconnect() };
  },
});

/**
 * Closes a client. node-redis 4 miscounts its queue when a command is cancelled while it is sent:
 * emptying the queue throws, and the client keeps connecting. QUIT ends it nevertheless, at once or
 * with the next connection.
 */
const end = async (
  close: () => unknown,
  client: { quit: () => Promise<unknown> },
): Promise<void> => {
  try {
    await close.call(client);
  } catch {
    client.quit().catch(() => {});
  }
};

const nodeRedisKind = (name: string, library: typeof redis): Kind => ({
  name,
  isIoredis: false,
  open: async (port) => {
    const client = library.createClient({ url: `redis://127.0.0.1:${port}` });
    client.on("error", () => {});
    await client.connect();
    return { client, close: () => end(client.destroy ?? client.disconnect, client) };
  },
  openCluster: async (ports, readsReplicas) => {
    const rootNodes = ports.map((port) => ({ url: `redis://127.0.0.1:${port}` }));
    const client = library.createCluster({ rootNodes, useReplicas: readsReplicas });
    client.on("error", () => {});
    await client.connect();
    return { client, close: () => (client.destroy ?? client.disconnect).call(client) };
  },
});

/** Client libraries. Their own types differ between versions; the parts used here do not. */
export const KINDS: readonly Kind[] = [
  ioredisKind("ioredis 6", ioredis),
  ioredisKind("ioredis 5", ioredis5 as unknown as typeof ioredis),
  ioredisKind("iovalkey", iovalkey as unknown as typeof ioredis),
  nodeRedisKind("node-redis 6", redis),
  nodeRedisKind("node-redis 5", redis5 as unknown as typeof redis),
  nodeRedisKind("node-redis 4", redis4 as unknown as typeof redis),
];

export async function clientFor(test: Scope, kind: Kind, port: number): Promise<Client> {
  const { client, close } = await kind.open(port);
  test.after(close);
  return client;
}

export async function clusterClientFor(
  test: Scope,
  kind: Kind,
  { primaries }: Cluster,
  readsReplicas = false,
): Promise<Client> {
  const ports = primaries.map(({ port }) => port);
  const { client, close } = await kind.openCluster(ports, readsReplicas);
  test.after(close);
  return client;
}
