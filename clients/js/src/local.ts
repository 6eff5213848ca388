/** Stands in while the server is away: this process's share of every limit, each a bucket in memory. */

import type { PeekOptions } from "./calls.js";
import { Decision, governs } from "./decision.js";
import type { KnownLimit, Limit } from "./limits.js";
import { Bucket } from "./memory/pools.js";
import { ceilDiv, max, min, UNIT } from "./memory/rule.js";

type Usage = ReturnType<Bucket["unused"]>;

export interface LocalOptions {
  /** This process's part of each limit: 0.25 for four processes. */
  readonly share: number;
  /**
   * Stands in for a policy, whose numbers only the server knows; its share holds too. Without it
   * calls by a policy pass. So do leases, which nobody here could release.
   */
  readonly otherwise?: KnownLimit;
}

/** The limits of a call, each with its key. */
export type Charged = readonly (readonly [key: string, limit: Limit])[];

/** How many callers are remembered; the least recently seen are forgotten. */
const REMEMBERED = 10_000;

export class LocalLimits {
  readonly #share: number;
  readonly #otherwise: KnownLimit | undefined;
  readonly #now: () => number;
  // In the order in which they were last seen.
  readonly #usages = new Map<string, Usage>();
  readonly #buckets = new WeakMap<Limit, Bucket>();

  /** The clock counts milliseconds, and must not jump when the time of day is set. */
  constructor({ share, otherwise }: LocalOptions, now: () => number) {
    if (!(share > 0 && share <= 1))
      throw new RangeError(`share must be above 0, up to 1: ${share}`);
    this.#share = share;
    this.#otherwise = otherwise;
    this.#now = now;
  }

  /**
   * All limits are charged or none is, as on the server; a negative cost gives back. Undefined if
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
    const asked = cost < 0 ? -millionths(-cost, floorDiv) : millionths(cost, ceilDiv);
    const units = upto ? unitsThatFit(found, asked) : asked;
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
      // Of what was forced, until usage is within the limit again.
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
    // A share of a small limit is one unit still; a limit of 0 stays 0.
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
    // It was seen again.
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

/** At least 1: if there is none, that is what would be granted first. */
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

/** The digits that a number shows, and the power of ten that they are multiplied by. */
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
