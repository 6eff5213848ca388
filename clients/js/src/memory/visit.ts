/** Evaluation, charging and reply of a call at one key. */

import { identityOf, type KeyCall, type Spec } from "./grammar.js";
import { Component, wrongType, type Charge, type Key, type CallRecord } from "./key.js";
import { Concurrency, Leases } from "./leases.js";
import { NO_CHARGE, refusal } from "./options.js";
import { after, ALLOWED_NOW, LATEST, longer, max, min, NEVER_ALLOWED, UNIT } from "./rule.js";
import type { Usage, Verdict } from "./rule.js";

const MAX_COMPONENTS = 16;

/** Verdict of one limit on a call, before anything is changed. */
interface Evaluation {
  /** Component of the key with the usage of the limit. */
  component: Component | undefined;
  readonly verdict: Verdict;
  readonly isForced: boolean;
  /** Units to charge, or to give back if negative. */
  change: bigint;
  granted: bigint | undefined;
}

/** Decision of one limit, or of all limits. */
export interface LimitDecision {
  readonly verdict: Verdict;
  readonly limit: bigint;
  readonly remaining: bigint;
  readonly reset: bigint;
  readonly granted: bigint | undefined;
}

/** Returns the elements of the reply for a decision. */
export function rowOf({ verdict, limit, remaining, reset, granted }: LimitDecision): number[] {
  const isAllowed = verdict.kind === "allowed" ? 1 : 0;
  const row = [isAllowed, Number(limit / UNIT), Number(remaining / UNIT), waitOf(verdict)];
  row.push(Number((reset + 999n) / 1000n));
  if (granted !== undefined) row.push(Number(granted / UNIT));
  return row;
}

/** Returns the wait of a verdict in milliseconds; -1 if the call never passes. */
export function waitOf({ kind, time }: Verdict): number {
  return kind === "never" ? -1 : Number((time + 999n) / 1000n);
}

type Outcome = "PASSES" | "DENIED" | "REPEATED" | "SETTLES" | "SETTLED" | "UNKNOWN";

/** Call at one key: evaluated, and charged if all keys of the call allow it. */
export class Visit {
  readonly call: KeyCall;
  readonly key: Key;
  readonly outcome: Outcome;
  readonly #now: bigint;
  readonly #record: CallRecord | undefined;
  readonly #evaluations: Evaluation[];
  /** Units granted to a call with UPTO: the minimum over all limits. */
  readonly #granted: bigint | undefined;
  #isCharged = false;

  constructor(call: KeyCall, key: Key, now: bigint) {
    const [{ rule }] = call.specs as [Spec];
    if (key.isPlain && call.specs.length === 1 && rule.kind !== key.components[0]!.kind) {
      throw wrongType(key.components[0]!.kind, rule.kind);
    }
    this.call = call;
    this.key = key;
    this.#now = now;
    this.#record = key.findRecord(call, now);
    const components = key.findAll(call.specs);
    this.#evaluations = call.specs.map((spec, index) => this.#evaluate(spec, components[index]));
    for (const { granted } of this.#evaluations) {
      if (granted === undefined) continue;
      this.#granted = this.#granted === undefined ? granted : min(this.#granted, granted);
    }
    for (const evaluation of this.#evaluations) {
      if (evaluation.granted === undefined) continue;
      evaluation.granted = evaluation.change = this.#granted!;
    }
    this.outcome = this.#decide();
  }

  get denies(): boolean {
    return this.outcome === "DENIED";
  }

  /** `true` if the key has a record of the call's id. */
  get knowsId(): boolean {
    return this.#record !== undefined;
  }

  get changes(): boolean {
    if (this.outcome === "SETTLES") return true;
    return this.outcome === "PASSES" && this.#evaluations.some(({ change }) => change !== 0n);
  }

