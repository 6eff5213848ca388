/** Errors of this package. */

/** Base class of all errors of this package. */
export class RateLimitError extends Error {
  override readonly name: string = "RateLimitError";
}

/** Rejection of a malformed call by the server. */
export class CallError extends RateLimitError {
  override readonly name: string = "CallError";
}

/**
 * Misconfiguration of the server, its users, its keys or the application: a wrong password, no
 * permission, no module, a key of another type, keys of two slots. The message says what to do. A
 * misconfiguration is not an outage, so `onOutage` does not apply.
 */
export class SetupError extends RateLimitError {
  override readonly name: string = "SetupError";
}

/** Missing policy: no policy with one of the names exists. Set one and call again. */
export class NoPolicyError extends SetupError {
  override readonly name = "NoPolicyError";
}

/**
 * Lack of room: a key has its maximum number of entries, or the server's memory is full. `take` and
 * `peek` return a denial with this error; calls without a decision throw it.
 */
export class FullError extends RateLimitError {
  override readonly name = "FullError";
}

/** Outage: the server is unreachable, too slow, or in a state in which it refuses calls. */
export class UnavailableError extends RateLimitError {
  override readonly name = "UnavailableError";
}

/** Loss of a lease that was not renewed in time. */
export class LeaseLostError extends RateLimitError {
  override readonly name = "LeaseLostError";
}
