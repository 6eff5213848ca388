// Shared loop of the programs in this folder: reads a question from each line, and prints its answer.

import { createInterface } from "node:readline";

export const mode = process.argv[2];
export const port = Number(process.argv[3]);

export async function serve(verbs) {
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, ...words] = line.split(" ");
    try {
      const reply = await verbs[verb](...words);
      console.log("=", ...[reply].flat(Infinity).map(integer));
    } catch (error) {
      console.log(`! ${error.name} ${error.message}`.replace(/\s+/g, " "));
    }
  }
  process.exit();
}

function integer(value) {
  if (value instanceof Error) throw value;
  return Number(value);
}
