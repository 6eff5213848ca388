/**
 * Local limits, a fallback during an outage: this process's share of every limit, as buckets in
 * memory.
 */

import type { PeekOptions } from "./calls.js";
import { Decision, governs } from "./decision.js";
import type { KnownLimit, Limit } from "./limits.js";
import { Bucket } from "./memory/pools.js";
import { ceilDiv, max, min, UNIT } from "./memory/rule.js";

type Usage = ReturnType<Bucket["unused"]>;

export interface LocalOptions {
  /** Share of this process in each limit: 0.25 for four processes. */
  readonly share: number;
  /**
   * Limit that replaces a policy, whose limits only the server knows; the share applies to it, too.
   * Without it, calls by a policy are allowed. Leases are always allowed, as they could not be
   * released here.
   */
  readonly otherwise?: KnownLimit;
}

/** Limits of a call, each with its key. */
export type Charged = readonly (readonly [key: string, limit: Limit])[];

/** Maximum number of buckets. The least recently used ones are evicted. */
const REMEMBERED = 10_000;

export class LocalLimits {
  readonly #share: number;
  readonly #otherwise: KnownLimit | undefined;
  readonly #now: () => number;
  // In the order of their last use.
  readonly #usages = new Map<string, Usage>();
  readonly #buckets = new WeakMap<Limit, Bucket>();

  /** Creates the limits. `now` returns milliseconds, and must be monotonic. */
  constructor({ share, otherwise }: LocalOptions, now: () => number) {
    if (!(share > 0 && share <= 1))
      throw new RangeError(`share must be above 0, up to 1: ${share}`);
    this.#share = share;
    this.#otherwise = otherwise;
    this.#now = now;
  }

  /**
   * Charges all limits or none, as on the server; a negative cost gives back. Returns undefined if
   * none of them is known.
   */
  take(
    charged: Charged,
    { cost = 1, upto = false, force = false }: Pick<PeekOptions, "cost" | "upto" | "force">,
    peeks = false,
  ): Decision | undefined {
    const now = BigInt(Math.round(this.#now() * 1000));
    const found = charged.flatMap(([key, limit]) => {
      const known = this.#known(limit);
      if (!known) return [];
      const bucket = this.#bucketOf(limit, known);
      const name = `${key} ${known.words.join(" ")}`;
      const own = limit.cost === undefined ? undefined : millionths(limit.cost, ceilDiv);
      const usage = this.#usageOf(name, bucket);
      const room = bucket.remaining(usage, now);
      return [{ name, limit, bucket, usage, room, window: known.window, own }];
    });
    if (found.length === 0) return undefined;
    const charge = cost < 0 ? -millionths(-cost, floorDiv) : millionths(cost, ceilDiv);
    const units = upto ? unitsThatFit(found, charge) : charge;
    const looked = found.map((one) => {
      const { bucket, usage, own = units } = one;
      const givesBack = one.own === undefined && cost < 0;
      const fits = givesBack || bucket.verdict(usage, now, own).kind === "allowed";
      return { ...one, cost: own, givesBack, fits };
    });
    const isAllowed = looked.every(({ fits }) => fits);
    const charges = !peeks && (isAllowed || force);
    const granted = upto ? { granted: isAllowed ? Number(units / UNIT) : 0 } : {};
    const each = looked.map((one) => {
      const { name, limit, bucket, usage, window, cost, givesBack, fits } = one;
      if (charges) {
        usage.moveBack(now);
        if (givesBack) bucket.giveBack(usage, now, -cost);
        else bucket.charge(usage, now, cost);
        this.#remember(name, usage);
      }
      const isNever = cost > bucket.limit && !force;
      // The wait of a forced charge lasts until usage is within the limit again.
      const wait = () => msOf(bucket.debtAfter(usage, now, charges ? 0n : cost));
      return new Decision({
        allowed: fits,
        limit: Number(bucket.limit / UNIT),
        remaining: Number(bucket.remaining(usage, now) / UNIT),
        waitMs: fits ? 0 : isNever ? null : wait(),
        resetMs: msOf(bucket.reset(usage, now)),
        source: "local",
        window,
        ...granted,
        ...(limit.name === undefined ? {} : { name: limit.name }),
        ...(limit.label === undefined ? {} : { label: limit.label }),
      });
    });
    const governing = governs(each, isAllowed, (index) => Number(looked[index]!.cost) / 1e6);
    return governing.but({ allowed: isAllowed, each });
  }

  #known(limit: Limit): KnownLimit | undefined {
    if ("policies" in limit) return this.#otherwise;
    const { quota, window } = limit;
    const isKnown = quota !== undefined && window !== undefined && !("ttl" in limit);
    return isKnown ? { ...limit, quota, window } : undefined;
  }

  #bucketOf(limit: Limit, { quota, window }: KnownLimit): Bucket {
    const found = this.#buckets.get(limit);
    if (found) return found;
    const whole = millionths(quota, floorDiv);
    const share = this.#share === 1 ? whole : BigInt(Math.round(Number(whole) * this.#share));
    // The share of a small limit is at least one unit; a limit of 0 stays 0.
    const capacity = min(whole, max(share, UNIT));
    const [digits, exponent] = decimal(window);
    const micros = exponent + 6;
    const [by, times] = [10n ** BigInt(Math.max(micros, 0)), 10n ** BigInt(Math.max(-micros, 0))];
    const made = new Bucket(capacity, (capacity || UNIT) * times, digits * by, false);
    this.#buckets.set(limit, made);
    return made;
  }

  #usageOf(name: string, bucket: Bucket): Usage {
    const usage = this.#usages.get(name);
    // Mark as most recently used.
    if (usage) this.#remember(name, usage);
    return usage ?? bucket.unused();
  }

  #remember(name: string, usage: Usage): void {
    this.#usages.delete(name);
    this.#usages.set(name, usage);
    if (this.#usages.size <= REMEMBERED) return;
    for (const oldest of this.#usages.keys()) {
      this.#usages.delete(oldest);
      break;
    }
  }
}

/**
 * Returns the units that fit, at least 1: without a free unit, the decision is that for one unit.
 */
function unitsThatFit(
  found: readonly { readonly room: bigint; readonly own: bigint | undefined }[],
  most: bigint,
): bigint {
  const own = found.filter(({ own }) => own === undefined);
  const free = (own.length > 0 ? own : found).map(({ room }) => room);
  return max(UNIT, (free.reduce(min, most) / UNIT) * UNIT);
}

function msOf(micros: bigint): number {
  return Number(ceilDiv(micros, 1000n));
}

/** Splits the shortest decimal form of a number into its digits and a power of ten. */
function decimal(shown: number): [digits: bigint, exponent: number] {
  const [, whole = "0", fraction = "", power = "0"] =
    /^(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(`${shown}`) ?? [];
  return [BigInt(whole + fraction), Number(power) - fraction.length];
}

/** Converts units to millionths, in which the server counts. */
function millionths(units: number, divided: (number: bigint, by: bigint) => bigint): bigint {
  const [digits, exponent] = decimal(units);
  const places = exponent + 6;
  if (places >= 0) return digits * 10n ** BigInt(places);
  return divided(digits, 10n ** BigInt(-places));
}

function floorDiv(number: bigint, by: bigint): bigint {
  return number / by;
}
