/** Simulated server and time in this process, so that waits take no real time. */

import { mock } from "node:test";
import { setImmediate } from "node:timers/promises";

import { Limiter, type LimiterOptions, type NodeRedisClient } from "redis-ratelimit-client";

/** Algorithm of the simulated server. */
export interface Counter {
  /** Charges `cost` units, or with `upto` as many as fit, and returns the reply. */
  take(now: number, cost: number, upto: boolean): number[];
  giveBack(cost: number): void;
}

/** Creates a token bucket like the server's. */
export function bucketOf(capacity: number, perMs: number): Counter {
  let [used, at] = [0, 0];
  return {
    take(now, cost, upto) {
      used = Math.max(0, used - (now - at) * perMs);
      at = now;
      const free = Math.floor(capacity - used + 1e-9);
      const granted = upto ? Math.min(free, cost) : free >= cost ? cost : 0;
      used += granted;
      const wait = granted > 0 ? 0 : Math.ceil(((upto ? 1 : cost) - (capacity - used)) / perMs);
      const reply = [granted > 0 ? 1 : 0, capacity, Math.floor(capacity - used), wait];
      return [...reply, Math.ceil(used / perMs), ...(upto ? [granted] : [])];
    },
    giveBack(cost) {
      used = Math.max(0, used - cost);
    },
  };
}

/** Creates a sliding log like the server's. */
export function logOf(limit: number, windowMs: number): Counter {
  let times: number[] = [];
  return {
    take(now) {
      times = times.filter((time) => time > now - windowMs);
      const isAllowed = times.length < limit;
      if (isAllowed) times.push(now);
      const wait = isAllowed ? 0 : times[times.length - limit]! + windowMs - now;
      const reset = (times.at(-1) ?? now) + windowMs - now;
      return [isAllowed ? 1 : 0, limit, limit - times.length, Math.max(wait, 0), reset];
    },
    giveBack() {},
  };
}

export class Simulation {
  /** Milliseconds that have passed. */
  now = 0;
  /** Number of calls that the server executed. */
  calls = 0;
  readonly #counter: Counter;
  readonly #roundTripMs: number;
  readonly #charges = new Map<string, number>();

  constructor(counter: Counter, roundTripMs: number) {
    this.#counter = counter;
    this.#roundTripMs = roundTripMs;
    mock.timers.enable({ apis: ["setTimeout"] });
  }

  limiter(options: LimiterOptions = {}): Limiter {
    const client: NodeRedisClient = { sendCommand: (words) => this.#send(words) };
    return new Limiter(client, { timeout: 30, now: () => this.now, ...options });
  }

  /** Advances time, with all timers that are due. */
  async pass(ms: number): Promise<void> {
    for (const end = this.now + ms; this.now < end;) {
      this.now++;
      mock.timers.tick(1);
      await setImmediate();
    }
  }

  async #send(words: readonly string[]): Promise<unknown> {
    await new Promise((resolve) => setTimeout(resolve, this.#roundTripMs / 2));
    const reply = this.#reply(words);
    await new Promise((resolve) => setTimeout(resolve, this.#roundTripMs / 2));
    return reply;
  }

  #reply(words: readonly string[]): number[] {
    this.calls++;
    const behind = (word: string) => words[words.indexOf(word) + 1];
    if (words.includes("SETTLE")) {
      const charged = this.#charges.get(behind("SETTLE")!) ?? 0;
      this.#counter.giveBack(charged - Number(words[words.indexOf("SETTLE") + 2]));
      return [1, 0, 0, 0, 0];
    }
    const cost = words.includes("COST") ? Number(behind("COST")) : 1;
    const reply = this.#counter.take(this.now, cost, words.includes("UPTO"));
    if (words.includes("ONCE")) this.#charges.set(behind("ONCE")!, reply[5] ?? cost);
    return reply;
  }
}
