/** The module's commands through ioredis, with a short patience and never twice. */

import { once } from "node:events";

import {
  BrokenCircuitError,
  ConsecutiveBreaker,
  TimeoutStrategy,
  circuitBreaker,
  handleWhen,
  timeout,
} from "cockatiel";
import { Cluster, Command, Redis, ReplyError } from "ioredis";

import { PREFIX, type Decision, type Limit } from "./limits.js";
import { Outage } from "./outage.js";

/**
 * A client of one server or, given several addresses, of the cluster that they belong to.
 *
 * ioredis by default keeps calls while it has no connection, and sends again what got no reply.
 * A limiter wants neither: a late answer is of no use, and a call sent twice may charge twice.
 */
export function connect(urls: readonly string[]): Redis | Cluster {
  const options = {
    autoResendUnfulfilledCommands: false,
    maxRetriesPerRequest: 0,
    connectTimeout: 1000,
    // A host that vanished without closing its connections is noticed after this long.
    socketTimeout: 5000,
  };
  const retryStrategy = (times: number) => Math.min(50 * times, 1000);
  const [url = "redis://127.0.0.1:6379"] = urls;
  const client =
    urls.length > 1
      ? // Connections to the nodes of a cluster are opened by the first call to each, so that calls
        // have to wait for them: our timeout says for how long.
        new Cluster([...urls], {
          redisOptions: options,
          clusterRetryStrategy: retryStrategy,
          retryDelayOnFailover: 0,
        })
      : new Redis(url, { ...options, enableOfflineQueue: false, retryStrategy });
  // The calls that fail are told of as an outage; without a listener ioredis prints each attempt as well.
  client.on("error", () => {});
  return client;
}

/** ioredis does not know the module's commands, so it is told which keys choose the node. */
class LimitCommand extends Command {
  readonly #limiters: readonly string[];

  constructor(name: string, limiters: readonly string[], words: readonly string[]) {
    super(name, [...words]);
    this.#limiters = limiters;
  }

  override getKeys(): string[] {
    return [...this.#limiters];
  }
}

export interface Patience {
  /** How long a call may take. */
  readonly timeoutMs: number;
  /** After so many calls in a row that got no reply, no more are made ... */
  readonly failures: number;
  /** ... for this long. Then one is tried, and if it succeeds all are again. */
  readonly pauseMs: number;
}

export const PATIENCE: Patience = { timeoutMs: 100, failures: 5, pauseMs: 1000 };

export const MODULE_MISSING =
  "the redis-ratelimit module is not loaded: start the server with " +
  "--loadmodule /path/to/libredis_ratelimit.so";

export class Limiters {
  readonly #client: Redis | Cluster;
  readonly #breaker;
  readonly #timeout;
  readonly #away: Outage;
  readonly #refusing: Outage;

  constructor(
    client: Redis | Cluster,
    { timeoutMs, failures, pauseMs }: Patience,
    log = (line: string) => console.error(line),
  ) {
    this.#client = client;
    this.#away = new Outage("Redis is away", "Redis is back", pauseMs, log);
    const over = "Redis refuses no more calls";
    this.#refusing = new Outage("Redis refuses calls", over, pauseMs, log);
    // An error that the server sent, such as OOM, is no reason to stop asking: it came at once.
    const silence = handleWhen((error) => !(error instanceof ReplyError));
    const breaker = new ConsecutiveBreaker(failures);
    this.#breaker = circuitBreaker(silence, { breaker, halfOpenAfter: pauseMs });
    this.#timeout = timeout(timeoutMs, TimeoutStrategy.Aggressive);
  }

  /**
   * For the start: a server without the module is told of before the first request. It is then as
   * in any outage. One that cannot be reached yet is told of by the first call.
   */
  async check(): Promise<void> {
    const key = `${PREFIX}:{check}`; // no limit's
    const peek = new LimitCommand("RL.PEEK", [key], [key, "FIXED", "1", "1s"]);
    try {
      if (this.#client.status !== "ready") await once(this.#client, "ready");
      await this.#told(async () => this.#client.sendCommand(peek));
    } catch {
      // It has been told, or will be.
    }
  }

  /** All are charged, or none is. */
  async takeAll(limiters: ReadonlyMap<string, Limit>, cost: number): Promise<Decision[]> {
    const keys = [...limiters.keys()];
    const specs = [...limiters.values()].flatMap(({ words }) => [...words, "COST", `${cost}`]);
    const reply = await this.#call("RL.MTAKE", keys, [`${keys.length}`, ...keys, ...specs]);
    const [, , decisions] = reply as [number, number, Reply[]];
    return decisions.map(decision);
  }

  /** Gives back what was taken, and never fails: what could not be given back recovers by itself. */
  async giveBack(limiters: ReadonlyMap<string, Limit>, cost: number): Promise<void> {
    if (limiters.size > 0) await this.takeAll(limiters, -cost).catch(() => {});
  }

  /** As many units as there are, up to so many. */
  async takeUpTo(
    key: string,
    limit: Limit,
    units: number,
  ): Promise<{ decision: Decision; granted: number }> {
    const words = [key, ...limit.words, "COST", `${units}`, "UPTO"];
    const reply = (await this.#call("RL.TAKE", [key], words)) as [...Reply, number];
    return { decision: decision(reply), granted: reply[5] };
  }

  #call(name: string, keys: string[], words: string[]): Promise<unknown> {
    const send = async () => this.#client.sendCommand(new LimitCommand(name, keys, words));
    return this.#told(() => this.#breaker.execute(() => this.#timeout.execute(send)));
  }

  async #told<Reply>(call: () => Promise<Reply>): Promise<Reply> {
    try {
      const reply = await call();
      this.#away.succeeded();
      this.#refusing.succeeded();
      return reply;
    } catch (error) {
      if (error instanceof ReplyError) {
        this.#away.succeeded();
        this.#refusing.failed(reason(error as Error));
      } else if (!(error instanceof BrokenCircuitError)) {
        this.#away.failed(`${error}`);
      }
      throw error;
    }
  }
}

type Reply = [number, number, number, number, number];

function decision([allowed, limit, remaining, waitMs, resetMs]:
  Reply | [...Reply, number]): Decision {
  return { allowed: allowed === 1, limit, remaining, waitMs, resetMs };
}

function reason({ message }: Error): string {
  // Redis quotes the command in one way, and did in another until 7.0.
  return /^ERR unknown command ['`]RL\./.test(message) ? MODULE_MISSING : message;
}
