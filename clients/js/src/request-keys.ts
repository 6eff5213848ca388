/** Keys of requests, by a value of the application or by the client's address. */

import { network, type NetworkOptions } from "./address.js";
import type { Log } from "./breaker.js";
import type { Keyed } from "./calls.js";
import { OF_ADDRESS, UNKNOWN, checkName, checkPrefix, labelled } from "./keys.js";
import type { ParsedLimits } from "./rates.js";

/** Result of a key function for a request that is not limited. */
export const UNLIMITED: unique symbol = Symbol.for("redis-ratelimit.unlimited");

export interface KeyOptions<Request> extends NetworkOptions {
  /**
   * Returns the client of a request, such as its user. By default, and if it returns undefined,
   * null or an empty string, the client is its address, in separate keys that no value of this
   * function can reach. UNLIMITED: the request is not limited.
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

export interface Naming {
  /** Prefix of every key, including keys by address. */
  readonly before: string;
  /** Prefix of the middleware's own limiter. */
  readonly shown: string;
  readonly name: string | undefined;
  /** Prefix in place of a name. */
  readonly prefix: string;
  /** Canonical words of the limits, in place of name and prefix. */
  readonly spec: string | undefined;
}

/** Minimum time between two log messages, in milliseconds. */
const REPEATED_MS = 60_000;

export class RequestKeys<Request> {
  readonly #addressOf: AddressOf<Request>;
  readonly #options: KeyOptions<Request>;
  readonly #naming: Naming;
  readonly #log: Log;
  readonly #head: string | undefined;
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
    const instead = prefix || (spec === undefined ? undefined : `${spec}:`);
    this.#head = name === undefined ? instead : `${name}:`;
  }

  /** Returns the key of a request, or undefined if it is not limited. */
  of(request: Request): string | undefined {
    const { key } = this.#options;
    if (!key) return this.#ofAddress(this.#addressIn(request), "");
    const caller = key(request);
    if (caller === UNLIMITED) return undefined;
    if (typeof caller === "string" && caller !== "")
      return this.#naming.before + this.#begin + caller;
    if (caller !== undefined && caller !== null && caller !== "") {
      throw new TypeError(`a key must be a string: ${String(caller)}`);
    }
    return this.#ofAddress(this.#addressOf(request), OF_ADDRESS);
  }

  /** Returns the key of a client by the value of `key`, or by an address. */
  keyOf(caller?: string | null, address?: string | null): string {
    const { before, shown } = this.#naming;
    if (caller) return shown + before + this.#begin + caller;
    const client = network(address, this.#options);
    const kind = this.#options.key || client === undefined ? OF_ADDRESS : "";
    return shown + before + kind + this.#begin + (client ?? UNKNOWN);
  }

  /** Returns limits of several keys with the prefixes that they have on the server. */
  prefixed(keyed: Keyed): Keyed {
    const { before, name, prefix } = this.#naming;
    const first = name === undefined ? prefix : before;
    if (first === "") return keyed;
    return Object.fromEntries(Object.entries(keyed).map(([key, limit]) => [first + key, limit]));
  }

  /** Labels the limits that a function returned with the name of the middleware. */
  labelled(limits: ParsedLimits): ParsedLimits {
    const { name } = this.#naming;
    return name === undefined ? limits : labelled(limits, name);
  }

  get #begin(): string {
    if (this.#head !== undefined) return this.#head;
    throw new TypeError(
      'limits from a function need a name: rateLimit(client, limits, { name: "api" })',
    );
  }

  #addressIn(request: Request): string | undefined {
    const address = this.#addressOf(request);
    if (address !== null) return address;
    throw new TypeError("the address is not known here: say by key or address whose limit it is");
  }

  #ofAddress(address: string | null | undefined, kind: string): string {
    const client = network(address, this.#options);
    if (client !== undefined) return this.#naming.before + kind + this.#begin + client;
    const key = this.#naming.before + OF_ADDRESS + this.#begin + UNKNOWN;
    const now = performance.now();
    if (now - this.#loggedAt >= REPEATED_MS) {
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
