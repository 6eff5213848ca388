/** Client libraries that can send calls: ioredis, iovalkey, and node-redis from version 4 on. */

import type { Writable } from "node:stream";
import { setImmediate } from "node:timers";

import { wordsOf, type Call } from "./calls.js";

/** Common part of ioredis and iovalkey, for a client of one server or of a cluster. */
export interface IoredisClient {
  readonly options: object;
  call(name: string, ...words: never[]): unknown;
  sendCommand(command: never, ...more: never[]): unknown;
}

/** Client of node-redis for one server, or a pool of them. */
export interface NodeRedisClient {
  sendCommand(words: string[], options?: never): Promise<unknown>;
}

/** Client of node-redis for a cluster. */
export interface NodeRedisCluster {
  sendCommand(
    key: string | undefined,
    isReadOnly: boolean | undefined,
    words: string[],
    options?: never,
  ): Promise<unknown>;
  nodeClient(node: never): unknown;
}

export type Client = IoredisClient | NodeRedisClient | NodeRedisCluster;

/** Function that sends a call. An aborted signal cancels a call that has not been sent yet. */
export type Send = (call: Call<unknown>, signal?: AbortSignal) => Promise<unknown>;

export function isCluster(client: Client): boolean {
  return "nodeClient" in client || "nodes" in client;
}

export function senderOf(client: Client): Send {
  if ("call" in client) {
    const commandOf = commandsOf(client);
    const send = client.sendCommand.bind(client) as (command: Command) => Promise<unknown>;
    const cork = corkingOf(client);
    return (call) => {
      cork();
      return send(commandOf(call));
    };
  }
  if ("nodeClient" in client) {
    return (call, signal) => {
      const words = wordsOf(call);
      words.unshift(call.name);
      return client.sendCommand(
        call.keys[0] ?? call.route,
        call.readOnly,
        words,
        abortOptions(signal),
      );
    };
  }
  return (call, signal) => {
    const words = wordsOf(call);
    words.unshift(call.name);
    return client.sendCommand(words, abortOptions(signal));
  };
}

/** Part of an ioredis client: its socket, or the clients of a cluster's nodes. */
interface Connected {
  readonly stream?: Pick<Writable, "cork" | "uncork">;
  nodes?(role: "all"): Connected[];
}

/**
 * Runs a function at the end of the event loop's turn, even under the fake timers of an
 * application's tests.
 */
const atEndOfTurn = setImmediate;

/**
 * Returns a function that makes ioredis write the commands of one turn of the event loop together,
 * as node-redis does. Otherwise ioredis makes a system call for each command.
 */
function corkingOf(client: IoredisClient): () => void {
  let isCorked = false;
  return () => {
    if (isCorked) return;
    isCorked = true;
    const connected = client as Connected;
    const streams = (connected.nodes?.("all") ?? [connected]).map(({ stream }) => stream);
    for (const stream of streams) stream?.cork();
    atEndOfTurn(() => {
      isCorked = false;
      for (const stream of streams) stream?.uncork();
    });
  };
}

/**
 * Returns node-redis's options for a call that can be aborted: 5 names the signal `abortSignal`.
 */
function abortOptions(signal: AbortSignal | undefined): never {
  return (signal && { abortSignal: signal, signal }) as never;
}

/** Part of an ioredis command that is used here. */
export interface Command {
  getKeys(): string[];
  isReadOnly?: boolean;
  readonly promise: Promise<unknown>;
  transformReply(reply: unknown): unknown;
}

type CommandMaker = (name: string, ...words: string[]) => Command;

/**
 * Returns a function that creates commands of ioredis with their keys set. ioredis finds keys by
 * the name of the command and does not know the module's commands. In a cluster, a call would go to
 * any node and be redirected, and a pipeline would fail.
 *
 * `call` creates a command and passes it to `sendCommand`, which is replaced to only return it. So
 * the command has the class that this client expects, whichever copy of ioredis or iovalkey it is
 * from.
 */
export function commandsOf(client: IoredisClient): (call: Call<unknown>) => Command {
  const { keyPrefix = "", ...options } = client.options as { keyPrefix?: string };
  const commandMaker = Object.create(client, {
    sendCommand: { value: (command: Command) => command },
    // With automatic pipelining `call` would add the command to a pipeline.
    options: { value: { ...options, enableAutoPipelining: false } },
  }) as { call: CommandMaker };
  return (call) => {
    // ioredis adds its key prefix only to commands that it knows.
    const keys = call.keys.map((key) => keyPrefix + key);
    const command = commandMaker.call(call.name, ...wordsOf({ ...call, keys }));
    const routingKeys = keys.length > 0 || call.route === undefined ? keys : [call.route];
    command.getKeys = () => routingKeys;
    command.isReadOnly = call.readOnly;
    return command;
  };
}
