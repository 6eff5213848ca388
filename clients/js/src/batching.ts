/**
 * Batches of units: when to request how many, and which of them to spend. No I/O and no clock.
 *
 * docs/units.md in the repository states the algorithm. The packages for Python and Rust have the
 * same, and clients/units.json has choices that all three make.
 */

/** Time constant of the rate, in seconds. */
const RATE_TIME = 0.5;
/** Seconds that a batch lasts while at least half of the limit remains. */
const LASTS = 0.5;
/** Seconds that a batch lasts while nothing remains. */
const LASTS_AT_LIMIT = 0.3;
/** Remaining share of the limit below which a batch lasts for less time. */
const HALF = 0.5;
/** Largest batch, as a share of the limit. */
const SHARE = 1 / 100;
/** Largest batches of all processes together with `peers`, as a share of the limit. */
const SHARE_OF_PEERS = 1 / 4;
/** Largest growth from one batch to the next. */
const GROWTH = 2;
/** Rest of a batch with which the next is requested. */
const REST = 1 / 3;
/** Round trips for which the units in hand must last. */
const ROUND_TRIPS = 2;
/** Weight of the latest round trip in the average. */
const SMOOTHING = 1 / 8;
/** Pause after a short grant, as a share of `keep` or of the recovery of the limit. */
const PAUSE = 1 / 4;
/** Doublings of the pause, one for each grant of nothing that follows another. */
const DOUBLINGS = 2;
/** Largest random part, as a share of the pause. */
const JITTER = 1 / 2;
/**
 * Longest pause without its random part, and longest time for which the last `limit` is believed,
 * in seconds, so that a raised limit is noticed.
 */
const LONGEST_PAUSE = 10;

/** Units granted to one call. */
export interface Grant {
  readonly id: string;
  readonly until: number;
  left: number;
  spent: number;
}

/** Reply of the server to a request for units. */
export interface UnitsReply {
  readonly id: string;
  readonly granted: number;
  readonly limit: number;
  readonly remaining: number;
  /** Seconds until a unit is available. null: never. */
  readonly wait: number | null;
  /** Seconds until the limit has recovered. */
  readonly reset: number;
}

export interface BatchingOptions {
  readonly keep: number;
  readonly batch?: number | undefined;
  readonly peers?: number | undefined;
}

/**
 * Units in hand, and the choice of requests for more. Times are seconds of any clock.
 *
 * A take calls `demand` once, and then is allowed by `spend`, denied by `denies`, or waits for a
 * request of `wanted` units, whose reply goes to `received`.
 */
export class Batching {
  readonly #keep: number;
  readonly #batch: number;
  readonly #share: number;
  #grants: Grant[] = [];
  #expired: Grant[] = [];
  #left = 0;
  /** Demand of all takes, in units a second, at `#rateAt`. */
  #rate = 0;
  #rateAt = 0;
  /** Size of the last batch. */
  #size = 0;
  #lasts = LASTS;
  #roundTrip = 0;
  /** Limit of the last reply, and the time until which it counts. */
  #limit = 0;
  #limitUntil = 0;
  /** Number of consecutive grants of nothing. */
  #empty = 0;
  #pausedUntil = 0;
  /** Time at which the server has a unit again. null: never. */
  #freeAt: number | null = 0;
  #earlyFrom = 0;

  constructor({ keep, batch = Infinity, peers }: BatchingOptions) {
    this.#keep = keep;
    this.#batch = batch;
    this.#share = peers === undefined ? SHARE : SHARE_OF_PEERS / peers;
  }

  /** Counts the cost of a take, allowed or not, towards the rate. */
  demand(cost: number, now: number): void {
    this.#rate = this.#rateNow(now) + cost / RATE_TIME;
    this.#rateAt = now;
  }

