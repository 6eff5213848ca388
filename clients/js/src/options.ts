/** Options of a limiter. */

import type { Log } from "./breaker.js";
import type { Duration } from "./limits.js";
import type { ManualClock } from "./memory/clock.js";
import type { OnOutage, SetupErrors } from "./outage.js";

export interface LimiterOptions {
  /** Prefix of every key. Empty by default. */
  readonly prefix?: string;
  /**
   * Give calls an idempotency key where charging them twice would matter: for more than one unit,
   * or more than a hundredth of the limit. true by default. false: calls have no idempotency key,
   * and a call whose reply was lost is not resent.
   */
  readonly once?: boolean;
  /** Timeout of a call, including resends. 250 ms by default. */
  readonly timeout?: Duration;
  /** Timeout of calls for a connection that is being established. 2 seconds by default. */
  readonly connectTimeout?: Duration;
  /** Number of times that a call is resent after its reply was lost. 1 by default. */
  readonly resends?: number;
  /**
   * Number of consecutive failures after which no call is sent for `pause`. 3 by default. Calls
   * that fail together count once.
   */
  readonly failures?: number;
  /** Time after these failures until one call is sent as a probe. 1 second by default. */
  readonly pause?: Duration;
  /** Answer denied calls in this process until their `wait` is over. true by default. */
  readonly rememberDenials?: boolean;
  /**
   * Fallback while the server does not decide:
   * - "open", the default, allows every call;
   * - "closed" denies every call;
   * - "raise" throws an UnavailableError;
   * - `{ share }` decides in this process, by this share of each limit.
   *
   * A misconfiguration is not an outage. A full key is not an outage either, and always denies.
   */
  readonly onOutage?: OnOutage;
  /**
   * Reaction to a misconfiguration such as a wrong password: "raise", the default, throws a
   * SetupError; "outage" falls back as in an outage. Both log the error.
   */
  readonly setupErrors?: SetupErrors;
  /**
   * Called at the beginning and the end of an outage ("warn"), and for errors that need an operator
   * ("error"). console.warn and console.error by default.
   */
  readonly log?: Log;
  /** Monotonic clock in milliseconds. performance.now by default. */
  readonly now?: () => number;
  /** Clock that a test moves, for a limiter with "memory" in place of a client. */
  readonly clock?: ManualClock;
}
