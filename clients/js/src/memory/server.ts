/** In-memory server: takes the words of a call and returns its reply. */

import { setTimeout as sleep } from "node:timers/promises";

import { readAcquire, readCall, readKeys, refuseServerFeatures, type KeyCall } from "./grammar.js";
import { Key } from "./key.js";
import { Concurrency } from "./leases.js";
import { refusal, Words } from "./options.js";
import { ALLOWED_NOW, LATEST, longer, max, min } from "./rule.js";
import { rowOf, Visit, waitOf } from "./visit.js";

/** Milliseconds between attempts of a call that waits for a lease. */
const POLL_MS = 5;

/** Minimum number of keys at which expired keys are removed. */
const MIN_SWEEP_SIZE = 1000;

/** Keys in this process, with the interface of a node-redis client. */
export class Memory {
  readonly #micros: () => bigint;
  #keys = new Map<string, Key>();
  /** Number of keys at which expired keys are removed next. */
  #sweepSize = MIN_SWEEP_SIZE;
  #lastToken = 0n;
  /** Holders that wait for a lease, by key, in the order of arrival. */
  readonly #queues = new Map<string, string[]>();

  /** Creates the memory with a clock in microseconds since 1970. */
  constructor(micros: () => bigint) {
    this.#micros = () => min(max(micros(), 0n), LATEST);
  }

  /** Returns the reply to a call, or throws an error like the server's. */
  async sendCommand(words: string[]): Promise<unknown> {
    const blockIndex = words.indexOf("BLOCK", 5);
    if (words[0] !== "RL.ACQUIRE" || blockIndex < 0) return this.#reply(words);
    const block = words[blockIndex + 1]!;
    return this.#replyWhenFree(words.toSpliced(blockIndex, 2), block, () => false);
  }

  /** Returns a client of the same memory for blocking calls, which closing it ends. */
  duplicate(): object {
    let isClosed = false;
    const close = async () => {
      isClosed = true;
    };
    const duplicate = {
      on: () => duplicate,
      connect: async () => {},
      disconnect: close,
      sendCommand: (words: string[]) => {
        const blockIndex = words.indexOf("BLOCK", 5);
        if (words[0] !== "RL.ACQUIRE" || blockIndex < 0) return this.sendCommand(words);
        const block = words[blockIndex + 1]!;
        return this.#replyWhenFree(words.toSpliced(blockIndex, 2), block, () => isClosed);
      },
    };
    return duplicate;
  }

  #reply(commandWords: readonly string[]): unknown {
    const [words, now] = [new Words(commandWords), this.#micros()];
    const command = words.peek();
    words.next("command");
    refuseServerFeatures(command);
    const isPeek = command === "RL.PEEK" || command === "RL.MPEEK";
    if (command === "RL.MTAKE" || command === "RL.MPEEK") {
      return this.#keysReply(readKeys(words, isPeek), now, isPeek);
    }
    const key = words.next("key");
    switch (command) {
      case "RL.TAKE":
      case "RL.PEEK":
        return this.#keyReply(key, readCall(words, isPeek), now, isPeek);
      case "RL.ACQUIRE":
        return this.#acquire(key, words, now);
      case "RL.RELEASE":
        return this.#release(key, words, now);
      case "DEL": {
        const existing = this.#find(key, now);
        this.#keys.delete(key);
        return existing ? 1 : 0;
      }
      default:
        throw refusal(`a limiter in memory does not know '${command}'`);
    }
  }

