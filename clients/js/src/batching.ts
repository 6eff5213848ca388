/**
 * Decisions on batches of units: when to request units, how many, and which units to spend. No I/O
 * and no clock.
 *
 * docs/units.md in the repository states the algorithm. The packages for Python and Rust implement
 * it as well, and clients/units.json tests the decisions of all three.
 */

/** Time constant of the decaying average of the rate, in seconds. */
const RATE_TIME = 0.5;
/** Seconds for which a batch lasts, while at least `AMPLE_SHARE` of the limit remains. */
const BATCH_SECONDS = 0.5;
/** Seconds for which a batch lasts, while nothing of the limit remains. */
const BATCH_SECONDS_AT_LIMIT = 0.3;
/** Remaining share of the limit below which a batch lasts for less time. */
const AMPLE_SHARE = 0.5;
/** Largest batch, as a share of the limit. */
const MAX_SHARE = 1 / 100;
/** Largest batches of all `peers` processes together, as a share of the limit. */
const MAX_SHARE_OF_PEERS = 1 / 4;
/** Largest factor between the sizes of one batch and the next. */
const MAX_GROWTH = 2;
/** Share of a batch that is still in hand when the next batch is requested. */
const SHARE_AT_REQUEST = 1 / 3;
/** Number of round trips for which the units in hand must last. */
const ROUND_TRIPS = 2;
/** Weight of the latest round trip in the average. */
const SMOOTHING = 1 / 8;
/**
 * Pause after a grant of fewer units than requested, as a share of `keep` or of the recovery of the
 * limit, whichever is shorter.
 */
const PAUSE_SHARE = 1 / 4;
/** Largest number of doublings of the pause, one for each grant of nothing that follows another. */
const MAX_DOUBLINGS = 2;
/** Largest random part of a pause, as a share of the pause. */
const JITTER_SHARE = 1 / 2;
/**
 * Upper bound, in seconds, of a pause without its random part, and of the time for which the last
 * `limit` counts, so that a raised limit is noticed.
 */
const LONGEST_PAUSE = 10;

/** Units granted to one request. */
export interface Grant {
  readonly id: string;
  readonly expiresAt: number;
  /** Units that are not spent yet. */
  unspent: number;
  spent: number;
}

/** Reply of the server to a request for units. */
export interface UnitsReply {
  readonly id: string;
  readonly granted: number;
  readonly limit: number;
  readonly remaining: number;
  /** Seconds expiresAt a unit is available. null: never. */
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
 * Units in hand, and the decisions on requests for more units. Times are seconds of any clock.
 *
 * A take calls `recordDemand` once. Then it is allowed by `spend`, denied by `denies`, or waits for
 * a request of `planRequest` units, whose reply is passed to `recordReply`.
 */
export class Batching {
  /** Seconds for which granted units may be spent. */
  readonly #keep: number;
  /** Upper bound of a batch that the caller set. */
  readonly #largest: number;
  /** Upper bound of a batch, as a share of the limit. */
  readonly #share: number;
  #grants: Grant[] = [];
  #expired: Grant[] = [];
  /** Units in hand: unspent units of all grants. */
  #unspent = 0;
  /** Demand of all takes, in units a second, at `#rateAt`. */
  #rate = 0;
  #rateAt = 0;
  /** Size of the last batch. */
  #lastSize = 0;
  /** Seconds for which the next batch lasts at the current rate. */
  #batchSeconds = BATCH_SECONDS;
  /** Average seconds of a request; 0 before the first one. */
  #roundTrip = 0;
  /** Limit in the last reply. */
  #limit = 0;
  /** Time until which costs above `#limit` are denied without a request. */
  #limitUntil = 0;
  /** Number of consecutive grants of nothing. */
  #emptyGrants = 0;
  /** Time until which nothing is requested. */
  #pausedUntil = 0;
  /** Time at which the server has a unit again. null: never. */
  #freeAt: number | null = 0;
  /** Time before which no batch is requested while units are in hand. */
  #earlyRequestsFrom = 0;

  constructor({ keep, batch = Infinity, peers }: BatchingOptions) {
    this.#keep = keep;
    this.#largest = batch;
    this.#share = peers === undefined ? MAX_SHARE : MAX_SHARE_OF_PEERS / peers;
  }

  /** Counts the cost of a take, allowed or not, towards the rate. */
  recordDemand(cost: number, now: number): void {
    this.#rate = this.#currentRate(now) + cost / RATE_TIME;
    this.#rateAt = now;
  }

