/** State of a key: the usage of its limits, and the calls recorded by their idempotency keys. */

import { identityOf, type KeyCall, type Spec } from "./grammar.js";
import { Leases } from "./leases.js";
import { refusal } from "./options.js";
import { copyOf, LATEST, max, min, MAX_USAGE, UNIT, type Rule, type Usage } from "./rule.js";

/** Charge that may be settled. */
export interface Charge {
  readonly cost: bigint;
  /** Identity of the charge in usage that keeps charges apart. */
  place: bigint | undefined;
  /** Units that had been given back to the component before the charge. */
  readonly givenBack: bigint;
  /** Lowest usage since the charge, where usage does not keep charges apart. */
  lowestUsage: bigint | undefined;
}

/** Usage of one limit of a key. Without an identity it is found by its kind alone. */
export class Component {
  readonly kind: string;
  usage: Usage;
  readonly unused: () => Usage;
  identity: string | undefined;
  recoversAt = 0n;
  /** Charges that may be settled, oldest first. */
  charges: Charge[] = [];
  /** Units given back by calls since the first of the charges. */
  givenBack = 0n;

  constructor(kind: string, unused: () => Usage) {
    this.kind = kind;
    this.unused = unused;
    this.usage = unused();
  }

  /** Returns a copy for a peek. */
  copy(): Component {
    const copy = new Component(this.kind, this.unused);
    copy.identity = this.identity;
    copy.usage = copyOf(this.usage);
    copy.recoversAt = this.recoversAt;
    copy.charges = this.charges.map((charge) => ({ ...charge }));
    return copy;
  }

  /** Charges `change` units, or gives them back if it is negative. */
  change(rule: Rule, change: bigint, now: bigint): void {
    if (this.charges.length > 0) this.#recordLowestUsage(rule, max(-change, 0n), now);
    if (change > 0n) rule.charge(this.usage, now, change);
    else rule.giveBack(this.usage, now, -change);
    this.#changed(rule, now);
  }

  /** Corrects usage as if `cost` had been charged from the beginning. */
  settle(rule: Rule, charge: Charge, cost: bigint, now: bigint): void {
    let maxTaken = charge.lowestUsage ?? MAX_USAGE;
    if (charge.place !== undefined) {
      const isSaturated = this.givenBack === MAX_USAGE;
      const givenBackSince = isSaturated ? charge.cost : this.givenBack - charge.givenBack;
      maxTaken = min(maxTaken, max(charge.cost - givenBackSince, 0n));
    }
    const taken = this.usage.takeBack(charge.place, min(max(charge.cost - cost, 0n), maxTaken));
    this.#lowerOtherCharges(charge, taken);
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

  /** Returns `true` if the component must be stored. */
  isKept(now: bigint): boolean {
    return this.charges.length > 0 || (now < this.recoversAt && !this.usage.isUnused);
  }

  /**
   * Records the usage up to which earlier charges can still be settled, before a change that gives
   * back `givenBack` units.
   */
  #recordLowestUsage(rule: Rule, givenBack: bigint, now: bigint): void {
    const before = this.usage.isUnused ? 0n : rule.settleableUsage(this.usage, now);
    if (before === undefined) {
      this.givenBack = min(this.givenBack + givenBack, MAX_USAGE);
      return;
    }
    const usage = max(before - givenBack, 0n);
    for (const charge of this.charges) {
      charge.lowestUsage = min(charge.lowestUsage ?? usage, usage);
    }
  }

  #changed(rule: Rule, now: bigint): void {
    this.recoversAt = min(now + rule.reset(this.usage, now), LATEST);
    if (this.usage.isUnused) this.usage = this.unused();
  }

  /** Lowers the `lowestUsage` of the other charges after one was settled to a lower cost. */
  #lowerOtherCharges(settled: Charge, taken: bigint): void {
    if (settled.lowestUsage === undefined) return;
    const usage = max(settled.lowestUsage - taken, 0n);
    const settledIndex = this.charges.indexOf(settled);
    for (const [index, charge] of this.charges.entries()) {
      const { lowestUsage } = charge;
      if (index < settledIndex) charge.lowestUsage = min(lowestUsage ?? usage, usage);
      else if (lowestUsage !== undefined) charge.lowestUsage = max(lowestUsage - taken, 0n);
    }
  }
}

/** Call recorded by its idempotency key. */
export interface CallRecord {
  readonly expiresAt: bigint;
  readonly holdUntil: bigint;
  /** `true` if a limit had FORCE. */
  readonly isForced: boolean;
  readonly granted: bigint | undefined;
  readonly charges: readonly (readonly [component: Component, charge: Charge])[];
  readonly isSettled: boolean;
}

