/** Leases of a concurrency limit. */

import { after, ALLOWED_NOW, LATEST, max, min, NEVER_ALLOWED, Rule } from "./rule.js";
import type { Usage, Verdict } from "./rule.js";

interface Lease {
  readonly endsAt: bigint;
  readonly units: bigint;
  readonly token: bigint | undefined;
}

/** Leases by holder. */
export class Leases implements Usage {
  written = 0n;
  leases = new Map<string, Lease>();
  readonly place = undefined;

  /** Returns the leases that have not expired, in the order of their expiry. */
  live(now: bigint): Map<string, Lease> {
    const instant = min(max(now, this.written), LATEST);
    const live = [...this.leases].filter(([, { endsAt }]) => instant < endsAt);
    return new Map(
      live.sort(([one, { endsAt }], [other, { endsAt: otherEndsAt }]) =>
        endsAt < otherEndsAt || (endsAt === otherEndsAt && one < other) ? -1 : 1,
      ),
    );
  }

  /** Removes expired leases. */
  removeExpired(now: bigint): void {
    this.leases = this.live(now);
    this.written = now;
  }

  /** Releases leases. Returns how many of them were held. */
  release(holders: readonly string[], now: bigint): number {
    const live = this.live(now);
    const present = [...new Set(holders)].filter((holder) => live.has(holder));
    for (const holder of present) this.leases.delete(holder);
    if (present.length > 0) this.removeExpired(now);
    return present.length;
  }

  recoversIn(now: bigint): bigint {
    const latestEnd = [...this.leases.values()].reduce((end, { endsAt }) => max(end, endsAt), 0n);
    return max(latestEnd - max(now, this.written), 0n);
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
      live.map(([holder, lease]) => [holder, { ...lease, endsAt: lease.endsAt - back }]),
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
  /** `true` with NX: a call passes only if its holder has no lease. */
  hasNx = false;
  /** `true` if earlier waiters come first. */
  isBehindWaiters = false;
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
    let mustWaitForOwn = this.hasNx && own !== undefined;
    const renews = own !== undefined && cost <= own.units;
    if ((renews || others + cost <= this.limit) && !mustWaitForOwn) {
      return this.isBehindWaiters && !renews && cost > 0n ? after(1000n) : ALLOWED_NOW;
    }
    if (cost > this.limit) return NEVER_ALLOWED;
    for (const [holder, { endsAt, units }] of usage.live(now)) {
      if (holder === this.holder) mustWaitForOwn = false;
      else others -= units;
      if (!mustWaitForOwn && others + cost <= this.limit) {
        return after(endsAt - max(now, usage.written));
      }
    }
    return NEVER_ALLOWED;
  }

  reset(usage: Leases, now: bigint): bigint {
    return usage.recoversIn(now);
  }

  charge(usage: Leases, now: bigint, cost: bigint): void {
    usage.removeExpired(now);
    const token = usage.leases.get(this.holder)?.token ?? this.token;
    usage.leases.set(this.holder, { endsAt: min(now + this.#ttl, LATEST), units: cost, token });
  }

  /** Does nothing, as only a holder can release its lease, and only as a whole. */
  giveBack(): void {}

  settleableUsage(): bigint {
    return 0n;
  }
}