  /** Returns the number of units that can be spent without a call. */
  inHand(now: number): number {
    for (let oldest; (oldest = this.#grants[0]) && now >= oldest.until;) {
      this.#grants.shift();
      this.#left -= oldest.left;
      this.#expired.push(oldest);
    }
    return this.#left;
  }

  /** Spends the oldest units. Returns false if there are too few. */
  spend(cost: number, now: number): boolean {
    if (this.inHand(now) < cost) return false;
    this.#left -= cost;
    for (let rest = cost, oldest; rest > 0 && (oldest = this.#grants[0]);) {
      const taken = Math.min(oldest.left, rest);
      oldest.left -= taken;
      oldest.spent += taken;
      rest -= taken;
      if (oldest.left === 0) this.#grants.shift();
    }
    return true;
  }

  /** Returns true if a take that the units in hand do not cover is denied without a call. */
  denies(cost: number, now: number): boolean {
    return now < this.#pausedUntil || (cost > this.#limit && now < this.#limitUntil);
  }

  /** Returns the seconds after which a denied take may pass. null: never. */
  wait(cost: number, now: number): number | null {
    if (this.#freeAt === null || cost > this.#limit) return null;
    return Math.max(this.#pausedUntil, this.#freeAt, now) - now;
  }

  /** Returns true if the next batch is requested although there are units in hand. */
  isDue(now: number): boolean {
    if (this.#left === 0 || now < this.#pausedUntil || now < this.#earlyFrom) return false;
    const rate = this.#rateNow(now);
    return this.#left <= Math.max(this.#target(rate) * REST, rate * this.#roundTrip * ROUND_TRIPS);
  }

  /** Returns the number of units to request. `waiting` is the cost of all waiting takes. */
  wanted(waiting: number, now: number): number {
    const size = Math.min(this.#target(this.#rateNow(now)), Math.max(1, this.#size * GROWTH));
    this.#size = Math.max(size, waiting - this.inHand(now));
    return this.#size;
  }

  /** Records the reply to a request. `random` is a number from 0 to 1. */
  received(reply: UnitsReply, wanted: number, sentAt: number, now: number, random: number): void {
    const { id, granted, limit, remaining, wait, reset } = reply;
    this.#roundTrip += (now - sentAt - this.#roundTrip) * (this.#roundTrip ? SMOOTHING : 1);
    this.#limit = limit;
    this.#limitUntil = now + LONGEST_PAUSE;
    const free = limit ? Math.min(remaining / limit / HALF, 1) : 0;
    this.#lasts = LASTS_AT_LIMIT + (LASTS - LASTS_AT_LIMIT) * free;
    this.#freeAt = wait === null ? null : now + wait;
    if (granted > 0) {
      // They were charged after `sentAt`, so they expire early rather than late.
      this.#grants.push({ id, until: sentAt + this.#keep, left: granted, spent: 0 });
      this.#left += granted;
    }
    if (granted >= wanted) {
      this.#empty = this.#pausedUntil = 0;
      return;
    }
    let pause = Math.min(this.#keep, reset) * PAUSE * 2 ** Math.min(this.#empty, DOUBLINGS);
    pause = Math.min(pause, LONGEST_PAUSE);
    const randomPart = pause * JITTER * random;
    if (granted > 0) {
      this.#empty = 0;
    } else {
      this.#empty++;
      pause = Math.max(pause, Math.min(wait ?? LONGEST_PAUSE, LONGEST_PAUSE));
    }
    this.#pausedUntil = now + pause + randomPart;
  }

  /** Delays the next early request after one that the server did not answer. */
  failed(now: number): void {
    this.#earlyFrom = now + this.#keep * PAUSE;
  }

  /** Time at which the oldest units expire. */
  get expiresAt(): number | undefined {
    return this.#grants[0]?.until;
  }

  /** Removes and returns the expired grants, to be settled. */
  expired(): Grant[] {
    const found = this.#expired;
    if (found.length > 0) this.#expired = [];
    return found;
  }

  /** Removes and returns all grants, to be settled. */
  rest(): Grant[] {
    const found = [...this.#expired, ...this.#grants];
    this.#expired = [];
    this.#grants = [];
    this.#left = 0;
    return found;
  }

  #rateNow(now: number): number {
    return this.#rate * Math.exp((this.#rateAt - now) / RATE_TIME);
  }

  /** Returns the size of a batch at this rate, apart from the growth. */
  #target(rate: number): number {
    const largest = Math.min(this.#limit * this.#share, this.#batch);
    return Math.max(1, Math.floor(Math.min(rate * this.#lasts, largest)));
  }
}
