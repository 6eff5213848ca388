/** What can go wrong, and what the caller is told of it. */

import type { Decision } from "./decision.js";

/** The base of all. */
export class RateLimitError extends Error {
  override readonly name: string = "RateLimitError";
}

/** The server refuses the call as it is: a mistake in its words. */
export class CallError extends RateLimitError {
  override readonly name: string = "CallError";
}

/** No policy of these names exists. Set one and call again. */
export class NoPolicyError extends CallError {
  override readonly name = "NoPolicyError";
}

/** The server did not decide: it is away, too slow, or in a state in which it refuses calls. */
export class UnavailableError extends RateLimitError {
  override readonly name = "UnavailableError";
}

/** A lease was not renewed in time, or somebody else holds it. */
export class LeaseLostError extends RateLimitError {
  override readonly name = "LeaseLostError";
}

/** There is no room for a lease. `decision.wait` says when there may be. */
export class DeniedError extends RateLimitError {
  override readonly name = "DeniedError";
  readonly decision: Decision;

  constructor(decision: Decision) {
    super(`denied: the limit is ${decision.limit}`);
    this.decision = decision;
  }
}

const MODULE_MISSING =
  "the redis-ratelimit module is not loaded: start the server with " +
  "--loadmodule /path/to/libredis_ratelimit.so";

/**
 * "refused": the call is wrong, and sending it again will not help.
 * "unable": the server answers, but cannot decide at the moment.
 * "lost": there was no answer. Whether the call was carried out is not known.
 */
export type Failure = "refused" | "unable" | "lost";

// A key of another type, such as one that had another algorithm before, is no reason to fail its requests.
const UNABLE =
  /^(WRONGTYPE|OOM|LOADING|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|READONLY|NOREPLICAS|MISCONF|UNKILLABLE|UNBLOCKED) /;

// Said to those who wait by a server that is no longer the primary: they have to ask the next.
const SENT_AWAY = /^UNBLOCKED force /;

export function failureOf(error: unknown): Failure {
  const message = messageOf(error);
  // Servers begin an error with a code. What clients say of connections begins like a sentence.
  if (!/^[A-Z][A-Z0-9_]+ /.test(message) || SENT_AWAY.test(message)) return "lost";
  return UNABLE.test(message) || isModuleMissing(message) ? "unable" : "refused";
}

/** In the words of whoever has to do something about it. */
export function explained(error: unknown): Error {
  const message = messageOf(error);
  if (message.startsWith("NOPOLICY ")) {
    return new NoPolicyError(message.slice("NOPOLICY ".length), { cause: error });
  }
  switch (failureOf(error)) {
    case "refused":
      return new CallError(message, { cause: error });
    case "unable":
      return new UnavailableError(isModuleMissing(message) ? MODULE_MISSING : message, {
        cause: error,
      });
    case "lost":
      return error instanceof UnavailableError
        ? error
        : new UnavailableError(message, { cause: error });
  }
}

/** The key remembers as many ids as it may: the call is in order but for its id. */
export function isFullOfIds(error: unknown): boolean {
  return (
    error instanceof CallError &&
    /^ERR the key has \d+ entries, as many as ratelimit\.max-ids/.test(error.message)
  );
}

/** Redis quotes the command in one way, and did in another until 7.0. */
function isModuleMissing(message: string): boolean {
  return /^ERR unknown command ['`]RL\./i.test(message);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : `${error}`;
}
