/** The module's commands as methods of an ioredis or iovalkey client, and of its pipelines. */

import * as calls from "./calls.js";
import type { Call } from "./calls.js";
import { commandsOf, type Command, type IoredisClient } from "./clients.js";
import * as policies from "./policies.js";

/** Methods by name. `ioredis.ts` and `iovalkey.ts` declare them on their client's types. */
export const COMMANDS = {
  rlTake: calls.take,
  rlPeek: calls.peek,
  rlSettle: calls.settle,
  rlTakeAll: calls.takeAll,
  rlPeekAll: calls.peekAll,
  rlAcquire: calls.acquire,
  rlRelease: calls.release,
  rlBan: calls.banKey,
  rlDelay: calls.delay,
  rlPolicySet: policies.policySet,
  rlPolicyGet: policies.policyGet,
  rlPolicyList: policies.policyList,
  rlPolicyDelete: policies.policyDelete,
  rlPolicyScale: policies.policyScale,
  rlPolicyMultiply: policies.policyMultiply,
  rlPolicyAdd: policies.policyAdd,
};

type Commands = typeof COMMANDS;

/** Name of a method. */
export type Name = keyof Commands;

/** Type of a method's result. */
export type ReplyOf<Method extends Name> =
  ReturnType<Commands[Method]> extends Call<infer Reply> ? Reply : never;

export type ArgumentsOf<Method extends Name> = Parameters<Commands[Method]>;

/** Client, or a pipeline of a client, whose `sendCommand` returns the pipeline. */
interface Sender {
  sendCommand(command: Command): unknown;
}

/**
 * Adds the module's commands as methods to a client, and to its later pipelines. In a cluster they
 * are sent to the node of their key.
 */
export function addCommands<Client extends IoredisClient>(client: Client): Client {
  const commandOf = commandsOf(client);
  const { addedBuiltinSet } = client as unknown as { addedBuiltinSet: Set<string> };
  for (const [name, callOf] of Object.entries(COMMANDS)) {
    const method = function (this: Sender, ...args: never[]) {
      const call = (callOf as (...args: never[]) => Call<unknown>)(...args);
      return this.sendCommand(withDecoding(commandOf(call), call));
    };
    Object.assign(client, { [name]: method });
    // A pipeline copies the methods with these names from its client.
    addedBuiltinSet.add(name);
  }
  return client;
}

/** Makes a command return the decoded reply of its call. */
function withDecoding(command: Command, { decode }: Call<unknown>): Command {
  const transform = command.transformReply.bind(command);
  // In a transaction the first reply only confirms that the command is queued.
  command.transformReply = (reply) => {
    const transformed = transform(reply);
    return transformed === "QUEUED" ? transformed : decode(transformed);
  };
  return command;
}
