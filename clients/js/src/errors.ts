/** What can go wrong, and what the caller is told of it. */

/** No policy of these names exists. Set one and call again. */
export class NoPolicyError extends Error {
  override readonly name = "NoPolicyError";
}

/** Nobody decided: the server did not answer in time, or cannot decide at the moment. */
export class OutageError extends Error {
  override readonly name = "OutageError";
}

/** A lease was not renewed in time, or somebody else holds it. */
export class LeaseLostError extends Error {
  override readonly name = "LeaseLostError";
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

const UNABLE =
  /^(OOM|LOADING|BUSY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|READONLY|NOREPLICAS|MISCONF|UNKILLABLE) /;

export function failureOf(error: unknown): Failure {
  const message = messageOf(error);
  // Servers begin an error with a code. What clients say of connections begins like a sentence.
  if (!/^[A-Z][A-Z0-9_]+ /.test(message)) return "lost";
  return UNABLE.test(message) || isModuleMissing(message) ? "unable" : "refused";
}

/** In the words of whoever has to do something about it. */
export function explained(error: unknown): Error {
  const message = messageOf(error);
  if (message.startsWith("NOPOLICY ")) {
    return new NoPolicyError(message.slice("NOPOLICY ".length), { cause: error });
  }
  if (isModuleMissing(message)) return new Error(MODULE_MISSING, { cause: error });
  return error instanceof Error ? error : new Error(message);
}

/** The key remembers as many ids as it may: the call is in order but for its id. */
export function isFullOfIds(error: unknown): boolean {
  return /^ERR the key has \d+ entries, as many as ratelimit\.max-ids/.test(messageOf(error));
}

/** Redis quotes the command in one way, and did in another until 7.0. */
function isModuleMissing(message: string): boolean {
  return /^ERR unknown command ['`]RL\./i.test(message);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : `${error}`;
}
