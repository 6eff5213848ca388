/**
 * Client tracking: the server reports when a denied key changes by a give-back, a reset or a lifted
 * ban.
 *
 * A tracker peeks at the key on a separate connection that has client tracking. Then the server
 * reports the next change of the key: to node-redis on the same connection in RESP3, to ioredis and
 * node-redis 4 on a second connection. Without a change the denial is remembered for its entire
 * `wait`. In a cluster there is a tracker for each node with a denied key.
 */

import type { Call } from "./calls.js";
import { isCluster, senderOf, type Client, type Send } from "./clients.js";
import type { Decision } from "./decision.js";
import type { Denial, Denials } from "./denials.js";
import { nodeOf } from "./nodes.js";
import { replyOf } from "./replies.js";

/** Connection with client tracking. */
interface Tracker {
  readonly send: Send;
  readonly close: () => void;
}

/** Milliseconds between attempts to open a tracker, after its connection failed. */
const PAUSE_MS = 1000;
/**
 * Milliseconds between attempts after the server rejected tracking, as for lack of a permission.
 */
const REFUSED_PAUSE_MS = 60_000;

export class Tracking {
  readonly #client: Client;
  readonly #isCluster: boolean;
  readonly #denials: Denials;
  /** Trackers by the address of a cluster's node; a single server has one. */
  readonly #trackers = new Map<string, Promise<Tracker>>();
  /** Time by performance.now before which no tracker of a node is opened, by its address. */
  readonly #pausedUntil = new Map<string, number>();

  constructor(client: Client, denials: Denials) {
    this.#client = client;
    this.#isCluster = isCluster(client);
    this.#denials = denials;
  }

  /** Peeks at a denied key, and extends the denial while the key does not change. */
  async watch(call: Call<Decision>, denial: Denial, now: () => number): Promise<void> {
    const tracker = this.#trackerOf(this.#isCluster ? nodeOf(this.#client, call) : "");
    if (!tracker) return;
    try {
      const { send } = await tracker;
      const sentAt = now();
      // The server tracks only keys that a connection reads: a take would write.
      const reply = await send({ ...call, name: "RL.PEEK", readOnly: true });
      const decision = call.decode(reply);
      if (decision.allowed) this.#denials.forget(call.keys[0]);
      else this.#denials.extend(denial, decision, sentAt, now());
    } catch {
      // The denial stays remembered as without tracking.
    }
  }

