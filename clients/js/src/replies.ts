/**
 * What an error reply of the server means: whose it is to mend, and what to do.
 *
 * The package for Python has this table too, and `clients/replies.json` holds both to it.
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
 * "outage": the server cannot decide at the moment, and `onOutage` decides.
 * "caller": the call is wrong as it is.
 * "operator": the server, its users, its keys or the application are set up in a way that cannot work.
 * "full": there is no room for what the call would add. Nothing was charged.
 */
export type Kind = "outage" | "caller" | "operator" | "full";

/** What the reply begins with, what it is, and what to do. */
type Row = readonly [begins: string, kind: Kind, remedy?: string];

const PASSWORD = "give the connection its user and password, as in redis://user:password@host";
const NO_PASSWORD = "the server has no password for this user: leave it out of the URL";
const MODULE =
  "the redis-ratelimit module is not loaded: start the server with " +
  "--loadmodule /path/to/libredis_ratelimit.so policies yes";
const CLUSTER = "this server is a node of a cluster: use a client for clusters";
const NO_CLUSTER = "this server is no cluster: use a client for one server";
const DATABASE = "choose another database in the URL";

/** The first row that the reply begins with rules. */
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
  const found = TABLE.find(([begins]) => reply.startsWith(begins));
  // The module's own, of the words of a call; or a code that nobody has told us of.
  return found ?? ["", reply.startsWith("ERR ") ? "caller" : "operator"];
}

export function kindOf(reply: string): Kind {
  return rowOf(reply)[1];
}

/** As an error of this package, in the words of whoever has to do something about it. */
export function explained(reply: string, cause: unknown): RateLimitError {
  const [, kind, remedy] = rowOf(reply);
  // What was sent is in it, and is of no help.
  const text = remedy === MODULE ? [] : [reply.replace(/^ERR /, "").replace(/\.$/, "")];
  const message = [...text, ...(remedy === undefined ? [] : [remedy])].join(": ");
  switch (kind) {
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

/** Servers begin an error with a code. What clients say of connections begins like a sentence. */
const REPLY = /^[A-Z][A-Z0-9_]+ /;

/** Said to a connection, not to a call. Some clients put words of their own before it. */
const REFUSAL =
  /(?:NOAUTH|WRONGPASS|DENIED|ERR AUTH|ERR Client sent AUTH|ERR invalid password) .*/s;

/** Said to those who wait by a server that is no longer the primary: they have to ask the next. */
const SENT_AWAY = /^UNBLOCKED force /;

/** Said by a node at the end of as many redirections as a cluster's client follows. */
const REDIRECTED = /^(MOVED|ASK) /;

/**
 * The server's reply to a call, as it was sent. Undefined if there was none, so that it is not known
 * what became of the call, or if the call has to be made elsewhere.
 */
export function replyOf(error: unknown, isCluster: boolean): string | undefined {
  const message = messageOf(error);
  if (SENT_AWAY.test(message) || (isCluster && REDIRECTED.test(message))) return undefined;
  return REPLY.test(message) ? message : refusalOf(error);
}

/** What the server has said to a connection that it does not let in. */
export function refusalOf(error: unknown): string | undefined {
  const said = REFUSAL.exec(messageOf(error))?.[0];
  if (said !== undefined || !(error instanceof Error)) return said;
  // A client that found no node of its cluster says so, and behind that why.
  const { cause, lastNodeError } = error as Error & { lastNodeError?: unknown };
  const behind = cause ?? lastNodeError;
  return behind === undefined || behind === null ? undefined : refusalOf(behind);
}

/**
 * Whether a call that there is no room for may be in order but for its id: without it, it would add
 * less.
 */
export function mayPassWithoutId(reply: string): boolean {
  return /^(OOM |ERR the key has \d+ entries, as many as ratelimit\.max-ids )/.test(reply);
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : `${error}`;
}
