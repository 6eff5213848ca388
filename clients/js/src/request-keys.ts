/** Keys of requests, by a value of the application or by the client's address. */

import { network, type NetworkOptions } from "./address.js";
import type { Log } from "./breaker.js";
import type { Keyed } from "./calls.js";
import { ADDRESS_PREFIX, UNKNOWN, checkName, checkPrefix, labelled } from "./keys.js";
import type { ParsedLimits } from "./rates.js";

/** Result of a key function for a request that is not limited. */
export const UNLIMITED: unique symbol = Symbol.for("redis-ratelimit.unlimited");

export interface KeyOptions<Request> extends NetworkOptions {
  /**
   * Returns the caller of a request, such as its user. Without this function, and if it returns
   * undefined, null or an empty string, the caller is the client's address. Keys by address begin
   * with "ip:", so that no result of this function can equal them. UNLIMITED: the request is not
   * limited.
   */
  readonly key?: (request: Request) => string | null | undefined | typeof UNLIMITED;
  /** Returns the address of the client, if the framework does not know it. */
  readonly address?: (request: Request) => string | null | undefined;
}

/**
 * Function that returns the address of a request; undefined if it has none, null if the platform
 * does not provide it.
 */
export type AddressOf<Request> = (request: Request) => string | null | undefined;

/** Parts of the keys of a middleware, apart from the caller. */
export interface Naming {
  /** Prefix of every key that the middleware passes to its limiter. */
  readonly keyPrefix: string;
  /** Prefix that the limiter adds, if the middleware created the limiter. */
  readonly limiterPrefix: string;
  readonly name: string | undefined;
  /** Option `prefix`, which stands in place of a name if there is none. */
  readonly prefix: string;
  /** Canonical words of the limits, in place of name and prefix; undefined if unknown. */
  readonly spec: string | undefined;
}

/** Minimum milliseconds between two log messages. */
const LOG_INTERVAL_MS = 60_000;

export class RequestKeys<Request> {
  readonly #addressOf: AddressOf<Request>;
  readonly #options: KeyOptions<Request>;
  readonly #naming: Naming;
  readonly #log: Log;
  /** Name, prefix or spec that keys begin with, after `keyPrefix` and "ip:". */
  readonly #optionalStem: string | undefined;
  #loggedAt = -Infinity;

  constructor(
    addressOf: AddressOf<Request>,
    options: KeyOptions<Request>,
    naming: Naming,
    log: Log,
  ) {
    const { name, prefix, spec } = naming;
    if (name !== undefined) checkName(name);
    else checkPrefix(prefix);
    network("", options);
    this.#addressOf = options.address ?? addressOf;
    this.#options = options;
    this.#naming = naming;
    this.#log = log;
    const unnamedStem = prefix || (spec === undefined ? undefined : `${spec}:`);
    this.#optionalStem = name === undefined ? unnamedStem : `${name}:`;
  }

  /** Returns the key of a request, or undefined if it is not limited. */
  of(request: Request): string | undefined {
    const { key } = this.#options;
    if (!key) return this.#keyOfAddress(this.#requiredAddressOf(request), "");
    const caller = key(request);
    if (caller === UNLIMITED) return undefined;
    if (typeof caller === "string" && caller !== "") {
      return this.#naming.keyPrefix + this.#stem + caller;
    }
    if (caller !== undefined && caller !== null && caller !== "") {
      throw new TypeError(`a key must be a string: ${String(caller)}`);
    }
    return this.#keyOfAddress(this.#addressOf(request), ADDRESS_PREFIX);
  }

  /** Returns the key on the server by the result of the option `key`, or by an address. */
  keyOf(caller?: string | null, address?: string | null): string {
    const { keyPrefix, limiterPrefix } = this.#naming;
    if (caller) return limiterPrefix + keyPrefix + this.#stem + caller;
    const client = network(address, this.#options);
    const mark = this.#options.key || client === undefined ? ADDRESS_PREFIX : "";
    return limiterPrefix + keyPrefix + mark + this.#stem + (client ?? UNKNOWN);
  }

  /** Returns limits of several keys with prefixed keys. */
  prefixed(keyed: Keyed): Keyed {
    const { keyPrefix, name, prefix } = this.#naming;
    const added = name === undefined ? prefix : keyPrefix;
    if (added === "") return keyed;
    return Object.fromEntries(Object.entries(keyed).map(([key, limit]) => [added + key, limit]));
  }

  /** Labels the limits that a function returned with the name of the middleware. */
  labelled(limits: ParsedLimits): ParsedLimits {
    const { name } = this.#naming;
    return name === undefined ? limits : labelled(limits, name);
  }

  get #stem(): string {
    if (this.#optionalStem !== undefined) return this.#optionalStem;
    throw new TypeError(
      'limits from a function need a name: rateLimit(client, limits, { name: "api" })',
    );
  }

  /** Returns the address of a request. Throws a TypeError if the platform does not know it. */
  #requiredAddressOf(request: Request): string | undefined {
    const address = this.#addressOf(request);
    if (address !== null) return address;
    throw new TypeError("the address is not known here: say by key or address whose limit it is");
  }

  /** Returns the key of an address. `mark` distinguishes the key from those of a `key` function. */
  #keyOfAddress(address: string | null | undefined, mark: string): string {
    const client = network(address, this.#options);
    const { keyPrefix } = this.#naming;
    if (client !== undefined) return keyPrefix + mark + this.#stem + client;
    const key = keyPrefix + ADDRESS_PREFIX + this.#stem + UNKNOWN;
    const now = performance.now();
    if (now - this.#loggedAt >= LOG_INTERVAL_MS) {
      this.#loggedAt = now;
      const description = address ? `the address ${JSON.stringify(address)}` : "no address";
      this.#log(
        `rate limits: a request has ${description}: all such share the key ${key}`,
        "error",
      );
    }
    return key;
  }
}
