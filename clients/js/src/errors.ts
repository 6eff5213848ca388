/** What can go wrong, and what the caller is told of it. */

/** The base of all. */
export class RateLimitError extends Error {
  override readonly name: string = "RateLimitError";
}

/** The server refuses the call as it is: a mistake in its words. */
export class CallError extends RateLimitError {
  override readonly name: string = "CallError";
}

/**
 * The server, its users, its keys or the application are set up in a way that cannot work: a wrong
 * password, no permission, no module, a key of another type, keys of two slots. The message says what
 * to do. It is no outage, so `onOutage` does not hold.
 */
export class SetupError extends RateLimitError {
  override readonly name: string = "SetupError";
}

/** No policy of these names exists. Set one and call again. */
export class NoPolicyError extends SetupError {
  override readonly name = "NoPolicyError";
}

/**
 * There is no room: a key has as many entries as it may have, or the server's memory is full. `take`
 * and `peek` are denied; what decides nothing throws this.
 */
export class FullError extends RateLimitError {
  override readonly name = "FullError";
}

/** The server did not decide: it is away, too slow, or in a state in which it refuses calls. */
export class UnavailableError extends RateLimitError {
  override readonly name = "UnavailableError";
}

/** A lease was not renewed in time, or somebody else holds it. */
export class LeaseLostError extends RateLimitError {
  override readonly name = "LeaseLostError";
}
