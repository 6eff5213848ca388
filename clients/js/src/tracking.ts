/**
 * Client tracking: the server reports when a denied key changes by a give-back, a reset or a lifted
 * ban.
 *
 * A tracker peeks at the key on a connection of its own that has client tracking, and the server
 * then reports the key's next change: to node-redis in RESP3, to ioredis and node-redis 4 on a
 * second connection. Until then the denial is remembered for its entire `wait`. In a cluster each
 * node with a denied key has a tracker.
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

/**
 * Milliseconds until the next attempt after a connection failed, and after the server rejected
 * tracking, as it does for an account without the permission.
 */
const PAUSE_MS = 1000;
const REFUSED_MS = 60_000;

export class Tracking {
  readonly #client: Client;
  readonly #isCluster: boolean;
  readonly #denials: Denials;
  /** Trackers by the address of a cluster's node; a single server has one. */
  readonly #trackers = new Map<string, Promise<Tracker>>();
  readonly #notBefore = new Map<string, number>();

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
      const at = now();
      // The server tracks only keys that were read: a take writes.
      const reply = await send({ ...call, name: "RL.PEEK", readOnly: true });
      const decision = call.decode(reply);
      if (decision.allowed) this.#denials.forget(call.keys[0]);
      else this.#denials.extend(denial, decision, at, now());
    } catch {
      // The denial stays remembered for the time without tracking.
    }
  }

  close(): void {
    for (const node of [...this.#trackers.keys()]) this.#close(node);
  }

  #close(node: string): void {
    const tracker = this.#trackers.get(node);
    if (!tracker) return;
    this.#trackers.delete(node);
    // Changes from now on are not reported.
    this.#denials.forget();
    tracker.then(({ close }) => close()).catch(() => {});
  }

  #trackerOf(node: string): Promise<Tracker> | undefined {
    const existing = this.#trackers.get(node);
    if (existing) return existing;
    if (performance.now() < (this.#notBefore.get(node) ?? -Infinity)) return undefined;
    const onInvalidation = (key: string | undefined) => this.#denials.forget(key);
    const lost = (pause = PAUSE_MS) => {
      if (this.#trackers.get(node) !== opened) return;
      this.#notBefore.set(node, performance.now() + pause);
      this.#close(node);
    };
    // Errors before it is open are those of the attempt to open it.
    let isOpen = false;
    const opened = open(this.#client, node, onInvalidation, () => {
      if (isOpen) lost();
    });
    opened.then(
      () => (isOpen = true),
      (error: unknown) => lost(replyOf(error, false) === undefined ? PAUSE_MS : REFUSED_MS),
    );
    this.#trackers.set(node, opened);
    return opened;
  }
}

type OnInvalidation = (key: string | undefined) => void;

/** Part of the clients' own clients that is used here. */
interface Duplicate extends NodeJS.EventEmitter {
  readonly options?: {
    readonly socket?: object;
    readonly host?: string;
    readonly port?: number;
    readonly keyPrefix?: string;
  };
  readonly stream?: { unref(): unknown };
  readonly isOpen?: boolean;
  duplicate(overrides?: object): Duplicate;
  connect(): Promise<unknown>;
  call(...words: (string | number)[]): Promise<unknown>;
  subscribe(channel: string, listener?: (keys: readonly string[] | null) => void): Promise<unknown>;
  sendCommand(words: string[]): Promise<unknown>;
  disconnect(): unknown;
  destroy(): unknown;
  unref(): unknown;
}

/** Part of a cluster's client, or a pool, that leads to a client of a single server. */
interface Several {
  readonly options?: { readonly keyPrefix?: string };
  readonly masters?: readonly { readonly address?: string }[];
  nodes?(role: "master"): Duplicate[];
  nodeClient?(node: object): Promise<Duplicate> | Duplicate;
  execute?(run: (client: Duplicate) => Duplicate): Promise<Duplicate>;
}

async function open(
  client: Client,
  node: string,
  onInvalidation: OnInvalidation,
  lost: () => void,
): Promise<Tracker> {
  const several = client as unknown as Several;
  let known: Duplicate | undefined = client as unknown as Duplicate;
  // ioredis's cluster prefixes keys itself, and its nodes may not know the prefix.
  const { keyPrefix = "" } = several.options ?? {};
  if (isCluster(client)) {
    known = several.nodes
      ? several.nodes("master").find(({ options = {} }) => place(options) === node)
      : await nodeOfNodeRedis(several, node);
  } else if (typeof known.duplicate !== "function") {
    // Any client of a pool will do.
    known = await several.execute?.((one) => one);
  }
  if (!known) throw new Error(`there is no client for ${node || "the server"}`);
  if ("call" in client) return ofIoredis(known, keyPrefix, onInvalidation, lost);
  const hearsItself = "withAbortSignal" in known;
  return hearsItself
    ? ofNodeRedis(known, onInvalidation, lost)
    : ofNodeRedis4(known, onInvalidation, lost);
}

function place({ host, port }: NonNullable<Duplicate["options"]>): string {
  return `${host}:${port}`;
}

async function nodeOfNodeRedis(cluster: Several, address: string): Promise<Duplicate | undefined> {
  const node = cluster.masters?.find((one) => one.address === address);
  return node && (await cluster.nodeClient?.(node));
}

async function ofNodeRedis(
  client: Duplicate,
  onInvalidation: OnInvalidation,
  lost: () => void,
): Promise<Tracker> {
  const own = client.duplicate({
    RESP: 3,
    emitInvalidate: true,
    clientSideCache: undefined,
    commandOptions: undefined,
    socket: { ...client.options?.socket, reconnectStrategy: false },
  });
  own.on("error", lost).on("end", lost);
  own.on("invalidate", (key: unknown) => onInvalidation(key === null ? undefined : `${key}`));
  const close = () => own.destroy();
  try {
    await own.connect();
    own.unref();
    await own.sendCommand(["CLIENT", "TRACKING", "ON"]);
  } catch (error) {
    if (own.isOpen) close();
    throw error;
  }
  return { send: senderOf(own as unknown as Client), close };
}

const CHANNEL = "__redis__:invalidate";

/** Opens a tracker with node-redis 4, which has no RESP3. */
async function ofNodeRedis4(
  client: Duplicate,
  onInvalidation: OnInvalidation,
  lost: () => void,
): Promise<Tracker> {
  const socket = { ...client.options?.socket, reconnectStrategy: false };
  const duplicate = () => client.duplicate({ socket }).on("error", lost).on("end", lost);
  const [subscriber, own] = [duplicate(), duplicate()];
  const close = () => {
    for (const one of [subscriber, own]) void Promise.resolve(one.disconnect()).catch(() => {});
  };
  try {
    await Promise.all([subscriber.connect(), own.connect()]);
    subscriber.unref();
    own.unref();
    const id = await subscriber.sendCommand(["CLIENT", "ID"]);
    await subscriber.subscribe(CHANNEL, (keys) => {
      if (!keys) return onInvalidation(undefined);
      for (const key of keys) onInvalidation(key);
    });
    await own.sendCommand(["CLIENT", "TRACKING", "ON", "REDIRECT", `${String(id)}`]);
  } catch (error) {
    close();
    throw error;
  }
  return { send: senderOf(own as unknown as Client), close };
}

async function ofIoredis(
  client: Duplicate,
  prefix: string,
  onInvalidation: OnInvalidation,
  lost: () => void,
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
      .on("end", lost);
  const [subscriber, own] = [duplicate(), duplicate()];
  const close = () => {
    subscriber.disconnect();
    own.disconnect();
  };
  try {
    await Promise.all([subscriber.connect(), own.connect()]);
    subscriber.stream?.unref();
    own.stream?.unref();
    // Several keys at once, or null for all keys.
    subscriber.on("messageBuffer", (_channel: unknown, keys: readonly Buffer[] | null) => {
      if (!keys) return onInvalidation(undefined);
      for (const key of keys) onInvalidation(`${key}`.slice(prefix.length));
    });
    const id = await subscriber.call("CLIENT", "ID");
    await subscriber.subscribe(CHANNEL);
    await own.call("CLIENT", "TRACKING", "ON", "REDIRECT", Number(id));
  } catch (error) {
    close();
    throw error;
  }
  return { send: senderOf(own as unknown as Client), close };
}
