/** How a limiter is set up. */

import type { Log } from "./breaker.js";
import type { Duration } from "./limits.js";
import type { ManualClock } from "./memory/clock.js";
import type { OnOutage, SetupErrors } from "./outage.js";

export interface LimiterOptions {
  /** What every key begins with. Nothing by default. */
  readonly prefix?: string;
  /**
   * Whether calls bring an idempotency key where charging them twice would matter: for more than one
   * unit, or more than a hundredth of the limit. true by default. false: none does, and a call whose
   * reply was lost is not sent again.
   */
  readonly once?: boolean;
  /** How long a call may take, with all that is sent again. 250 ms by default. */
  readonly timeout?: Duration;
  /** How long calls wait for a connection that is being made. 2 seconds by default. */
  readonly connectTimeout?: Duration;
  /** How often a call is sent again whose reply was lost. 1 by default. */
  readonly resends?: number;
  /** After so many failures in a row nobody asks ... 3 by default. What fails many calls is one. */
  readonly failures?: number;
  /** ... for this long. Then one call tries again. 1 second by default. */
  readonly pause?: Duration;
  /** Whether denied calls are answered by this process until their `wait` is over. true by default. */
  readonly rememberDenials?: boolean;
  /**
   * What holds while the server does not decide:
   * - "open", the default: everything passes;
   * - "closed": nothing does;
   * - "raise": an UnavailableError is thrown;
   * - a share: this process's part of each limit, in its own memory.
   *
   * A mistake is no outage. Nor is a key without room: it is always denied.
   */
  readonly onOutage?: OnOutage;
  /**
   * What a mistake of setup leads to, such as a wrong password: "raise", the default, a SetupError;
   * "outage": what holds in an outage. The log is told in any case.
   */
  readonly setupErrors?: SetupErrors;
  /**
   * Told when an outage begins and when it is over ("warn"), and of what somebody has to mend
   * ("error"). console.warn and console.error by default.
   */
  readonly log?: Log;
  /** Milliseconds that never go back. performance.now by default. */
  readonly now?: () => number;
  /** In tests, with "memory" in place of a client: a clock that the test moves. */
  readonly clock?: ManualClock;
}
