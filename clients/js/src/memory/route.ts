/**
 * Client, clock and sleep of a limiter: those of the given client, or of memory in this process.
 */

import type { Client } from "../clients.js";
import type { LimiterOptions } from "../options.js";
import { sleepUnless } from "../waits.js";
import { Memory } from "./server.js";

/** Function that waits for some milliseconds, or rejects when a signal is aborted. */
export type Sleep = (ms: number, signals: readonly AbortSignal[]) => Promise<void>;

export interface Route {
  readonly client: Client;
  readonly now: () => number;
  readonly sleep: Sleep;
}

export function routeOf(client: Client | "memory", { now, clock }: LimiterOptions): Route {
  const sleep = sleepUnless;
  if (client !== "memory") {
    if (clock) throw new TypeError('a clock is for a limiter in memory: new Limiter("memory")');
    return { client, now: now ?? (() => performance.now()), sleep };
  }
  const nowMs = now ?? (clock ? () => clock.now : () => Date.now());
  const memory = new Memory(() => BigInt(Math.round(nowMs() * 1000)));
  if (!clock) return { client: memory, now: nowMs, sleep };
  const advance: Sleep = async (ms, signals) => {
    for (const signal of signals) signal.throwIfAborted();
    clock.advance(ms / 1000);
  };
  return { client: memory, now: nowMs, sleep: advance };
}
