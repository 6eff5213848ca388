/** Evaluation, charging and reply of a call at one key. */

import { identityOf, type KeyCall, type Spec } from "./grammar.js";
import { Part, wrongType, type Charge, type Key, type Remembered } from "./key.js";
import { Concurrency, Leases } from "./leases.js";
import { NOTHING, refused } from "./options.js";
import { after, AT_ONCE, LATEST, longer, max, min, NEVER, UNIT } from "./rule.js";
import type { Usage, Verdict } from "./rule.js";

const MOST_PARTS = 16;

/** Verdict of one limit on a call, before anything is changed. */
interface Evaluation {
  /** Part of the key with the usage. */
  part: Part | undefined;
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

export function rowOf({ verdict, limit, remaining, reset, granted }: LimitDecision): number[] {
  const isAllowed = verdict.kind === "allowed" ? 1 : 0;
  const row = [isAllowed, Number(limit / UNIT), Number(remaining / UNIT), waitOf(verdict)];
  row.push(Number((reset + 999n) / 1000n));
  if (granted !== undefined) row.push(Number(granted / UNIT));
  return row;
}

/** Returns the wait of a verdict in milliseconds. */
export function waitOf({ kind, time }: Verdict): number {
  return kind === "never" ? -1 : Number((time + 999n) / 1000n);
}

type Outcome = "PASSES" | "DENIED" | "REPEATED" | "SETTLES" | "SETTLED" | "UNKNOWN";

export class Visit {
  readonly call: KeyCall;
  readonly key: Key;
  readonly outcome: Outcome;
  readonly #now: bigint;
  readonly #repeated: Remembered | undefined;
  readonly #evaluations: Evaluation[];
  /** Units granted to a call with UPTO: the minimum over all limits. */
  readonly #granted: bigint | undefined;
  #isCharged = false;

  constructor(call: KeyCall, key: Key, now: bigint) {
    const [{ rule }] = call.specs as [Spec];
    if (key.isPlain && call.specs.length === 1 && rule.kind !== key.parts[0]!.kind) {
      throw wrongType(key.parts[0]!.kind, rule.kind);
    }
    this.call = call;
    this.key = key;
    this.#now = now;
    this.#repeated = key.recall(call, now);
    const parts = key.find(call.specs);
    this.#evaluations = call.specs.map((spec, index) => this.#evaluate(spec, parts[index]));
    for (const { granted } of this.#evaluations) {
      if (granted === undefined) continue;
      this.#granted = this.#granted === undefined ? granted : min(this.#granted, granted);
    }
    for (const one of this.#evaluations) {
      if (one.granted !== undefined) one.granted = one.change = this.#granted!;
    }
    this.outcome = this.#decide();
  }

  get denies(): boolean {
    return this.outcome === "DENIED";
  }

  get knows(): boolean {
    return this.#repeated !== undefined;
  }

  get changes(): boolean {
    if (this.outcome === "SETTLES") return true;
    return this.outcome === "PASSES" && this.#evaluations.some(({ change }) => change !== 0n);
  }

