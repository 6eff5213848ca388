/** Waiting of denied calls in this process. */

import { setMaxListeners } from "node:events";

import type { PeekOptions } from "./calls.js";
import type { Decision } from "./decision.js";
import type { Limit } from "./limits.js";

/** Call that waits until it passes. */
export interface Waiter {
  readonly now: () => number;
  /** Sends the call, with additional options. */
  readonly take: (waitOptions: PeekOptions) => Promise<Decision>;
  /** Gives back the charge of the call. */
  readonly undo: (decision: Decision) => Promise<unknown>;
  /** Sleeps for some milliseconds, or rejects if the wait was cancelled. */
  readonly sleep: (ms: number) => Promise<void>;
}

/** Upper bound, in milliseconds, of the part of a pause from which its random part is computed. */
const JITTER_MS = 1000;

/**
 * Returns `true` if the server can reserve units for waiting callers: for token buckets that charge
 * the cost of the call. Then each waiting caller sends a single call.
 */
export function canReserve(limits: readonly Limit[], options: PeekOptions): boolean {
  const { upto, force, maxWait } = options;
  if (upto || force || maxWait !== undefined) return false;
  return limits.every(({ words, cost }) => words[0] === "TOKENBUCKET" && cost === undefined);
}

/** Reserves units and sleeps until the call may pass. A cancelled wait gives the units back. */
export async function reserved(waiter: Waiter, waitMs: number): Promise<Decision> {
  const decision = await waiter.take({ maxWait: `${waitMs}ms` });
  if (decision.degraded) return decision;
  const { allowed, waitMs: remaining } = decision;
  // The server reports the wait beyond `maxWait`.
  if (!allowed) return remaining === null ? decision : decision.but({ waitMs: remaining + waitMs });
  try {
    await waiter.sleep(remaining ?? 0);
  } catch (error) {
    await waiter.undo(decision).catch(() => {});
    throw error;
  }
  return decision.but({ waitMs: 0 });
}

/**
 * Repeats the call after each reported wait, until it passes or `waitMs` is over. Pauses have a
 * random part, so that callers do not retry together.
 */
export async function retried(waiter: Waiter, waitMs: number): Promise<Decision> {
  const until = waiter.now() + waitMs;
  for (let attempt = 1; ; attempt++) {
    const decision = await waiter.take({});
    const remaining = until - waiter.now();
    const { allowed, waitMs: pause } = decision;
    if (allowed || pause === null || pause > remaining || decision.degraded) return decision;
    const jitter = Math.random() * Math.min(pause, JITTER_MS) * 2 * attempt;
    await waiter.sleep(Math.min(remaining, pause + jitter));
  }
}

/** Creates a controller whose signal has any number of listeners. */
export function endless(): AbortController {
  const controller = new AbortController();
  unbounded(controller.signal);
  return controller;
}

/**
 * Stops Node.js from warning about a leak if many calls listen to the signal. Returns the signal.
 */
export function unbounded(signal: AbortSignal): AbortSignal {
  setMaxListeners(0, signal);
  return signal;
}

/** Sleeps, and rejects with the reason of the first signal that is aborted. */
export async function sleepUnless(ms: number, signals: readonly AbortSignal[]): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      for (const signal of signals) signal.removeEventListener("abort", end);
      const aborted = signals.find((signal) => signal.aborted);
      if (aborted) reject(aborted.reason);
      else resolve();
    };
    const timer = setTimeout(end, ms);
    for (const signal of signals) signal.addEventListener("abort", end);
    if (signals.some((signal) => signal.aborted)) end();
  });
}