  /** Throws an error if the key has no room for the call. */
  checkRoom(): void {
    if (this.key.isPlain || this.outcome !== "PASSES") return;
    const charging = this.#evaluations.filter(({ change }) => change > 0n);
    const charged = charging.map(({ component }) => component);
    const addedCount = charged.filter((component) => component === undefined).length;
    const keptCount = this.key.components.filter(
      (component) => component.isKept(this.#now) || charged.includes(component),
    ).length;
    if (addedCount > 0 && keptCount + addedCount > MAX_COMPONENTS) {
      throw refusal(`the key has ${MAX_COMPONENTS} limits, as many as one key may have`);
    }
  }

  /** Applies the changes. */
  commit(): void {
    const { key, call } = this;
    const now = this.#now;
    this.#isCharged = true;
    const changing = this.#pairs().filter(([, { change }]) => change !== 0n);
    if (key.isUnused && call.isPlain) {
      const [[{ rule }, one]] = changing as [[Spec, Evaluation]];
      one.component = new Component(rule.kind, () => rule.unused());
      key.components = [one.component];
      key.isPlain = true;
    }
    const staysPlain = changing.every(
      ([{ name }, { component }]) => component && name === undefined,
    );
    if (key.isPlain && staysPlain && !this.#isRecorded) {
      for (const [{ rule }, { component, change }] of changing) {
        component!.change(rule, change, now);
        key.expire(component!.recoversAt - now, now);
      }
      return;
    }
    key.begin(now);
    if (this.outcome === "SETTLES") this.#settle();
    else this.#chargeAll(changing);
    key.end(now);
    const components = key.findAll(call.specs);
    for (const [index, one] of this.#evaluations.entries()) one.component = components[index];
    key.expire(key.recoversIn(now), now);
  }

  /** Returns the decision of each limit, with the current usage. */
  decisions(): LimitDecision[] {
    return this.#pairs().map(([spec, one]) => this.#decisionOf(spec, one));
  }

  /** Returns the combined decision of all limits. */
  combined(each: readonly LimitDecision[]): LimitDecision {
    const denies = ({ verdict }: LimitDecision, index: number) =>
      this.denies ? this.#denies(this.#evaluations[index]!) : verdict.kind !== "allowed";
    const denying = each.filter(denies);
    const candidates = denying.length > 0 ? denying : each;
    const verdict = candidates.map((decision) => decision.verdict).reduce(longer);
    let governing = candidates.find((decision) => decision.verdict === verdict)!;
    if (denying.length === 0) {
      governing = each[0]!;
      let governingCost = this.#costOf(0);
      for (const [index, decision] of each.entries()) {
        const cost = this.#costOf(index);
        if (decision.remaining * governingCost >= governing.remaining * cost) continue;
        governing = decision;
        governingCost = cost;
      }
    }
    const { limit, remaining, reset } = governing;
    return { verdict, limit, remaining, reset, granted: this.#grantedIn(verdict) };
  }

  #pairs(): [Spec, Evaluation][] {
    return this.call.specs.map((spec, index) => [spec, this.#evaluations[index]!]);
  }

  #evaluate({ rule, request }: Spec, component: Component | undefined): Evaluation {
    const isKnown = this.#record !== undefined;
    const { mode, cost, maxWait } = isKnown ? NO_CHARGE : request;
    if (isKnown && rule instanceof Concurrency) rule.hasNx = false;
    const usage: Usage = component?.usage ?? rule.unused();
    const now = this.#now;
    const unchanged = { component, isForced: mode === "FORCE", change: 0n, granted: undefined };
    if (mode === "BACK") {
      return { ...unchanged, verdict: ALLOWED_NOW, change: usage.isUnused ? 0n : -cost };
    }
    const needed = mode === "UPTO" ? UNIT : mode === "PAST" ? 1n : cost;
    let verdict: Verdict = rule.verdict(usage, now, needed);
    if (mode === "MAXWAIT" && verdict.kind === "after") {
      const { time } = verdict;
      verdict = time <= maxWait ? { kind: "allowed", time } : after(time - maxWait);
    }
    const passes = verdict.kind === "allowed";
    if (mode === "UPTO") {
      const units = (rule.remaining(usage, now) / UNIT) * UNIT;
      const granted = passes ? min(units, cost) : 0n;
      return { ...unchanged, verdict, change: granted, granted };
    }
    return { ...unchanged, verdict, change: passes || mode === "FORCE" ? cost : 0n };
  }

  #decide(): Outcome {
    const record = this.#record;
    if (this.call.settle) return record ? (record.isSettled ? "SETTLED" : "SETTLES") : "UNKNOWN";
    if (record) return "REPEATED";
    const isDenied = this.call.purpose !== "BACK" && this.#evaluations.some(this.#denies);
    return isDenied ? "DENIED" : "PASSES";
  }

  readonly #denies = ({ isForced, verdict }: Evaluation): boolean =>
    !isForced && verdict.kind !== "allowed";

  /** `true` if the call is recorded by its idempotency key. */
  get #isRecorded(): boolean {
    return this.call.once !== undefined && this.outcome === "PASSES" && this.changes;
  }

  /** Charges the limits, and records the call if it has an idempotency key. */
  #chargeAll(changing: readonly (readonly [Spec, Evaluation])[]): void {
    const { key, call } = this;
    const now = this.#now;
    const charges: [Component, Charge][] = [];
    for (const [spec, one] of changing) {
      const { rule } = spec;
      if (!one.component) {
        one.component = new Component(rule.kind, () => rule.unused());
        key.components.push(one.component);
      }
      const { component, change: cost } = one;
      component.identity ??= identityOf(spec);
      component.change(rule, cost, now);
      if (!this.#isRecorded || cost <= 0n || component.usage instanceof Leases) continue;
      const { givenBack } = component;
      const charge: Charge = {
        cost,
        place: component.usage.place,
        givenBack,
        lowestUsage: undefined,
      };
      component.charges.push(charge);
      charges.push([component, charge]);
    }
    if (!this.#isRecorded || !call.once) return;
    const allowed = this.#evaluations.filter(({ verdict }) => verdict.kind === "allowed");
    key.records.set(call.once.id, {
      expiresAt: min(now + call.once.ttl, LATEST),
      holdUntil: min(now + allowed.map(({ verdict }) => verdict.time).reduce(max, 0n), LATEST),
      isForced: this.#evaluations.some(({ isForced }) => isForced),
      granted: this.#granted,
      charges,
      isSettled: false,
    });
  }

  #settle(): void {
    const { id, cost } = this.call.settle!;
    const record = this.#record!;
    this.key.records.set(id, { ...record, charges: [], isSettled: true });
    for (const [component, charge] of record.charges) {
      const [spec] = this.#pairs().find(([, one]) => one.component === component) ?? [];
      if (!spec || spec.hasOwnCost || cost === charge.cost) component.forget(charge);
      else component.settle(spec.rule, charge, cost, this.#now);
    }
  }

  #decisionOf(spec: Spec, one: Evaluation): LimitDecision {
    const { rule, kept, request } = spec;
    const usage: Usage = one.component?.usage ?? rule.unused();
    const now = this.#now;
    let { verdict } = one;
    if (one.isForced && verdict.kind !== "allowed") {
      verdict = after(rule.debtAfter(usage, now, this.#isCharged ? 0n : one.change));
    }
    verdict = this.#overridden(verdict, spec);
    let granted: bigint | undefined;
    if (request.mode === "UPTO") {
      granted = one.granted ?? 0n;
      if (this.outcome === "REPEATED") granted = this.#grantedBefore(request.cost, verdict);
    }
    return {
      verdict,
      limit: rule.limit + kept,
      remaining: rule.remaining(usage, now),
      reset: rule.reset(usage, now),
      granted,
    };
  }

  /**
   * Returns the verdict of a limit, which a settlement, a repeated call or a give-back overrides.
   */
  #overridden(verdict: Verdict, { request }: Spec): Verdict {
    switch (this.outcome) {
      case "UNKNOWN":
        return NEVER_ALLOWED;
      case "SETTLES":
      case "SETTLED":
        return ALLOWED_NOW;
      case "REPEATED": {
        const { isForced, holdUntil } = this.#record!;
        const hasForce = this.call.specs.some((spec) => spec.request.mode === "FORCE");
        const mayBePastLimit = request.mode === "FORCE" || !hasForce;
        if (isForced && verdict.kind !== "allowed" && mayBePastLimit) return verdict;
        return { kind: "allowed", time: max(holdUntil - this.#now, 0n) };
      }
      default:
        return this.call.purpose === "BACK" ? ALLOWED_NOW : verdict;
    }
  }

  #costOf(index: number): bigint {
    const { mode, cost } = this.call.specs[index]!.request;
    return mode === "BACK" || mode === "PAST" ? UNIT : cost || UNIT;
  }

  #grantedIn(verdict: Verdict): bigint | undefined {
    const upto = this.call.specs.find(({ request }) => request.mode === "UPTO");
    if (!upto) return undefined;
    if (this.outcome === "PASSES") return this.#granted ?? upto.request.cost;
    return this.outcome === "REPEATED" ? this.#grantedBefore(upto.request.cost, verdict) : 0n;
  }

  /** Returns the units that the first of repeated calls was granted. */
  #grantedBefore(cost: bigint, verdict: Verdict): bigint {
    return this.#record?.granted ?? (verdict.kind === "allowed" ? cost : 0n);
  }
}
