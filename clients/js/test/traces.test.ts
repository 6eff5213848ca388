/** Limiter in memory replies like the server: `clients/traces.json`. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { test } from "node:test";

import { Memory } from "../dist/memory/server.js";

type Step = [advance: number, call: string, reply: unknown];

interface Traces {
  readonly start: number;
  readonly traces: Record<string, Step[]>;
}

const FILE = resolve(import.meta.dirname, "../../traces.json");
const { start, traces } = JSON.parse(readFileSync(FILE, "utf8")) as Traces;

/** Returns the reply to a call, or the first word of its error. */
async function replyOrErrorCode(memory: Memory, call: string): Promise<unknown> {
  try {
    return await memory.sendCommand(call.split(" "));
  } catch (error) {
    return (error as Error).message.split(" ")[0];
  }
}

for (const [name, steps] of Object.entries(traces)) {
  test(name, async () => {
    let now = BigInt(start);
    const memory = new Memory(() => now);
    for (const [index, [advance, call, reply]] of steps.entries()) {
      now += BigInt(advance);
      assert.deepEqual(await replyOrErrorCode(memory, call), reply, `call ${index}: ${call}`);
    }
  });
}
