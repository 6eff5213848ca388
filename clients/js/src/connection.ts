/**
 * State of a client's connection, by its events: connecting, unreachable, or rejected by the
 * server.
 */

import { errorMonitor } from "node:events";

import type { Client } from "./clients.js";
import { Denials } from "./denials.js";
import { messageOf, refusalOf } from "./replies.js";
import { Tracking } from "./tracking.js";
import { Waiting } from "./waiting.js";

/** Error codes of the system for an unreachable server. */
const AWAY = new Set([
  ...["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "ENOENT"],
  ...["ETIMEDOUT", "EADDRNOTAVAIL"],
]);

/** Part of the clients' own state that is used here. */
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
 * State that the limiters of one client share, so that it has one listener for each event, however
 * many limiters there are.
 */
export class Connection {
  readonly waiting: Waiting;
  readonly denials = new Denials();
  readonly tracking: Tracking;
  /** Last error with which the server rejected the connection. */
  refusal: string | undefined;
  /** Last error of the client about its connection; undefined once it is ready. */
  trouble: string | undefined;
  /** Number of times that the connection became ready. */
  times = 0;
  /** `true` if a call has been answered. */
  hasAnswered = false;
  /** Start of connecting by performance.now, from which the connect timeout counts. */
  #connectingSince: number | undefined;
  readonly #client: State;

  constructor(client: Client) {
    this.waiting = new Waiting(client);
    this.tracking = new Tracking(client, this.denials);
    this.#client = client as State;
    if (!this.isReady) this.#connectingSince = performance.now();
    const events = client as Partial<NodeJS.EventEmitter>;
    // A program that closes its client must end at once.
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
    // errorMonitor does not count as an error handler, for which clients check.
    events.on?.(errorMonitor, (error: unknown) => this.#hears(error));
  }

  /** `true` if the connection is ready, as far as the client reports it. */
  get isReady(): boolean {
    const { status, isReady } = this.#client;
    return status === undefined ? isReady !== false : status === "ready";
  }

  /** `true` if the application has not connected the client, as node-redis requires. */
  get isUnconnected(): boolean {
    const isNew = this.times === 0 && this.trouble === undefined && !this.hasAnswered;
    return isNew && this.#client.isOpen === false;
  }

  /** `true` if a TLS connection was never established. */
  get lacksTls(): boolean {
    const { tls, redisOptions, socket } = this.#client.options ?? {};
    return Boolean(tls ?? redisOptions?.tls ?? socket?.tls) && this.times === 0;
  }

  /**
   * Returns `true` if the client has been connecting for less than `withinMs`, without an error.
   */
  isConnecting(withinMs: number): boolean {
    const since = this.#connectingSince;
    return since !== undefined && performance.now() - since < withinMs;
  }

  /** Closes the connections that were opened beside the client. */
  close(): void {
    this.tracking.close();
    this.waiting.close();
  }

  #lost(): void {
    // Not at each further attempt of the same outage.
    if (this.trouble === undefined) this.#connectingSince ??= performance.now();
  }

  #hears(error: unknown): void {
    const refusal = refusalOf(error);
    const isAway = AWAY.has(`${(error as NodeJS.ErrnoException | undefined)?.code}`);
    // A closed connection after a rejection is no news, unlike an unreachable server.
    if (refusal !== undefined || isAway) this.refusal = refusal;
    if (refusal === undefined && !isAway) return;
    this.trouble = refusal ?? (messageOf(error) || `${(error as NodeJS.ErrnoException).code}`);
    this.#connectingSince = undefined;
  }
}

const CONNECTIONS = new WeakMap<object, Connection>();

export function connectionOf(client: Client): Connection {
  const existing = CONNECTIONS.get(client);
  if (existing) return existing;
  const made = new Connection(client);
  CONNECTIONS.set(client, made);
  return made;
}
