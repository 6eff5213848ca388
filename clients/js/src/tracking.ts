/**
 * Hears from the server when a denied key changes: by a give-back, a reset, a ban that is lifted.
 *
 * It looks at the key once more, on a connection of its own that has client tracking, and the server
 * then tells of the key's next change: node-redis hears it in RESP3, ioredis and node-redis 4 on a
 * second connection. Until then the denial is known to stand, and is remembered for as long as its
 * `wait` says. In a cluster each node with a denied key is heard.
 */

import type { Call } from "./calls.js";
import { isCluster, senderOf, type Client, type Send } from "./clients.js";
import type { Decision } from "./decision.js";
import type { Denial, Denials } from "./denials.js";
import { nodeOf } from "./nodes.js";
import { replyOf } from "./replies.js";

/** A connection that is told of changes. */
interface Ear {
  readonly send: Send;
  readonly close: () => void;
}

/**
 * For so many milliseconds none is opened after a connection that failed, and after one that the
 * server refused, as it does to an account that may not listen.
 */
const PAUSE_MS = 1000;
const REFUSED_MS = 60_000;

export class Tracking {
  readonly #client: Client;
  readonly #isCluster: boolean;
  readonly #denials: Denials;
  /** By the address of a cluster's node; of one server there is one. */
  readonly #ears = new Map<string, Promise<Ear>>();
  readonly #notBefore = new Map<string, number>();

  constructor(client: Client, denials: Denials) {
    this.#client = client;
    this.#isCluster = isCluster(client);
    this.#denials = denials;
  }

  /** Looks at what was denied, and has it remembered for as long as it stays so. */
  async watch(call: Call<Decision>, denial: Denial, now: () => number): Promise<void> {
    const ear = this.#listening(this.#isCluster ? nodeOf(this.#client, call) : "");
    if (!ear) return;
    try {
      const { send } = await ear;
      const at = now();
      // Changes are told to those who have read: a take writes.
      const reply = await send({ ...call, name: "RL.PEEK", readOnly: true });
      const decision = call.decode(reply);
      if (decision.allowed) this.#denials.forget(call.keys[0]);
      else this.#denials.extend(denial, decision, at, now());
    } catch {
      // It stays remembered for as long as nothing need be heard.
    }
  }

  close(): void {
    for (const node of [...this.#ears.keys()]) this.#close(node);
  }

  #close(node: string): void {
    const ear = this.#ears.get(node);
    if (!ear) return;
    this.#ears.delete(node);
    // What happens from now on nobody hears.
    this.#denials.forget();
    ear.then(({ close }) => close()).catch(() => {});
  }

  #listening(node: string): Promise<Ear> | undefined {
    const known = this.#ears.get(node);
    if (known) return known;
    if (performance.now() < (this.#notBefore.get(node) ?? -Infinity)) return undefined;
    const heard = (key: string | undefined) => this.#denials.forget(key);
    const lost = (pause = PAUSE_MS) => {
      if (this.#ears.get(node) !== opened) return;
      this.#notBefore.set(node, performance.now() + pause);
      this.#close(node);
    };
    // Until it is open, why it cannot be is the error that it fails with.
    let isOpen = false;
    const opened = open(this.#client, node, heard, () => {
      if (isOpen) lost();
    });
    opened.then(
      () => (isOpen = true),
      (error: unknown) => lost(replyOf(error, false) === undefined ? PAUSE_MS : REFUSED_MS),
    );
    this.#ears.set(node, opened);
    return opened;
  }
}

type Heard = (key: string | undefined) => void;

/** What is used here of the clients' own clients. */
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

/** A cluster's client, or a pool, by what leads to one of a single server. */
interface Several {
  readonly options?: { readonly keyPrefix?: string };
  readonly masters?: readonly { readonly address?: string }[];
  nodes?(role: "master"): Duplicate[];
  nodeClient?(node: object): Promise<Duplicate> | Duplicate;
  execute?(run: (client: Duplicate) => Duplicate): Promise<Duplicate>;
}

async function open(client: Client, node: string, heard: Heard, lost: () => void): Promise<Ear> {
  const several = client as unknown as Several;
  let known: Duplicate | undefined = client as unknown as Duplicate;
  // ioredis's cluster prefixes keys itself, and its nodes need not know of it.
  const { keyPrefix = "" } = several.options ?? {};
  if (isCluster(client)) {
    known = several.nodes
      ? several.nodes("master").find(({ options = {} }) => place(options) === node)
      : await nodeOfNodeRedis(several, node);
  } else if (typeof known.duplicate !== "function") {
    // A pool: any of its clients will do.
    known = await several.execute?.((one) => one);
  }
  if (!known) throw new Error(`there is no client for ${node || "the server"}`);
  if ("call" in client) return ofIoredis(known, keyPrefix, heard, lost);
  const hearsItself = "withAbortSignal" in known;
  return hearsItself ? ofNodeRedis(known, heard, lost) : ofNodeRedis4(known, heard, lost);
}

function place({ host, port }: NonNullable<Duplicate["options"]>): string {
  return `${host}:${port}`;
}

async function nodeOfNodeRedis(cluster: Several, address: string): Promise<Duplicate | undefined> {
  const node = cluster.masters?.find((one) => one.address === address);
  return node && (await cluster.nodeClient?.(node));
}

async function ofNodeRedis(client: Duplicate, heard: Heard, lost: () => void): Promise<Ear> {
  const own = client.duplicate({
    RESP: 3,
    emitInvalidate: true,
    clientSideCache: undefined,
    commandOptions: undefined,
    socket: { ...client.options?.socket, reconnectStrategy: false },
  });
  own.on("error", lost).on("end", lost);
  own.on("invalidate", (key: unknown) => heard(key === null ? undefined : `${key}`));
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

/** node-redis 4 has no RESP3. */
async function ofNodeRedis4(client: Duplicate, heard: Heard, lost: () => void): Promise<Ear> {
  const socket = { ...client.options?.socket, reconnectStrategy: false };
  const duplicate = () => client.duplicate({ socket }).on("error", lost).on("end", lost);
  const [told, own] = [duplicate(), duplicate()];
  const close = () => {
    for (const one of [told, own]) void Promise.resolve(one.disconnect()).catch(() => {});
  };
  try {
    await Promise.all([told.connect(), own.connect()]);
    told.unref();
    own.unref();
    const id = await told.sendCommand(["CLIENT", "ID"]);
    await told.subscribe(CHANNEL, (keys) => {
      if (!keys) return heard(undefined);
      for (const key of keys) heard(key);
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
  heard: Heard,
  lost: () => void,
): Promise<Ear> {
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
  const [told, own] = [duplicate(), duplicate()];
  const close = () => {
    told.disconnect();
    own.disconnect();
  };
  try {
    await Promise.all([told.connect(), own.connect()]);
    told.stream?.unref();
    own.stream?.unref();
    // Several keys at once, or none: then all.
    told.on("messageBuffer", (_channel: unknown, keys: readonly Buffer[] | null) => {
      if (!keys) return heard(undefined);
      for (const key of keys) heard(`${key}`.slice(prefix.length));
    });
    const id = await told.call("CLIENT", "ID");
    await told.subscribe(CHANNEL);
    await own.call("CLIENT", "TRACKING", "ON", "REDIRECT", Number(id));
  } catch (error) {
    close();
    throw error;
  }
  return { send: senderOf(own as unknown as Client), close };
}