  close(): void {
    for (const node of [...this.#trackers.keys()]) this.#close(node);
  }

  #close(node: string): void {
    const tracker = this.#trackers.get(node);
    if (!tracker) return;
    this.#trackers.delete(node);
    // Without the tracker, changes are not reported.
    this.#denials.forget();
    tracker.then(({ close }) => close()).catch(() => {});
  }

  #trackerOf(node: string): Promise<Tracker> | undefined {
    const existing = this.#trackers.get(node);
    if (existing) return existing;
    if (performance.now() < (this.#pausedUntil.get(node) ?? -Infinity)) return undefined;
    const onInvalidation = (key: string | undefined) => this.#denials.forget(key);
    const onLoss = (pause = PAUSE_MS) => {
      if (this.#trackers.get(node) !== tracker) return;
      this.#pausedUntil.set(node, performance.now() + pause);
      this.#close(node);
    };
    // Until the tracker is open, its errors reject the promise.
    let isOpen = false;
    const tracker = openTracker(this.#client, node, onInvalidation, () => {
      if (isOpen) onLoss();
    });
    tracker.then(
      () => (isOpen = true),
      (error: unknown) => onLoss(replyOf(error, false) === undefined ? PAUSE_MS : REFUSED_PAUSE_MS),
    );
    this.#trackers.set(node, tracker);
    return tracker;
  }
}

/**
 * Function that is called when the server reports a changed key; undefined: any key may have
 * changed.
 */
type OnInvalidation = (key: string | undefined) => void;

/** Part of a client library's client of a single server that is used here. */
interface SingleClient extends NodeJS.EventEmitter {
  readonly options?: {
    readonly socket?: object;
    readonly host?: string;
    readonly port?: number;
    readonly keyPrefix?: string;
  };
  readonly stream?: { unref(): unknown };
  readonly isOpen?: boolean;
  duplicate(overrides?: object): SingleClient;
  connect(): Promise<unknown>;
  call(...words: (string | number)[]): Promise<unknown>;
  subscribe(channel: string, listener?: (keys: readonly string[] | null) => void): Promise<unknown>;
  sendCommand(words: string[]): Promise<unknown>;
  disconnect(): unknown;
  destroy(): unknown;
  unref(): unknown;
}

/** Part of a client of a cluster, or of a pool, that returns a client of a single server. */
interface ClientOfServers {
  readonly options?: { readonly keyPrefix?: string };
  readonly masters?: readonly { readonly address?: string }[];
  nodes?(role: "master"): SingleClient[];
  nodeClient?(node: object): Promise<SingleClient> | SingleClient;
  execute?(run: (client: SingleClient) => SingleClient): Promise<SingleClient>;
}

/** Opens a tracker for a node of a cluster, or for the only server. */
async function openTracker(
  client: Client,
  node: string,
  onInvalidation: OnInvalidation,
  onLoss: () => void,
): Promise<Tracker> {
  const servers = client as unknown as ClientOfServers;
  let single: SingleClient | undefined = client as unknown as SingleClient;
  // The cluster client of ioredis prefixes keys itself; its clients of nodes may have no prefix.
  const { keyPrefix = "" } = servers.options ?? {};
  if (isCluster(client)) {
    single = servers.nodes
      ? servers.nodes("master").find(({ options = {} }) => hostAndPort(options) === node)
      : await nodeRedisClientOf(servers, node);
  } else if (typeof single.duplicate !== "function") {
    // Any client of a pool will do.
    single = await servers.execute?.((pooled) => pooled);
  }
  if (!single) throw new Error(`there is no client for ${node || "the server"}`);
  if ("call" in client) return openWithIoredis(single, keyPrefix, onInvalidation, onLoss);
  const hasResp3 = "withAbortSignal" in single;
  return hasResp3
    ? openWithNodeRedis(single, onInvalidation, onLoss)
    : openWithNodeRedis4(single, onInvalidation, onLoss);
}

function hostAndPort({ host, port }: NonNullable<SingleClient["options"]>): string {
  return `${host}:${port}`;
}

async function nodeRedisClientOf(
  cluster: ClientOfServers,
  address: string,
): Promise<SingleClient | undefined> {
  const node = cluster.masters?.find((master) => master.address === address);
  return node && (await cluster.nodeClient?.(node));
}

/** Opens a tracker with node-redis, from version 5 on. */
async function openWithNodeRedis(
  client: SingleClient,
  onInvalidation: OnInvalidation,
  onLoss: () => void,
): Promise<Tracker> {
  const tracking = client.duplicate({
    RESP: 3,
    emitInvalidate: true,
    clientSideCache: undefined,
    commandOptions: undefined,
    socket: { ...client.options?.socket, reconnectStrategy: false },
  });
  tracking.on("error", onLoss).on("end", onLoss);
  tracking.on("invalidate", (key: unknown) => onInvalidation(key === null ? undefined : `${key}`));
  const close = () => tracking.destroy();
  try {
    await tracking.connect();
    tracking.unref();
    await tracking.sendCommand(["CLIENT", "TRACKING", "ON"]);
  } catch (error) {
    if (tracking.isOpen) close();
    throw error;
  }
  return { send: senderOf(tracking as unknown as Client), close };
}

const CHANNEL = "__redis__:invalidate";

/** Opens a tracker with node-redis 4, which has no RESP3. */
async function openWithNodeRedis4(
  client: SingleClient,
  onInvalidation: OnInvalidation,
  onLoss: () => void,
): Promise<Tracker> {
  const socket = { ...client.options?.socket, reconnectStrategy: false };
  const duplicate = () => client.duplicate({ socket }).on("error", onLoss).on("end", onLoss);
  const [subscriber, tracking] = [duplicate(), duplicate()];
  const close = () => {
    for (const connection of [subscriber, tracking]) {
      void Promise.resolve(connection.disconnect()).catch(() => {});
    }
  };
  try {
    await Promise.all([subscriber.connect(), tracking.connect()]);
    subscriber.unref();
    tracking.unref();
    const id = await subscriber.sendCommand(["CLIENT", "ID"]);
    await subscriber.subscribe(CHANNEL, (keys) => {
      if (!keys) return onInvalidation(undefined);
      for (const key of keys) onInvalidation(key);
    });
    await tracking.sendCommand(["CLIENT", "TRACKING", "ON", "REDIRECT", `${String(id)}`]);
  } catch (error) {
    close();
    throw error;
  }
  return { send: senderOf(tracking as unknown as Client), close };
}

/** Opens a tracker with ioredis or iovalkey. */
async function openWithIoredis(
  client: SingleClient,
  prefix: string,
  onInvalidation: OnInvalidation,
  onLoss: () => void,
): Promise<Tracker> {
  const duplicate = () =>
    client
      .duplicate({
        protocol: 2,
        keyPrefix: prefix,
        lazyConnect: true,
        enableOfflineQueue: true,
        autoResendUnfulfilledCommands: false,
        maxRetriesPerRequest: 0,
        retryStrategy: () => null,
      })
      .on("error", () => {})
      .on("end", onLoss);
  const [subscriber, tracking] = [duplicate(), duplicate()];
  const close = () => {
    subscriber.disconnect();
    tracking.disconnect();
  };
  try {
    await Promise.all([subscriber.connect(), tracking.connect()]);
    subscriber.stream?.unref();
    tracking.stream?.unref();
    // The message has several keys, or null for all keys.
    subscriber.on("messageBuffer", (_channel: unknown, keys: readonly Buffer[] | null) => {
      if (!keys) return onInvalidation(undefined);
      for (const key of keys) onInvalidation(`${key}`.slice(prefix.length));
    });
    const id = await subscriber.call("CLIENT", "ID");
    await subscriber.subscribe(CHANNEL);
    await tracking.call("CLIENT", "TRACKING", "ON", "REDIRECT", Number(id));
  } catch (error) {
    close();
    throw error;
  }
  return { send: senderOf(tracking as unknown as Client), close };
}
