/**
 * Classification of the server's error replies: their cause, and a remedy.
 *
 * The packages for other languages have the same table; `clients/replies.json` tests every package.
 */

import {
  CallError,
  FullError,
  NoPolicyError,
  SetupError,
  UnavailableError,
  type RateLimitError,
} from "./errors.js";

/**
 * Cause of an error reply:
 * - "outage": the server cannot decide at the moment, and `onOutage` decides.
 * - "caller": the call is malformed.
 * - "operator": the server, its users, its keys or the application are misconfigured.
 * - "full": the key or the server has no room. Nothing was charged.
 */
export type Cause = "outage" | "caller" | "operator" | "full";

/** Prefix of the reply, its cause, and a remedy. */
type Row = readonly [prefix: string, cause: Cause, remedy?: string];

const PASSWORD = "give the connection its user and password, as in redis://user:password@host";
const NO_PASSWORD = "the server has no password for this user: leave it out of the URL";
const MODULE =
  "the redis-ratelimit module is not loaded: start the server with " +
  "--loadmodule /path/to/libredis_ratelimit.so policies yes";
const CLUSTER = "this server is a node of a cluster: use a client for clusters";
const NO_CLUSTER = "this server is no cluster: use a client for one server";
const DATABASE = "choose another database in the URL";

/** Rows of the table. The first one whose prefix matches applies. */
const TABLE: readonly Row[] = [
  ["LOADING ", "outage"],
  ["BUSY ", "outage"],
  ["MASTERDOWN ", "outage"],
  ["CLUSTERDOWN ", "outage"],
  ["TRYAGAIN ", "outage"],
  ["READONLY ", "outage"],
  ["REDIRECT ", "outage"],
  ["NOREPLICAS ", "outage"],
  ["MISCONF ", "outage"],
  ["UNBLOCKED ", "outage"],
  ["ERR max number of clients", "outage"],
  ["ERR internal error in module", "outage"],
  ["NOAUTH ", "operator", PASSWORD],
  ["WRONGPASS ", "operator", PASSWORD],
  ["ERR invalid password", "operator", PASSWORD],
  ["ERR AUTH ", "operator", NO_PASSWORD],
  ["ERR Client sent AUTH", "operator", NO_PASSWORD],
  [
    "NOPERM ",
    "operator",
    "let the connection's user run this command on these keys, by ACL SETUSER",
  ],
  ["DENIED ", "operator", "the server is in protected mode: give it a password"],
  ["ERR unknown command", "operator", MODULE],
  [
    "WRONGTYPE ",
    "operator",
    "the key was made by something else or under another algorithm: " +
      "give the limit another key, or delete this one",
  ],
  ["CROSSSLOT ", "operator", "give the keys of one call one tag, as in {acme}:user and {acme}:all"],
  ["NOPOLICY ", "operator", "set it, by RL.POLICYSET"],
  ["MOVED ", "operator", CLUSTER],
  ["ASK ", "operator", CLUSTER],
  ["ERR This instance has cluster support disabled", "operator", NO_CLUSTER],
  ["ERR DB index is out of range", "operator", DATABASE],
  ["ERR invalid DB index", "operator", DATABASE],
  ["ERR SELECT is not allowed in cluster mode", "operator", DATABASE],
  ["ERR this server keeps policies only if", "operator"],
  ["ERR the policy was set by a later version", "operator", "update the module of this server"],
  ["ERR the policy already has the highest", "operator"],
  ["OOM ", "full", "give the server more memory, by maxmemory"],
  ["ERR the key has ", "full"],
  ["ERR there are ", "full"],
];

function rowOf(reply: string): Row {
  const row = TABLE.find(([prefix]) => reply.startsWith(prefix));
  // The module's errors about malformed calls begin with ERR. Other codes are unknown.
  return row ?? ["", reply.startsWith("ERR ") ? "caller" : "operator"];
}

export function causeOf(reply: string): Cause {
  return rowOf(reply)[1];
}

/** Converts an error reply to an error of this package, with a remedy in its message. */
export function explainedError(reply: string, cause: unknown): RateLimitError {
  const [, replyCause, remedy] = rowOf(reply);
  // The reply for an unknown command repeats the entire command, which does not help.
  const text = remedy === MODULE ? [] : [reply.replace(/^ERR /, "").replace(/\.$/, "")];
  const message = [...text, ...(remedy === undefined ? [] : [remedy])].join(": ");
  switch (replyCause) {
    case "outage":
      return new UnavailableError(message, { cause });
    case "caller":
      return new CallError(message, { cause });
    case "full":
      return new FullError(message, { cause });
    case "operator":
      return reply.startsWith("NOPOLICY ")
        ? new NoPolicyError(message, { cause })
        : new SetupError(message, { cause });
  }
}

/** Code at the beginning of an error reply. Errors of client libraries begin like a sentence. */
const REPLY_CODE = /^[A-Z][A-Z0-9_]+ /;

/**
 * Rejection of a connection, not of a call. Some client libraries prefix it with their own text.
 */
const REFUSAL =
  /(?:NOAUTH|WRONGPASS|DENIED|ERR AUTH|ERR Client sent AUTH|ERR invalid password) .*/s;

/**
 * Reply to blocked clients of a server that becomes a replica: they must call the new primary.
 */
const UNBLOCKED_BY_FAILOVER = /^UNBLOCKED force /;

/** Redirection by a node, which a client of a cluster returns if it followed too many of them. */
const REDIRECTED = /^(MOVED|ASK) /;

/**
 * Returns the server's error reply to a call. Undefined if there was no reply, so that the outcome
 * of the call is unknown, or if the call has to go to another node.
 */
export function replyOf(error: unknown, isCluster: boolean): string | undefined {
  const message = messageOf(error);
  if (UNBLOCKED_BY_FAILOVER.test(message) || (isCluster && REDIRECTED.test(message)))
    return undefined;
  return REPLY_CODE.test(message) ? message : refusalOf(error);
}

/** Returns the error with which the server rejected a connection. */
export function refusalOf(error: unknown): string | undefined {
  const refusal = REFUSAL.exec(messageOf(error))?.[0];
  if (refusal !== undefined || !(error instanceof Error)) return refusal;
  // The error of a client that reaches no node of its cluster contains the error of a node.
  const { cause, lastNodeError } = error as Error & { lastNodeError?: unknown };
  const innerError = cause ?? lastNodeError;
  return innerError === undefined || innerError === null ? undefined : refusalOf(innerError);
}

/**
 * Returns `true` if a call was rejected for lack of room, and may pass without an idempotency key.
 */
export function mayPassWithoutId(reply: string): boolean {
  return /^(OOM |ERR the key has \d+ entries, as many as ratelimit\.max-ids )/.test(reply);
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : `${error}`;
}
