/** Leases of a concurrency limit. */

import { after, AT_ONCE, LATEST, max, min, NEVER, Rule } from "./rule.js";
import type { Usage, Verdict } from "./rule.js";

interface Held {
  readonly ends: bigint;
  readonly units: bigint;
  readonly token: bigint | undefined;
}

/** Leases by holder. */
export class Leases implements Usage {
  written = 0n;
  leases = new Map<string, Held>();
  readonly place = undefined;

  /** Returns the leases that have not expired, in the order of their expiry. */
  live(now: bigint): Map<string, Held> {
    const at = min(max(now, this.written), LATEST);
    const live = [...this.leases].filter(([, { ends }]) => at < ends);
    return new Map(
      live.sort(([one, { ends }], [other, { ends: otherEnds }]) =>
        ends < otherEnds || (ends === otherEnds && one < other) ? -1 : 1,
      ),
    );
  }

  tidy(now: bigint): void {
    this.leases = this.live(now);
    this.written = now;
  }

  /** Releases leases. Returns how many were held. */
  release(holders: readonly string[], now: bigint): number {
    const live = this.live(now);
    const present = [...new Set(holders)].filter((holder) => live.has(holder));
    for (const holder of present) this.leases.delete(holder);
    if (present.length > 0) this.tidy(now);
    return present.length;
  }

  recoversIn(now: bigint): bigint {
    const last = [...this.leases.values()].reduce((last, { ends }) => max(last, ends), 0n);
    return max(last - max(now, this.written), 0n);
  }

  get isUnused(): boolean {
    return this.leases.size === 0;
  }

  ahead(now: bigint): bigint {
    return max(this.written - now, 0n);
  }

  moveBack(now: bigint): void {
    const back = this.ahead(now);
    const live = [...this.live(this.written)];
    this.leases = new Map(
      live.map(([holder, lease]) => [holder, { ...lease, ends: lease.ends - back }]),
    );
    this.written = min(this.written, now);
  }

  movedPlace(): undefined {}

  takeBack(): bigint {
    return 0n;
  }

  movedRecovery(recoversAt: bigint, ahead: bigint): bigint {
    return max(recoversAt - ahead, 0n);
  }
}

/** Concurrency limit. */
export class Concurrency extends Rule<Leases> {
  readonly kind = "rl-leases";
  readonly holder: string;
  /** `true` if only a holder without a lease passes (NX). */
  isFirst = false;
  /** `true` if earlier waiters come first. */
  isBehind = false;
  /** Fencing token for a lease that has none. */
  token: bigint | undefined;
  readonly #ttl: bigint;

  constructor(limit: bigint, ttl: bigint, holder: string) {
    super(limit, undefined);
    this.holder = holder;
    this.#ttl = ttl;
  }

  unused(): Leases {
    return new Leases();
  }

  present(usage: Leases, now: bigint): bigint {
    return [...usage.live(now).values()].reduce((sum, { units }) => sum + units, 0n);
  }

  verdict(usage: Leases, now: bigint, cost: bigint): Verdict {
    const own = usage.live(now).get(this.holder);
    let others = this.present(usage, now) - (own?.units ?? 0n);
    let isInOwnWay = this.isFirst && own !== undefined;
    const renews = own !== undefined && cost <= own.units;
    if ((renews || others + cost <= this.limit) && !isInOwnWay) {
      return this.isBehind && !renews && cost > 0n ? after(1000n) : AT_ONCE;
    }
    if (cost > this.limit) return NEVER;
    for (const [holder, { ends, units }] of usage.live(now)) {
      if (holder === this.holder) isInOwnWay = false;
      else others -= units;
      if (!isInOwnWay && others + cost <= this.limit) {
        return after(ends - max(now, usage.written));
      }
    }
    return NEVER;
  }

  reset(usage: Leases, now: bigint): bigint {
    return usage.recoversIn(now);
  }

  charge(usage: Leases, now: bigint, cost: bigint): void {
    usage.tidy(now);
    const token = usage.leases.get(this.holder)?.token ?? this.token;
    usage.leases.set(this.holder, { ends: min(now + this.#ttl, LATEST), units: cost, token });
  }

  /** Does nothing, as only a holder can release its lease, and only as a whole. */
  giveBack(): void {}

  low(): bigint {
    return 0n;
  }
}
