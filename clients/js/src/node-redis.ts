/**
 * Commands of the module for node-redis, from version 4 on: `createClient({ modules: { rl } })` and
 * `createCluster({ modules: { rl } })`.
 */

import * as calls from "./calls.js";
import { wordsOf, type Call } from "./calls.js";
import * as policies from "./policies.js";

/** Part of node-redis 5's argument of `parseCommand` that is used here. */
interface Parser {
  push(...words: string[]): unknown;
  pushKey(key: string): unknown;
  preserve: unknown;
}

/** Returns a command of node-redis that sends the call of `callOf`. */
function command<Args extends unknown[], Reply>(
  callOf: (...args: Args) => Call<Reply>,
  { readOnly = false, keyIndex }: { readOnly?: boolean; keyIndex?: number } = {},
) {
  return {
    IS_READ_ONLY: readOnly,
    /** Index of the key that selects the node, for node-redis 4. The command's name is at 0. */
    FIRST_KEY_INDEX: keyIndex ?? (() => undefined),
    /** Builds the words of a call, for node-redis 5 and later. */
    parseCommand(parser: Parser, ...args: Args): void {
      const call = callOf(...args);
      parser.push(call.name, ...call.before);
      for (const key of call.keys) parser.pushKey(key);
      parser.push(...call.after);
      parser.preserve = call;
    },
    /** Builds the words of a call, for node-redis 4. */
    transformArguments(...args: Args): string[] {
      const call = callOf(...args);
      return Object.assign([call.name, ...wordsOf(call)], { preserve: call });
    },
    transformReply: (reply: unknown, call: unknown): Reply => (call as Call<Reply>).decode(reply),
  };
}

export const rl = {
  take: command(calls.take, { keyIndex: 1 }),
  peek: command(calls.peek, { keyIndex: 1, readOnly: true }),
  settle: command(calls.settle, { keyIndex: 1 }),
  takeAll: command(calls.takeAll, { keyIndex: 2 }),
  peekAll: command(calls.peekAll, { keyIndex: 2, readOnly: true }),
  acquire: command(calls.acquire, { keyIndex: 1 }),
  release: command(calls.release, { keyIndex: 1 }),
  ban: command(calls.banKey, { keyIndex: 1 }),
  delay: command(calls.delay, { keyIndex: 1 }),
  policySet: command(policies.policySet),
  policyGet: command(policies.policyGet, { readOnly: true }),
  policyList: command(policies.policyList, { readOnly: true }),
  policyDelete: command(policies.policyDelete),
  policyScale: command(policies.policyScale),
  policyMultiply: command(policies.policyMultiply),
  policyAdd: command(policies.policyAdd),
};
