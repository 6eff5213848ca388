/**
 * State of a client's connection, as the client's events report it: connecting, unreachable, or
 * rejected by the server.
 */

import { errorMonitor } from "node:events";

import type { Client } from "./clients.js";
import { Denials } from "./denials.js";
import { messageOf, refusalOf } from "./replies.js";
import { Tracking } from "./tracking.js";
import { Waiting } from "./waiting.js";

/** Codes of system errors that mean that the server is unreachable. */
const UNREACHABLE_CODES = new Set([
  ...["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "ENOENT"],
  ...["ETIMEDOUT", "EADDRNOTAVAIL"],
]);

/** Part of a client's state that is used here. */
interface ClientState {
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
 * State that all limiters of one client share, so that the client has one listener for each event.
 */
export class Connection {
  readonly waiting: Waiting;
  readonly denials = new Denials();
  readonly tracking: Tracking;
  /** Last error with which the server rejected the connection. */
  refusal: string | undefined;
  /** Message of the last connection error; undefined while the connection is ready. */
  lastError: string | undefined;
  /** Number of times that the connection became ready. */
  readyCount = 0;
  /** `true` if a call has been answered. */
  hasAnswered = false;
  /**
   * Time by performance.now at which the client began to connect; undefined if it is not
   * connecting.
   */
  #connectingSince: number | undefined;
  readonly #client: ClientState;

  constructor(client: Client) {
    this.waiting = new Waiting(client);
    this.tracking = new Tracking(client, this.denials);
    this.#client = client as ClientState;
    if (!this.isReady) this.#connectingSince = performance.now();
    const events = client as Partial<NodeJS.EventEmitter>;
    // Other connections would keep the process of a closed client alive.
    events.on?.("end", () => {
      this.#connectingSince = undefined;
      this.close();
    });
    events.on?.("ready", () => {
      this.readyCount++;
      this.refusal = undefined;
      this.lastError = undefined;
      this.#connectingSince = undefined;
    });
    events.on?.("close", () => this.#handleLoss());
    events.on?.("reconnecting", () => this.#handleLoss());
    // Some clients check for an "error" listener. A listener of errorMonitor does not count as one.
    events.on?.(errorMonitor, (error: unknown) => this.#handleError(error));
  }

  /** `true` if the client reports a ready connection, or does not report the state. */
  get isReady(): boolean {
    const { status, isReady } = this.#client;
    return status === undefined ? isReady !== false : status === "ready";
  }

  /** `true` if the application has not connected the client, as node-redis requires. */
  get isUnconnected(): boolean {
    const isNew = this.readyCount === 0 && this.lastError === undefined && !this.hasAnswered;
    return isNew && this.#client.isOpen === false;
  }

  /** `true` if the client uses TLS and was never connected. */
  get lacksTls(): boolean {
    const { tls, redisOptions, socket } = this.#client.options ?? {};
    return Boolean(tls ?? redisOptions?.tls ?? socket?.tls) && this.readyCount === 0;
  }

  /**
   * Returns `true` if the client has been connecting for less than `withinMs`, without an error.
   */
  isConnecting(withinMs: number): boolean {
    const since = this.#connectingSince;
    return since !== undefined && performance.now() - since < withinMs;
  }

  /** Closes the connections that were opened beside that of the client. */
  close(): void {
    this.tracking.close();
    this.waiting.close();
  }

  #handleLoss(): void {
    // Further attempts after an error do not restart the connect timeout.
    if (this.lastError === undefined) this.#connectingSince ??= performance.now();
  }

  #handleError(error: unknown): void {
    const refusal = refusalOf(error);
    const isUnreachable = UNREACHABLE_CODES.has(
      `${(error as NodeJS.ErrnoException | undefined)?.code}`,
    );
    // Other errors, such as a connection that closes after a rejection, tell nothing new.
    if (refusal === undefined && !isUnreachable) return;
    this.refusal = refusal;
    this.lastError = refusal ?? (messageOf(error) || `${(error as NodeJS.ErrnoException).code}`);
    this.#connectingSince = undefined;
  }
}

const CONNECTIONS = new WeakMap<object, Connection>();

export function connectionOf(client: Client): Connection {
  const existing = CONNECTIONS.get(client);
  if (existing) return existing;
  const connection = new Connection(client);
  CONNECTIONS.set(client, connection);
  return connection;
}
