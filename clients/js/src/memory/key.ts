/** State of a key: the usage of its limits, and the calls recorded by their idempotency keys. */

import { identityOf, type KeyCall, type Spec } from "./grammar.js";
import { Leases } from "./leases.js";
import { refused } from "./options.js";
import { copyOf, LATEST, max, min, MOST, UNIT, type Rule, type Usage } from "./rule.js";

/** Charge that may be settled. */
export interface Charge {
  readonly cost: bigint;
  /** Place of the charge, where usage keeps charges apart. */
  place: bigint | undefined;
  readonly givenBack: bigint;
  /** Lowest usage since the charge. */
  low: bigint | undefined;
}

/** Usage of one limit of a key. Without an identity it is found by its type alone. */
export class Part {
  readonly kind: string;
  usage: Usage;
  readonly unused: () => Usage;
  identity: string | undefined;
  recoversAt = 0n;
  /** Charges that may be settled, oldest first. */
  charges: Charge[] = [];
  /** Amount given back explicitly since the first of the charges. */
  givenBack = 0n;

  constructor(kind: string, unused: () => Usage) {
    this.kind = kind;
    this.unused = unused;
    this.usage = unused();
  }

  /** Returns a copy for a peek. */
  copy(): Part {
    const copy = new Part(this.kind, this.unused);
    copy.identity = this.identity;
    copy.usage = copyOf(this.usage);
    copy.recoversAt = this.recoversAt;
    copy.charges = this.charges.map((charge) => ({ ...charge }));
    return copy;
  }

  /** Charges `change` units, or gives them back if it is negative. */
  change(rule: Rule, change: bigint, now: bigint): void {
    if (this.charges.length > 0) this.#lower(rule, max(-change, 0n), now);
    if (change > 0n) rule.charge(this.usage, now, change);
    else rule.giveBack(this.usage, now, -change);
    this.#changed(rule, now);
  }

  /** Corrects usage as if `cost` had been charged from the beginning. */
  settle(rule: Rule, charge: Charge, cost: bigint, now: bigint): void {
    let most = charge.low ?? MOST;
    if (charge.place !== undefined) {
      const isLost = this.givenBack === MOST;
      const since = isLost ? charge.cost : this.givenBack - charge.givenBack;
      most = min(most, max(charge.cost - since, 0n));
    }
    const taken = this.usage.takeBack(charge.place, min(max(charge.cost - cost, 0n), most));
    this.#lowerOthers(charge, taken);
    this.forget(charge);
    if (cost > charge.cost) this.change(rule, cost - charge.cost, now);
    this.#changed(rule, now);
  }

  forget(charge: Charge): void {
    this.charges = this.charges.filter((one) => one !== charge);
    if (this.charges.length === 0) this.givenBack = 0n;
  }

  moveBack(now: bigint): void {
    for (const charge of this.charges) {
      if (charge.place !== undefined) charge.place = this.usage.movedPlace(charge.place, now);
    }
    const ahead = this.usage.ahead(now);
    if (ahead > 0n) this.usage.moveBack(now);
    this.recoversAt = this.usage.movedRecovery(this.recoversAt, ahead, now);
  }

  stays(now: bigint): boolean {
    return this.charges.length > 0 || (now < this.recoversAt && !this.usage.isUnused);
  }

  /** Records the usage from which earlier charges can still be settled. */
  #lower(rule: Rule, back: bigint, now: bigint): void {
    const found = this.usage.isUnused ? 0n : rule.low(this.usage, now);
    if (found === undefined) {
      this.givenBack = min(this.givenBack + back, MOST);
      return;
    }
    const low = max(found - back, 0n);
    for (const charge of this.charges) charge.low = min(charge.low ?? low, low);
  }

  #changed(rule: Rule, now: bigint): void {
    this.recoversAt = min(now + rule.reset(this.usage, now), LATEST);
    if (this.usage.isUnused) this.usage = this.unused();
  }

  /** Lowers the recorded lows of the other charges after one was settled to a lower cost. */
  #lowerOthers(settled: Charge, taken: bigint): void {
    if (settled.low === undefined) return;
    const low = max(settled.low - taken, 0n);
    const place = this.charges.indexOf(settled);
    for (const [index, charge] of this.charges.entries()) {
      if (index < place) charge.low = min(charge.low ?? low, low);
      else if (charge.low !== undefined) charge.low = max(charge.low - taken, 0n);
    }
  }
}

/** Call recorded by its idempotency key. */
export interface Remembered {
  readonly expiresAt: bigint;
  readonly holdUntil: bigint;
  readonly forced: boolean;
  readonly granted: bigint | undefined;
  readonly charges: readonly (readonly [part: Part, charge: Charge])[];
  readonly settled: boolean;
}