  /** Returns the number of units that can be spent without a call. */
  inHand(now: number): number {
    for (let oldest; (oldest = this.#grants[0]) && now >= oldest.expiresAt;) {
      this.#grants.shift();
      this.#unspent -= oldest.unspent;
      this.#expired.push(oldest);
    }
    return this.#unspent;
  }

  /** Spends the oldest units. Returns false if there are too few. */
  spend(cost: number, now: number): boolean {
    if (this.inHand(now) < cost) return false;
    this.#unspent -= cost;
    for (let remaining = cost, oldest; remaining > 0 && (oldest = this.#grants[0]);) {
      const spentUnits = Math.min(oldest.unspent, remaining);
      oldest.unspent -= spentUnits;
      oldest.spent += spentUnits;
      remaining -= spentUnits;
      if (oldest.unspent === 0) this.#grants.shift();
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
    if (this.#unspent === 0 || now < this.#pausedUntil || now < this.#earlyRequestsFrom)
      return false;
    const rate = this.#currentRate(now);
    return (
      this.#unspent <=
      Math.max(this.#target(rate) * SHARE_AT_REQUEST, rate * this.#roundTrip * ROUND_TRIPS)
    );
  }

  /** Returns the number of units to request. `waiting` is the cost of all waiting takes. */
  planRequest(waiting: number, now: number): number {
    const size = Math.min(
      this.#target(this.#currentRate(now)),
      Math.max(1, this.#lastSize * MAX_GROWTH),
    );
    this.#lastSize = Math.max(size, waiting - this.inHand(now));
    return this.#lastSize;
  }

  /** Records the reply to a request. `random` is a number from 0 to 1. */
  recordReply(
    reply: UnitsReply,
    requested: number,
    sentAt: number,
    now: number,
    random: number,
  ): void {
    const { id, granted, limit, remaining, wait, reset } = reply;
    this.#roundTrip += (now - sentAt - this.#roundTrip) * (this.#roundTrip ? SMOOTHING : 1);
    this.#limit = limit;
    this.#limitUntil = now + LONGEST_PAUSE;
    const free = limit ? Math.min(remaining / limit / AMPLE_SHARE, 1) : 0;
    this.#batchSeconds = BATCH_SECONDS_AT_LIMIT + (BATCH_SECONDS - BATCH_SECONDS_AT_LIMIT) * free;
    this.#freeAt = wait === null ? null : now + wait;
    if (granted > 0) {
      // The units were charged after `sentAt`, so they expire early rather than late.
      this.#grants.push({ id, expiresAt: sentAt + this.#keep, unspent: granted, spent: 0 });
      this.#unspent += granted;
    }
    if (granted >= requested) {
      this.#emptyGrants = this.#pausedUntil = 0;
      return;
    }
    let pause =
      Math.min(this.#keep, reset) * PAUSE_SHARE * 2 ** Math.min(this.#emptyGrants, MAX_DOUBLINGS);
    pause = Math.min(pause, LONGEST_PAUSE);
    const randomPart = pause * JITTER_SHARE * random;
    if (granted > 0) {
      this.#emptyGrants = 0;
    } else {
      this.#emptyGrants++;
      pause = Math.max(pause, Math.min(wait ?? LONGEST_PAUSE, LONGEST_PAUSE));
    }
    this.#pausedUntil = now + pause + randomPart;
  }

  /** Delays the next early request, after a request without a reply. */
  recordFailure(now: number): void {
    this.#earlyRequestsFrom = now + this.#keep * PAUSE_SHARE;
  }

  /** Time at which the oldest units expire; undefined without units. */
  get expiresAt(): number | undefined {
    return this.#grants[0]?.expiresAt;
  }

  /** Removes and returns the expired grants, to be settled. */
  takeExpired(): Grant[] {
    const grants = this.#expired;
    if (grants.length > 0) this.#expired = [];
    return grants;
  }

  /** Removes and returns all grants, to be settled. */
  takeAll(): Grant[] {
    const grants = [...this.#expired, ...this.#grants];
    this.#expired = [];
    this.#grants = [];
    this.#unspent = 0;
    return grants;
  }

  #currentRate(now: number): number {
    return this.#rate * Math.exp((this.#rateAt - now) / RATE_TIME);
  }

  /** Returns the size of a batch at this rate, before `MAX_GROWTH` bounds it. */
  #target(rate: number): number {
    const largest = Math.min(this.#limit * this.#share, this.#largest);
    return Math.max(1, Math.floor(Math.min(rate * this.#batchSeconds, largest)));
  }
}
