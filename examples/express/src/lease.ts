/**
 * Units of hot keys, taken from Redis some at a time and spent here.
 *
 * Never more are spent than were granted. Units in hand count as used for all other processes, so
 * take few compared to the limit. They soon expire: were they kept, they could one day all be spent
 * on top of what has recovered since. For the same reason they are not given back when they expire
 * or the process ends: what has recovered would be given twice.
 */

import { LRUCache } from "lru-cache";

import type { Decision, Limit } from "./limits.js";
import type { Limiters } from "./redis.js";

/** What one limit has granted and is not spent yet. */
interface Hand {
  units: number;
  expiresAt: number;
  /** Denied: no use in asking before this. */
  askAgain: number;
  said: Decision | undefined;
  /** The call under way, for which all wait that need units. */
  asking: Promise<void> | undefined;
}

export class Leases {
  readonly #limiters: Limiters;
  readonly #goodForMs: number;
  readonly #now: () => number;
  readonly #hands = new LRUCache<string, Hand>({ max: 10_000 });

  /** The clock counts milliseconds, and must not jump when the time of day is set. */
  constructor(limiters: Limiters, goodForMs = 1000, now = () => performance.now()) {
    this.#limiters = limiters;
    this.#goodForMs = goodForMs;
    this.#now = now;
  }

  async take(key: string, limit: Limit, cost: number, atATime: number): Promise<Decision> {
    const hand = this.#hand(key);
    while (this.#units(hand) < cost) {
      if (hand.said && this.#now() < hand.askAgain) {
        const waitMs = hand.askAgain === Infinity ? -1 : Math.ceil(hand.askAgain - this.#now());
        return { ...hand.said, allowed: false, remaining: hand.units, waitMs };
      }
      // One asks, however many requests are waiting. Each round grants something or denies.
      hand.asking ??= this.#ask(hand, key, limit, Math.ceil(Math.max(cost, atATime))).finally(
        () => (hand.asking = undefined),
      );
      await hand.asking;
    }
    hand.units -= cost;
    const { limit: whole, remaining = 0, resetMs = 0 } = hand.said ?? { limit: limit.quota };
    return { allowed: true, limit: whole, remaining: remaining + hand.units, waitMs: 0, resetMs };
  }

  /** For a request that another limit then denied. */
  putBack(key: string, cost: number): void {
    const hand = this.#hand(key);
    if (this.#now() < hand.expiresAt) hand.units += cost;
  }

  #hand(key: string): Hand {
    let hand = this.#hands.get(key);
    if (!hand) {
      hand = { units: 0, expiresAt: 0, askAgain: 0, said: undefined, asking: undefined };
      this.#hands.set(key, hand);
    }
    return hand;
  }

  #units(hand: Hand): number {
    if (this.#now() >= hand.expiresAt) hand.units = 0;
    return hand.units;
  }

  async #ask(hand: Hand, key: string, limit: Limit, units: number): Promise<void> {
    const asked = this.#now();
    const { decision, granted } = await this.#limiters.takeUpTo(key, limit, units);
    if (this.#units(hand) === 0) hand.expiresAt = asked + this.#goodForMs;
    hand.units += granted;
    hand.said = decision;
    hand.askAgain = decision.waitMs === -1 ? Infinity : this.#now() + decision.waitMs;
  }
}
