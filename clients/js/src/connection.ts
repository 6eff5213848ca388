/** What a client's connection is doing, by its events: connecting, away, or refused by the server. */

import { errorMonitor } from "node:events";

import type { Client } from "./clients.js";
import { Denials } from "./denials.js";
import { messageOf, refusalOf } from "./replies.js";
import { Tracking } from "./tracking.js";
import { Waiting } from "./waiting.js";

/** Codes of the system for a server that cannot be reached. */
const AWAY = new Set([
  ...["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "ENOENT"],
  ...["ETIMEDOUT", "EADDRNOTAVAIL"],
]);

/** What is used here of the clients' own state. */
interface State {
  readonly status?: string;
  readonly isReady?: boolean;
  readonly isOpen?: boolean;
  readonly options?: {
    readonly tls?: unknown;
    readonly redisOptions?: { readonly tls?: unknown };
    readonly socket?: { readonly tls?: unknown };
  };
}

/**
 * What the limiters of one client share, so that it has one listener for each event, however many
 * limiters there are.
 */
export class Connection {
  readonly waiting: Waiting;
  readonly denials = new Denials();
  readonly tracking: Tracking;
  /** What the server said to the client when it last refused to let it in. */
  refusal: string | undefined;
  /** What the client last said of its connection; nothing, once it is ready. */
  trouble: string | undefined;
  /** How often it has been ready. */
  times = 0;
  /** A call has been answered. */
  hasAnswered = false;
  /** Since when it has been connecting, by performance.now: its own time runs from then on. */
  #connectingSince: number | undefined;
  readonly #client: State;

  constructor(client: Client) {
    this.waiting = new Waiting(client);
    this.tracking = new Tracking(client, this.denials);
    this.#client = client as State;
    if (!this.isReady) this.#connectingSince = performance.now();
    const events = client as Partial<NodeJS.EventEmitter>;
    // A program that closes its client ends at once.
    events.on?.("end", () => {
      this.#connectingSince = undefined;
      this.close();
    });
    events.on?.("ready", () => {
      this.times++;
      this.refusal = undefined;
      this.trouble = undefined;
      this.#connectingSince = undefined;
    });
    events.on?.("close", () => this.#lost());
    events.on?.("reconnecting", () => this.#lost());
    // By this name it is no handler: whether there is one, clients ask.
    events.on?.(errorMonitor, (error: unknown) => this.#hears(error));
  }

  /** As far as the client says so. */
  get isReady(): boolean {
    const { status, isReady } = this.#client;
    return status === undefined ? isReady !== false : status === "ready";
  }

  /** Tells whether nobody has connected the client, which node-redis leaves to the application. */
  get isUnconnected(): boolean {
    const isNew = this.times === 0 && this.trouble === undefined && !this.hasAnswered;
    return isNew && this.#client.isOpen === false;
  }

  /** Tells whether a connection by TLS has never come about. */
  get lacksTls(): boolean {
    const { tls, redisOptions, socket } = this.#client.options ?? {};
    return Boolean(tls ?? redisOptions?.tls ?? socket?.tls) && this.times === 0;
  }

  /** Whether a connection is being made, for less than so many milliseconds, and nothing failed yet. */
  isConnecting(withinMs: number): boolean {
    const since = this.#connectingSince;
    return since !== undefined && performance.now() - since < withinMs;
  }

  /** Closes what was opened beside the client. */
  close(): void {
    this.tracking.close();
    this.waiting.close();
  }

  #lost(): void {
    // Not each further attempt: it is one outage.
    if (this.trouble === undefined) this.#connectingSince ??= performance.now();
  }

  #hears(error: unknown): void {
    const said = refusalOf(error);
    const isAway = AWAY.has(`${(error as NodeJS.ErrnoException | undefined)?.code}`);
    // That it has closed the connection behind that says nothing new; that it is away does.
    if (said !== undefined || isAway) this.refusal = said;
    if (said === undefined && !isAway) return;
    this.trouble = said ?? (messageOf(error) || `${(error as NodeJS.ErrnoException).code}`);
    this.#connectingSince = undefined;
  }
}

const CONNECTIONS = new WeakMap<object, Connection>();

export function connectionOf(client: Client): Connection {
  const known = CONNECTIONS.get(client);
  if (known) return known;
  const made = new Connection(client);
  CONNECTIONS.set(client, made);
  return made;
}
