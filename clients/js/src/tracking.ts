/**
 * Hears from the server when a denied key changes: by a give-back, a reset, a ban that is lifted.
 *
 * It looks at the key once more, on a connection of its own that has client tracking, and the server
 * then tells of the key's next change: node-redis hears it in RESP3, ioredis on a second connection.
 * Until then the denial is known to stand, and is remembered for as long as its `wait` says.
 */

import type { Call } from "./calls.js";
import { isCluster, senderOf, type Client, type Send } from "./clients.js";
import type { Decision } from "./decision.js";
import type { Denial, Denials } from "./denials.js";

/** A connection that is told of changes. */
interface Ear {
  readonly send: Send;
  readonly close: () => void;
}

/** After a connection that failed, none is opened for so many milliseconds. */
const PAUSE_MS = 1000;

export class Tracking {
  readonly #client: Client;
  readonly #denials: Denials;
  #ear: Promise<Ear> | undefined;
  #notBefore = -Infinity;

  constructor(client: Client, denials: Denials) {
    this.#client = client;
    this.#denials = denials;
  }

  /** Looks at what was denied, and has it remembered for as long as it stays so. */
  async watch(call: Call<Decision>, denial: Denial, now: () => number): Promise<void> {
    const ear = this.#listening();
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
    const ear = this.#ear;
    if (!ear) return;
    this.#ear = undefined;
    // What happens from now on nobody hears.
    this.#denials.forget();
    ear.then(({ close }) => close()).catch(() => {});
  }

  #listening(): Promise<Ear> | undefined {
    if (this.#ear) return this.#ear;
    if (performance.now() < this.#notBefore) return undefined;
    const open = openerFor(this.#client);
    if (!open) {
      this.#notBefore = Infinity;
      return undefined;
    }
    const heard = (key: string | undefined) => this.#denials.forget(key);
    const lost = () => {
      if (this.#ear !== opened) return;
      this.#notBefore = performance.now() + PAUSE_MS;
      this.close();
    };
    const opened = open(heard, lost);
    opened.catch(lost);
    this.#ear = opened;
    return opened;
  }
}

type Opener = (heard: (key: string | undefined) => void, lost: () => void) => Promise<Ear>;

/** What is used here of the clients' own clients. */
interface Duplicate extends NodeJS.EventEmitter {
  readonly options?: { readonly socket?: object; readonly keyPrefix?: string };
  readonly stream?: { unref(): unknown };
  duplicate(overrides: object): Duplicate;
  connect(): Promise<unknown>;
  call(...words: (string | number)[]): Promise<unknown>;
  subscribe(channel: string): Promise<unknown>;
  sendCommand(words: string[]): Promise<unknown>;
  disconnect(): unknown;
  destroy(): unknown;
  unref(): unknown;
}

/** None for a cluster, whose nodes would all have to be heard; nor for node-redis 4, which has no RESP3. */
function openerFor(client: Client): Opener | undefined {
  const known = client as unknown as Duplicate;
  if (isCluster(client) || typeof known.duplicate !== "function") return undefined;
  if ("call" in client) return (heard, lost) => ofIoredis(known, heard, lost);
  return "withAbortSignal" in client ? (heard, lost) => ofNodeRedis(known, heard, lost) : undefined;
}

async function ofNodeRedis(
  client: Duplicate,
  heard: (key: string | undefined) => void,
  lost: () => void,
): Promise<Ear> {
  const own = client.duplicate({
    RESP: 3,
    emitInvalidate: true,
    clientSideCache: undefined,
    commandOptions: undefined,
    socket: { ...client.options?.socket, reconnectStrategy: false },
  });
  own.on("error", lost).on("end", lost);
  own.on("invalidate", (key: unknown) => heard(key === null ? undefined : `${key}`));
  await own.connect();
  own.unref();
  await own.sendCommand(["CLIENT", "TRACKING", "ON"]);
  const close = () => own.destroy();
  return { send: senderOf(own as unknown as Client), close };
}

const CHANNEL = "__redis__:invalidate";

async function ofIoredis(
  client: Duplicate,
  heard: (key: string | undefined) => void,
  lost: () => void,
): Promise<Ear> {
  const prefix = client.options?.keyPrefix ?? "";
  const duplicate = () =>
    client
      .duplicate({
        protocol: 2,
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
