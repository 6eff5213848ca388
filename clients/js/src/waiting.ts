/**
 * Sending of blocking calls, which the server answers late. Later calls on the same connection
 * would wait, too, so each blocking call has a separate connection: a duplicate of the client,
 * which is kept for a second for the next blocking call.
 */

import type { Call } from "./calls.js";
import { senderOf, type Client, type Send } from "./clients.js";

/** Connection for one blocking call at a time. */
interface BlockingConnection {
  readonly send: Send;
  readonly close: () => void;
}

/** Milliseconds for which an idle connection is kept. A process cannot end while one is open. */
const IDLE_MS = 1000;

/** Pool of connections for the blocking calls of a client. */
export class Waiting {
  readonly #client: Client;
  readonly #idle = new Map<BlockingConnection, NodeJS.Timeout>();

  constructor(client: Client) {
    this.#client = client;
  }

  /** Closes the idle connections. */
  close(): void {
    for (const connection of [...this.#idle.keys()]) this.#close(connection);
  }

  /** Sends a call, and closes its connection if the signal is aborted. */
  async send(call: Call<unknown>, signal: AbortSignal): Promise<unknown> {
    const connection = this.#takeIdle() ?? (await duplicateOf(this.#client));
    const close = () => connection.close();
    try {
      signal.throwIfAborted();
      signal.addEventListener("abort", close);
      const reply = await connection.send(call, signal);
      this.#idle.set(
        connection,
        setTimeout(() => this.#close(connection), IDLE_MS),
      );
      return reply;
    } catch (error) {
      connection.close();
      throw error;
    } finally {
      signal.removeEventListener("abort", close);
    }
  }

  #takeIdle(): BlockingConnection | undefined {
    // Reuses the most recent connection, so that the others become old and are closed.
    const connection = [...this.#idle.keys()].pop();
    if (connection) this.#forget(connection);
    return connection;
  }

  #close(connection: BlockingConnection): void {
    this.#forget(connection);
    connection.close();
  }

  #forget(connection: BlockingConnection): void {
    clearTimeout(this.#idle.get(connection));
    this.#idle.delete(connection);
  }
}

/** Part of a client library's client that is used here. */
interface Duplicate extends NodeJS.EventEmitter {
  readonly options?: Options;
  readonly _options?: Options;
  connect(): Promise<unknown>;
  disconnect(): unknown;
  destroy?(): unknown;
  duplicate(...overrides: unknown[]): Duplicate;
  execute(use: (client: Duplicate) => Duplicate): Promise<Duplicate>;
}

interface Options {
  readonly redisOptions?: object;
  readonly socket?: object;
  readonly defaults?: Options;
}

/**
 * Duplicates a client, without a command timeout, as the limiter has its own. The duplicate neither
 * resends commands nor reconnects: the limiter resends the call with the time that remains.
 */
async function duplicateOf(client: Client): Promise<BlockingConnection> {
  const duplicate = await ("call" in client
    ? duplicateOfIoredis(client)
    : duplicateOfNodeRedis(client));
  // Closing a closed client is an error in some versions.
  const close = async () => (duplicate.destroy ?? duplicate.disconnect).call(duplicate);
  return {
    send: senderOf(duplicate as unknown as Client),
    close: () => void close().catch(ignore),
  };
}

function duplicateOfIoredis(client: unknown): Duplicate {
  const source = client as Duplicate;
  const singleOptions = {
    commandTimeout: undefined,
    socketTimeout: undefined,
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    retryStrategy: () => null,
  };
  const common = { enableOfflineQueue: true, lazyConnect: false };
  const duplicate =
    "nodes" in source
      ? source.duplicate([], {
          ...common,
          clusterRetryStrategy: () => null,
          redisOptions: { ...source.options?.redisOptions, ...singleOptions },
        })
      : source.duplicate({ ...common, ...singleOptions });
  return duplicate.on("error", ignore);
}

async function duplicateOfNodeRedis(client: unknown): Promise<Duplicate> {
  const source = client as Duplicate;
  const withoutTimeout = (options: Options | undefined) => ({
    socket: { ...options?.socket, socketTimeout: undefined, reconnectStrategy: false },
    commandOptions: undefined,
    disableOfflineQueue: false,
  });
  const duplicateOfSingle = (single: Duplicate) => single.duplicate(withoutTimeout(single.options));
  let duplicate: Duplicate;
  if ("nodeClient" in source) {
    const defaults = source._options?.defaults;
    duplicate = source.duplicate({ defaults: { ...defaults, ...withoutTimeout(defaults) } });
  } else if ("totalClients" in source) {
    // A pool cannot be duplicated, but its clients can.
    duplicate = await source.execute(duplicateOfSingle);
  } else {
    duplicate = duplicateOfSingle(source);
  }
  await duplicate.on("error", ignore).connect();
  return duplicate;
}

/** Ignores an error of a connection: the call on this connection fails with the same error. */
function ignore(): void {}
