/**
 * Blocking calls, which the server answers late. Later calls on the same connection wait, too, so
 * each has a connection to itself: a duplicate of the client, which is kept a while for the next
 * one.
 */

import type { Call } from "./calls.js";
import { senderOf, type Client, type Send } from "./clients.js";

interface Own {
  readonly send: Send;
  readonly close: () => void;
}

/** Milliseconds for which an idle connection is kept. A process cannot end while one is open. */
const KEPT_MS = 1000;

export class Waiting {
  readonly #client: Client;
  readonly #idle = new Map<Own, NodeJS.Timeout>();

  constructor(client: Client) {
    this.#client = client;
  }

  /** Closes the idle connections. */
  close(): void {
    for (const own of [...this.#idle.keys()]) this.#close(own);
  }

  /** Sends a call, and closes its connection if the signal is aborted. */
  async send(call: Call<unknown>, signal: AbortSignal): Promise<unknown> {
    const own = this.#reused() ?? (await duplicateOf(this.#client));
    const close = () => own.close();
    try {
      signal.throwIfAborted();
      signal.addEventListener("abort", close);
      const reply = await own.send(call, signal);
      this.#idle.set(
        own,
        setTimeout(() => this.#close(own), KEPT_MS),
      );
      return reply;
    } catch (error) {
      own.close();
      throw error;
    } finally {
      signal.removeEventListener("abort", close);
    }
  }

  #reused(): Own | undefined {
    // Reuse the most recent one, so that the others are closed when they expire.
    const own = [...this.#idle.keys()].pop();
    if (own) this.#forget(own);
    return own;
  }

  #close(own: Own): void {
    this.#forget(own);
    own.close();
  }

  #forget(own: Own): void {
    clearTimeout(this.#idle.get(own));
    this.#idle.delete(own);
  }
}

/** Part of the clients' own clients that is used here. */
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
 * resends commands nor reconnects, as less time is left by then.
 */
async function duplicateOf(client: Client): Promise<Own> {
  const duplicate = await ("call" in client ? ofIoredis(client) : ofNodeRedis(client));
  // Closing a closed client is an error in some versions.
  const close = async () => (duplicate.destroy ?? duplicate.disconnect).call(duplicate);
  return {
    send: senderOf(duplicate as unknown as Client),
    close: () => void close().catch(ignored),
  };
}

function ofIoredis(client: unknown): Duplicate {
  const source = client as Duplicate;
  const single = {
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
          redisOptions: { ...source.options?.redisOptions, ...single },
        })
      : source.duplicate({ ...common, ...single });
  return duplicate.on("error", ignored);
}

async function ofNodeRedis(client: unknown): Promise<Duplicate> {
  const source = client as Duplicate;
  const withoutTimeout = (options: Options | undefined) => ({
    socket: { ...options?.socket, socketTimeout: undefined, reconnectStrategy: false },
    commandOptions: undefined,
    disableOfflineQueue: false,
  });
  const single = (one: Duplicate) => one.duplicate(withoutTimeout(one.options));
  let duplicate: Duplicate;
  if ("nodeClient" in source) {
    const defaults = source._options?.defaults;
    duplicate = source.duplicate({ defaults: { ...defaults, ...withoutTimeout(defaults) } });
  } else if ("totalClients" in source) {
    // A pool cannot be duplicated, but its clients can.
    duplicate = await source.execute(single);
  } else {
    duplicate = single(source);
  }
  await duplicate.on("error", ignored).connect();
  return duplicate;
}

/** Ignores an error of a connection, as the call that waits on it fails with it. */
function ignored(): void {}