  #find(name: string, now: bigint): Key | undefined {
    const key = this.#keys.get(name);
    if (!key || now / 1000n <= key.expiresAt) return key;
    this.#keys.delete(name);
    return undefined;
  }

  /** Returns the key, or a new one, shifted if the clock was set back. A peek changes nothing. */
  #open(name: string, now: bigint, isPeek: boolean): Key {
    const key = this.#find(name, now) ?? new Key();
    if (key.ahead(now) === 0n) return key;
    if (isPeek) return key.copyForPeek(now);
    key.moveBack(now);
    return key;
  }

  #store(name: string, key: Key, now: bigint): void {
    if (key.isUnused) this.#keys.delete(name);
    else this.#keys.set(name, key);
    if (this.#keys.size < this.#sweepSize) return;
    const unexpired = [...this.#keys].filter(([, { expiresAt }]) => now / 1000n <= expiresAt);
    this.#keys = new Map(unexpired);
    this.#sweepSize = MIN_SWEEP_SIZE + 2 * unexpired.length;
  }

  /** Evaluates a call on every key, and charges all keys or none. */
  #visit(keys: readonly (readonly [string, KeyCall])[], now: bigint, isPeek: boolean): Visit[] {
    const visits = keys.map(([name, call]) => {
      this.#markBehindWaiters(name, call);
      return new Visit(call, this.#open(name, now, isPeek), now);
    });
    const allowed = isAllowed(visits);
    if (allowed) for (const visit of visits) visit.checkRoom();
    for (const [index, visit] of visits.entries()) {
      if (isPeek || !visit.changes || !(allowed || visit.call.settle)) continue;
      visit.commit();
      this.#store(keys[index]![0], visit.key, now);
    }
    return visits;
  }

  #keyReply(name: string, call: KeyCall, now: bigint, isPeek: boolean): unknown[] {
    const [visit] = this.#visit([[name, call]], now, isPeek) as [Visit];
    const each = visit.decisions();
    const combined = visit.combined(each);
    if (!call.each) return rowOf(combined);
    const rows = each.map((decision, index) => {
      const { name: limitName } = call.specs[index]!;
      return limitName === undefined ? rowOf(decision) : [...rowOf(decision), limitName];
    });
    return [combined.verdict.kind === "allowed" ? 1 : 0, waitOf(combined.verdict), rows];
  }

  #keysReply(keys: [string, KeyCall][], now: bigint, isPeek: boolean): unknown[] {
    const visits = this.#visit(keys, now, isPeek);
    const allowed = isAllowed(visits);
    let wait = ALLOWED_NOW;
    const rows = visits.map((visit) => {
      const { verdict, ...rest } = visit.combined(visit.decisions());
      const hasWait = allowed
        ? verdict.kind === "allowed"
        : visit.call.settle !== undefined || visit.denies;
      if (hasWait) wait = longer(wait, verdict);
      return rowOf({ verdict, ...rest });
    });
    return [allowed ? 1 : 0, waitOf(wait), rows];
  }

  #acquire(name: string, words: Words, now: bigint): unknown[] {
    const [call, hasFence] = readAcquire(words);
    const rule = call.specs[0]!.rule as Concurrency;
    if (hasFence) rule.token = this.#lastToken = max(now, this.#lastToken + 1n);
    const row = this.#keyReply(name, call, now, false);
    if (!hasFence) return row;
    const lease = this.#keys.get(name)?.leases?.live(now).get(rule.holder);
    return [...row, row[0] === 1 ? Number(lease?.token ?? 0n) : 0];
  }

  #release(name: string, words: Words, now: bigint): number {
    const holders = [words.name("holder")];
    while (!words.isOver) holders.push(words.name("holder"));
    const key = this.#open(name, now, false);
    const released = key.release(holders, now);
    if (released > 0) {
      this.#store(name, key, now);
    } else {
      // A waiter that RL.RELEASE names leaves the queue, and is denied.
      const queue = this.#queues.get(name) ?? [];
      this.#queues.set(
        name,
        queue.filter((holder) => !holders.includes(holder)),
      );
    }
    return released;
  }

  /**
   * Marks the leases of a call as behind the waiters of the key, unless the call is of the first
   * one.
   */
  #markBehindWaiters(name: string, { specs }: KeyCall): void {
    const [first] = this.#queues.get(name) ?? [];
    if (first === undefined) return;
    for (const { rule } of specs) {
      if (rule instanceof Concurrency) rule.isBehindWaiters = rule.holder !== first;
    }
  }

  /**
   * Returns the reply of RL.ACQUIRE as soon as there is room, in order of arrival, or after the
   * timeout.
   */
  async #replyWhenFree(words: string[], block: string, isClosed: () => boolean): Promise<unknown> {
    const [, name, , , holder] = words as [string, string, string, string, string];
    const time = block === "0" ? undefined : new Words([block]).duration("block");
    const [until, deadline] =
      time === undefined
        ? [undefined, Infinity]
        : [this.#micros() + time, performance.now() + Number(time) / 1000];
    const queue = this.#queues.get(name) ?? [];
    if (!queue.includes(holder)) this.#queues.set(name, [...queue, holder]);
    try {
      for (;;) {
        const reply = this.#reply(words) as number[];
        const isQueued = this.#queues.get(name)?.includes(holder) ?? false;
        // A manual clock may stand still, so real time ends the wait, too.
        const isLate = until !== undefined && this.#micros() >= until;
        const isDenied = reply[0] === 0 && reply[3] !== -1;
        if (!isDenied || !isQueued || isLate || performance.now() >= deadline) return reply;
        await sleep(POLL_MS);
        if (isClosed()) throw new Error("the connection was closed");
      }
    } finally {
      const others = (this.#queues.get(name) ?? []).filter((waiter) => waiter !== holder);
      if (others.length > 0) this.#queues.set(name, others);
      else this.#queues.delete(name);
    }
  }
}

/** Returns `true` if a call may be committed: a settlement if any key knows its id. */
function isAllowed(visits: readonly Visit[]): boolean {
  const [{ call }] = visits as [Visit];
  if (call.settle) return visits.some((visit) => visit.knowsId);
  return !visits.some((visit) => visit.denies);
}
