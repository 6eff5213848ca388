/** Limit with a name, bound to a limiter: `const api = limiter.limit("api", fixed(100, "1m"))`. */

import type { Keyed, PeekOptions, TakeOptions } from "./calls.js";
import type { Log } from "./breaker.js";
import type { Decision } from "./decision.js";
import type { LeaseOptions, Lease } from "./lease.js";
import { labelled } from "./keys.js";
import type { ConcurrencyLimit } from "./limits.js";
import { limitsOf, type Limits, type ParsedLimits } from "./rates.js";
import { refuseSketch } from "./sketches.js";
import type { Units, UnitsOptions } from "./units.js";

/** Methods of a limiter that a bound limit calls. */
export interface Charging {
  readonly log?: Log;
  take(key: string, limits: Limits, options?: TakeOptions): Promise<Decision>;
  takeAll(keyed: Keyed, options?: TakeOptions): Promise<Decision>;
  peek(key: string, limits: Limits, options?: PeekOptions): Promise<Decision>;
  reset(key: string): Promise<boolean>;
  giveBack(key: string, limits: Limits, cost?: number): Promise<Decision>;
  lease(key: string, limit: ConcurrencyLimit, options?: LeaseOptions): Promise<Lease>;
  units(key: string, limits: Limits, options?: UnitsOptions): Units;
}

export class BoundLimit<Limiter extends Charging = Charging> {
  readonly name: string;
  readonly limits: ParsedLimits;
  readonly limiter: Limiter;
  readonly #options: TakeOptions | undefined;

  /** Creates a bound limit. `options` are the defaults of every call. */
  constructor(limiter: Limiter, name: string, limits: Limits, options?: TakeOptions) {
    this.limiter = limiter;
    this.name = name;
    this.limits = labelled(limitsOf(limits), name);
    this.#options = options;
  }

  /**
   * Returns the key of a caller: `name:caller`. Without a caller, for a limit that all share:
   * `name`.
   */
  keyOf(caller?: string): string {
    if (caller === undefined) return this.name;
    if (typeof caller !== "string")
      throw new TypeError(`a key must be a string: ${String(caller)}`);
    return `${this.name}:${caller}`;
  }

  /** Charges the limits, all or none. */
  async take(caller?: string, options?: TakeOptions): Promise<Decision> {
    return this.limiter.take(this.keyOf(caller), this.limits, this.#withDefaults(options));
  }

  /** Limiter whose calls have the options of this bound limit by default. */
  get limiterWithDefaults(): Pick<Charging, "take" | "takeAll"> {
    return {
      take: (key, limits, options) => this.limiter.take(key, limits, this.#withDefaults(options)),
      takeAll: (keyed, options) => this.limiter.takeAll(keyed, this.#withDefaults(options)),
    };
  }

  /** Returns the decision that `take` would make, and charges nothing. */
  async peek(caller?: string, options?: PeekOptions): Promise<Decision> {
    const {
      once: _,
      ttl: __,
      wait: ___,
      refundable: ____,
      signal: _____,
      ...common
    } = this.#options ?? {};
    return this.limiter.peek(this.keyOf(caller), this.limits, { ...common, ...options });
  }

  /** Deletes the usage. Returns `true` if there was any. */
  async reset(caller?: string): Promise<boolean> {
    refuseSketch(this.limits);
    return this.limiter.reset(this.keyOf(caller));
  }

  /**
   * Gives back units of a caller. To give back a single charge, use `decision.settle(0)`.
   */
  async giveBack(caller?: string, cost = 1): Promise<Decision> {
    return this.limiter.giveBack(this.keyOf(caller), this.limits, cost);
  }

  /** Acquires a lease of a concurrency limit, which is renewed until it is released. */
  async lease(caller?: string, options?: LeaseOptions): Promise<Lease> {
    if (!("ttl" in this.limits)) throw new TypeError(`${this.name} is no concurrency limit`);
    return this.limiter.lease(this.keyOf(caller), this.limits as ConcurrencyLimit, options);
  }

  /** Returns units of a hot key, which are taken in batches. */
  units(caller?: string, options?: UnitsOptions): Units {
    return this.limiter.units(this.keyOf(caller), this.limits, options);
  }

  /**
   * Returns a function that charges the limit before each call of `run`, and throws a DeniedError
   * if the charge is denied. `key` returns the caller by the arguments; a TypeError if there is
   * none.
   */
  wrap<Args extends unknown[], Result>(
    run: (...args: Args) => Result | Promise<Result>,
    { key, ...options }: TakeOptions & { readonly key?: (...args: Args) => string } = {},
  ): (...args: Args) => Promise<Result> {
    return async (...args) => {
      const caller = key?.(...args);
      if (key && !caller)
        throw new TypeError(`the key of a call of ${this.name} is ${String(caller)}`);
      (await this.take(caller, options)).require();
      return await run(...args);
    };
  }

  #withDefaults(options: TakeOptions | undefined): TakeOptions | undefined {
    if (!this.#options) return options;
    return options ? { ...this.#options, ...options } : this.#options;
  }
}