/** Value of a key. */
export class Key {
  /** `true` if the key stores the usage of one limit alone. */
  isPlain = false;
  components: Component[] = [];
  /** Records of calls by their idempotency keys. */
  records = new Map<string, CallRecord>();
  /** Time of the last change. */
  written = 0n;
  /** Expiry in milliseconds since 1970; 0 for a key that is not stored. */
  expiresAt = 0n;

  get isUnused(): boolean {
    return this.records.size === 0 && this.components.every(({ usage }) => usage.isUnused);
  }

  get leases(): Leases | undefined {
    return this.components.map(({ usage }) => usage).find((usage) => usage instanceof Leases);
  }

  /** Returns the component of each limit of a call; undefined for a limit without stored usage. */
  findAll(specs: readonly Spec[]): (Component | undefined)[] {
    const found: (Component | undefined)[] = [];
    for (const spec of specs) {
      const ofKind = this.components.filter(({ kind }) => kind === spec.rule.kind);
      const hasIdentity = ({ identity }: Component) =>
        identity === identityOf(spec) || (spec.rule.key === undefined && identity !== undefined);
      const lacksIdentity = (component: Component) =>
        component.identity === undefined && !found.includes(component);
      found.push(ofKind.find(hasIdentity) ?? ofKind.find(lacksIdentity));
    }
    return found;
  }

  /** Returns the record of the call's id, if it has not expired. */
  findRecord({ once, settle }: KeyCall, now: bigint): CallRecord | undefined {
    const record = this.records.get((once ?? settle)?.id ?? "");
    return record && now < record.expiresAt ? record : undefined;
  }

  /** Returns how far the clock was set back since the last change, or 0. */
  ahead(now: bigint): bigint {
    if (this.isUnused) return 0n;
    return this.isPlain ? this.components[0]!.usage.ahead(now) : max(this.written - now, 0n);
  }

  /** Shifts all timestamps after the clock was set back to `now`. */
  moveBack(now: bigint): void {
    const back = this.ahead(now);
    for (const component of this.components) component.moveBack(now);
    for (const [id, record] of this.records) {
      const [expiresAt, holdUntil] = [record.expiresAt - back, record.holdUntil - back];
      this.records.set(id, { ...record, expiresAt, holdUntil });
    }
    this.written = min(this.written, now);
    this.expiresAt -= back / 1000n;
  }

  /** Returns a copy for a peek, shifted after the clock was set back to `now`. */
  copyForPeek(now: bigint): Key {
    const copy = new Key();
    copy.isPlain = this.isPlain;
    copy.written = this.written;
    copy.components = this.components.map((component) => component.copy());
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
      this.components[0]!.recoversAt = min(now + remaining, LATEST);
    }
    for (const [id, record] of this.records) {
      if (record.expiresAt > now) continue;
      for (const [component, charge] of record.charges) component.forget(charge);
      this.records.delete(id);
    }
  }

  /** Ends a change: removes components that need not be stored. */
  end(now: bigint): void {
    this.written = now;
    this.components = this.components.filter((component) => component.isKept(now));
  }

  recoversIn(now: bigint): bigint {
    const recoveryTimes = this.components.map(({ recoversAt }) => recoversAt);
    for (const { expiresAt } of this.records.values()) recoveryTimes.push(expiresAt);
    return max(recoveryTimes.reduce(max, 0n) - now, 0n);
  }

  /** Sets the expiry of a key that recovers in `reset`, unless the current expiry is close. */
  expire(reset: bigint, now: bigint): void {
    const recovered = now + reset;
    const latest = (recovered + reset / 8n + UNIT) / 1000n - 1n;
    const earliest = (recovered + 999n) / 1000n + 1n;
    if (this.expiresAt < earliest || this.expiresAt > latest) this.expiresAt = latest;
  }

  /** Releases leases. Returns how many of them were held. */
  release(holders: readonly string[], now: bigint): number {
    const component = this.components.find(({ usage }) => usage instanceof Leases);
    if (!component) {
      if (this.isPlain) throw wrongType(this.components[0]!.kind, "rl-leases");
      return 0;
    }
    const leases = component.usage as Leases;
    const released = leases.release(holders, now);
    if (released > 0) {
      component.recoversAt = now + leases.recoversIn(now);
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
  return refusal(`Operation against a key holding ${holds}, where ${needs} is needed`, "WRONGTYPE");
}