  /** Throws an error if the key has no room for the call. */
  checkRoom(): void {
    if (this.key.isPlain || this.outcome !== "PASSES") return;
    const charging = this.#evaluations.filter(({ change }) => change > 0n);
    const charged = charging.map(({ part }) => part);
    const added = charged.filter((part) => part === undefined).length;
    const staying = this.key.parts.filter(
      (part) => part.stays(this.#now) || charged.includes(part),
    ).length;
    if (added > 0 && staying + added > MOST_PARTS) {
      throw refused(`the key has ${MOST_PARTS} limits, as many as one key may have`);
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
      one.part = new Part(rule.kind, () => rule.unused());
      key.parts = [one.part];
      key.isPlain = true;
    }
    const staysPlain = changing.every(([{ name }, { part }]) => part && name === undefined);
    if (key.isPlain && staysPlain && !this.#remembers) {
      for (const [{ rule }, { part, change }] of changing) {
        part!.change(rule, change, now);
        key.expire(part!.recoversAt - now, now);
      }
      return;
    }
    key.begin(now);
    if (this.outcome === "SETTLES") this.#settle();
    else this.#chargeAll(changing);
    key.end(now);
    const parts = key.find(call.specs);
    for (const [index, one] of this.#evaluations.entries()) one.part = parts[index];
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
      let least = this.#costOf(0);
      for (const [index, decision] of each.entries()) {
        const cost = this.#costOf(index);
        if (decision.remaining * least >= governing.remaining * cost) continue;
        governing = decision;
        least = cost;
      }
    }
    const { limit, remaining, reset } = governing;
    return { verdict, limit, remaining, reset, granted: this.#grantedIn(verdict) };
  }

  #pairs(): [Spec, Evaluation][] {
    return this.call.specs.map((spec, index) => [spec, this.#evaluations[index]!]);
  }

  #evaluate({ rule, request }: Spec, part: Part | undefined): Evaluation {
    const isKnown = this.#repeated !== undefined;
    const { mode, cost, maxWait } = isKnown ? NOTHING : request;
    if (isKnown && rule instanceof Concurrency) rule.isFirst = false;
    const usage: Usage = part?.usage ?? rule.unused();
    const now = this.#now;
    const found = { part, isForced: mode === "FORCE", change: 0n, granted: undefined };
    if (mode === "BACK") {
      return { ...found, verdict: AT_ONCE, change: usage.isUnused ? 0n : -cost };
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
      return { ...found, verdict, change: granted, granted };
    }
    return { ...found, verdict, change: passes || mode === "FORCE" ? cost : 0n };
  }

  #decide(): Outcome {
    const repeated = this.#repeated;
    if (this.call.settle) return repeated ? (repeated.settled ? "SETTLED" : "SETTLES") : "UNKNOWN";
    if (repeated) return "REPEATED";
    const isDenied = this.call.purpose !== "BACK" && this.#evaluations.some(this.#denies);
    return isDenied ? "DENIED" : "PASSES";
  }

  readonly #denies = ({ isForced, verdict }: Evaluation): boolean =>
    !isForced && verdict.kind !== "allowed";

  get #remembers(): boolean {
    return this.call.once !== undefined && this.outcome === "PASSES" && this.changes;
  }

  #chargeAll(changing: readonly (readonly [Spec, Evaluation])[]): void {
    const { key, call } = this;
    const now = this.#now;
    const charges: [Part, Charge][] = [];
    for (const [spec, one] of changing) {
      const { rule } = spec;
      if (!one.part) {
        one.part = new Part(rule.kind, () => rule.unused());
        key.parts.push(one.part);
      }
      const { part, change: cost } = one;
      part.identity ??= identityOf(spec);
      part.change(rule, cost, now);
      if (!this.#remembers || cost <= 0n || part.usage instanceof Leases) continue;
      const { givenBack } = part;
      const charge: Charge = { cost, place: part.usage.place, givenBack, low: undefined };
      part.charges.push(charge);
      charges.push([part, charge]);
    }
    if (!this.#remembers || !call.once) return;
    const allowed = this.#evaluations.filter(({ verdict }) => verdict.kind === "allowed");
    key.remembered.set(call.once.id, {
      expiresAt: min(now + call.once.ttl, LATEST),
      holdUntil: min(now + allowed.map(({ verdict }) => verdict.time).reduce(max, 0n), LATEST),
      forced: this.#evaluations.some(({ isForced }) => isForced),
      granted: this.#granted,
      charges,
      settled: false,
    });
  }

  #settle(): void {
    const { id, cost } = this.call.settle!;
    const repeated = this.#repeated!;
    this.key.remembered.set(id, { ...repeated, charges: [], settled: true });
    for (const [part, charge] of repeated.charges) {
      const found = this.#pairs().find(([, one]) => one.part === part);
      if (!found || found[0].hasOwnCost || cost === charge.cost) part.forget(charge);
      else part.settle(found[0].rule, charge, cost, this.#now);
    }
  }

  #decisionOf(spec: Spec, one: Evaluation): LimitDecision {
    const { rule, kept, request } = spec;
    const usage: Usage = one.part?.usage ?? rule.unused();
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
        return NEVER;
      case "SETTLES":
      case "SETTLED":
        return AT_ONCE;
      case "REPEATED": {
        const { forced, holdUntil } = this.#repeated!;
        const forces = this.call.specs.some((spec) => spec.request.mode === "FORCE");
        const isPast = request.mode === "FORCE" || !forces;
        if (forced && verdict.kind !== "allowed" && isPast) return verdict;
        return { kind: "allowed", time: max(holdUntil - this.#now, 0n) };
      }
      default:
        return this.call.purpose === "BACK" ? AT_ONCE : verdict;
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

  #grantedBefore(most: bigint, verdict: Verdict): bigint {
    return this.#repeated?.granted ?? (verdict.kind === "allowed" ? most : 0n);
  }
}