/** Value of a key. */
export class Key {
  /** `true` if the key stores the usage of one limit alone. */
  isPlain = false;
  parts: Part[] = [];
  remembered = new Map<string, Remembered>();
  written = 0n;
  /** Expiry in milliseconds. */
  expiresAt = 0n;

  get isUnused(): boolean {
    return this.remembered.size === 0 && this.parts.every(({ usage }) => usage.isUnused);
  }

  get leases(): Leases | undefined {
    return this.parts.map(({ usage }) => usage).find((usage) => usage instanceof Leases);
  }

  /** Returns the stored usage for each limit of a call. */
  find(specs: readonly Spec[]): (Part | undefined)[] {
    const found: (Part | undefined)[] = [];
    for (const spec of specs) {
      const ofKind = this.parts.filter(({ kind }) => kind === spec.rule.kind);
      const isKnown = ({ identity }: Part) =>
        identity === identityOf(spec) || (spec.rule.key === undefined && identity !== undefined);
      const unknown = (one: Part) => one.identity === undefined && !found.includes(one);
      found.push(ofKind.find(isKnown) ?? ofKind.find(unknown));
    }
    return found;
  }

  /** Returns the record of the call's id, if it has not expired. */
  recall({ once, settle }: KeyCall, now: bigint): Remembered | undefined {
    const repeated = this.remembered.get((once ?? settle)?.id ?? "");
    return repeated && now < repeated.expiresAt ? repeated : undefined;
  }

  /** Returns how far the clock was set back since the last change, or 0. */
  ahead(now: bigint): bigint {
    if (this.isUnused) return 0n;
    return this.isPlain ? this.parts[0]!.usage.ahead(now) : max(this.written - now, 0n);
  }

  /** Shifts all timestamps after the clock was set back to `now`. */
  moveBack(now: bigint): void {
    const back = this.ahead(now);
    for (const part of this.parts) part.moveBack(now);
    for (const [id, call] of this.remembered) {
      const [expiresAt, holdUntil] = [call.expiresAt - back, call.holdUntil - back];
      this.remembered.set(id, { ...call, expiresAt, holdUntil });
    }
    this.written = min(this.written, now);
    this.expiresAt -= back / 1000n;
  }

  /** Returns a copy for a peek, shifted after the clock was set back to `now`. */
  lookedAt(now: bigint): Key {
    const copy = new Key();
    copy.isPlain = this.isPlain;
    copy.written = this.written;
    copy.parts = this.parts.map((part) => part.copy());
    copy.moveBack(now);
    return copy;
  }

  /** Begins a change: removes expired records. */
  begin(now: bigint): void {
    if (this.isPlain) {
      // A plain key stores its time of recovery only as its expiry.
      this.isPlain = false;
      this.written = now;
      const remaining = max(this.expiresAt - now / 1000n, 0n) * 1000n;
      this.parts[0]!.recoversAt = min(now + remaining, LATEST);
    }
    for (const [id, call] of this.remembered) {
      if (call.expiresAt > now) continue;
      for (const [part, charge] of call.charges) part.forget(charge);
      this.remembered.delete(id);
    }
  }

  end(now: bigint): void {
    this.written = now;
    this.parts = this.parts.filter((part) => part.stays(now));
  }

  recoversIn(now: bigint): bigint {
    const ends = this.parts.map(({ recoversAt }) => recoversAt);
    for (const { expiresAt } of this.remembered.values()) ends.push(expiresAt);
    return max(ends.reduce(max, 0n) - now, 0n);
  }

  /** Sets the expiry of a key that recovers in `reset`, unless the current one is close enough. */
  expire(reset: bigint, now: bigint): void {
    const recovered = now + reset;
    const latest = (recovered + reset / 8n + UNIT) / 1000n - 1n;
    const earliest = (recovered + 999n) / 1000n + 1n;
    if (this.expiresAt < earliest || this.expiresAt > latest) this.expiresAt = latest;
  }

  /** Releases leases. Returns how many were held. */
  release(holders: readonly string[], now: bigint): number {
    const part = this.parts.find(({ usage }) => usage instanceof Leases);
    if (!part) {
      if (this.isPlain) throw wrongType(this.parts[0]!.kind, "rl-leases");
      return 0;
    }
    const leases = part.usage as Leases;
    const released = leases.release(holders, now);
    if (released > 0) {
      part.recoversAt = now + leases.recoversIn(now);
      if (!this.isPlain) {
        this.begin(now);
        this.end(now);
      }
      this.expire(this.recoversIn(now), now);
    }
    return released;
  }
}

export function wrongType(holds: string, needs: string): Error {
  return refused(`Operation against a key holding ${holds}, where ${needs} is needed`, "WRONGTYPE");
}
