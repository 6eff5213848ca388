/** Buckets and fixed windows, which store their usage as one number. */

import type { AlignedWindows } from "./calendar.js";
import {
  after,
  ALLOWED_NOW,
  ceilDiv,
  LATEST,
  max,
  min,
  MAX_USAGE,
  NEVER_ALLOWED,
  saturatingAdd,
  Rule,
} from "./rule.js";
import type { Usage, Verdict } from "./rule.js";

/** Usage as one number at an instant. */
class Pool implements Usage {
  used = 0n;
  at = 0n;
  readonly place = undefined;

  get isUnused(): boolean {
    return this.used === 0n;
  }

  ahead(now: bigint): bigint {
    return max(this.at - now, 0n);
  }

  moveBack(now: bigint): void {
    this.at = min(this.at, now);
  }

  movedPlace(): undefined {}

  takeBack(_place: bigint | undefined, units: bigint): bigint {
    const taken = this.used === MAX_USAGE ? 0n : min(units, this.used);
    this.used -= taken;
    return taken;
  }

  movedRecovery(recoversAt: bigint, ahead: bigint, _now: bigint): bigint {
    return max(recoversAt - ahead, 0n);
  }
}

/** Token bucket, or with `queues` a leaky bucket, which delays allowed calls. */
export class Bucket extends Rule<Pool> {
  readonly kind = "rl-bucket";
  override readonly canReserve: boolean;
  readonly #refill: bigint;
  readonly #period: bigint;

  constructor(capacity: bigint, refill: bigint, period: bigint, queues: boolean) {
    super(capacity, `${period}`);
    this.#refill = refill;
    this.#period = period;
    this.canReserve = !queues;
  }

  unused(): Pool {
    return new Pool();
  }

  drainsIn(units: bigint): bigint {
    return min(ceilDiv(units * this.#period, this.#refill), LATEST);
  }

  present({ used, at }: Pool, now: bigint): bigint {
    return max(used - (max(now - at, 0n) * this.#refill) / this.#period, 0n);
  }

  verdict(usage: Pool, now: bigint, cost: bigint): Verdict {
    if (this.present(usage, now) + cost <= this.limit) {
      return { kind: "allowed", time: this.canReserve ? 0n : this.reset(usage, now) };
    }
    if (cost > this.limit) return NEVER_ALLOWED;
    return after(this.drainsIn(usage.used + cost - this.limit) - max(now - usage.at, 0n));
  }

  reset(usage: Pool, now: bigint): bigint {
    return max(this.drainsIn(usage.used) - max(now - usage.at, 0n), 0n);
  }

  charge(usage: Pool, now: bigint, cost: bigint): void {
    this.#advance(usage, now);
    usage.used = saturatingAdd(usage.used, cost);
  }

  giveBack(usage: Pool, now: bigint, units: bigint): void {
    if (this.present(usage, now) <= units) {
      usage.used = usage.at = 0n;
      return;
    }
    this.#advance(usage, now);
    usage.used -= units;
  }

  settleableUsage({ used, at }: Pool, now: bigint): bigint {
    if (used === MAX_USAGE) return 0n;
    return max(used - ceilDiv(max(now - at, 0n) * this.#refill, this.#period), 0n);
  }

  /** Subtracts the drained usage, in steps of a whole number of millionths. */
  #advance(usage: Pool, now: bigint): void {
    if (this.present(usage, now) === 0n) {
      usage.used = 0n;
      usage.at = now;
      return;
    }
    const divisor = gcd(this.#period, this.#refill);
    const steps = (now - usage.at) / (this.#period / divisor);
    usage.used -= steps * (this.#refill / divisor);
    usage.at += steps * (this.#period / divisor);
  }
}

function gcd(one: bigint, other: bigint): bigint {
  return other === 0n ? one : gcd(other, one % other);
}

/** Usage of a fixed window. `at` is its begin, or the last charge if the window is aligned. */
class Window extends Pool {
  isAligned = false;

  override movedRecovery(recoversAt: bigint, ahead: bigint, now: bigint): bigint {
    return this.isAligned ? recoversAt : super.movedRecovery(recoversAt, ahead, now);
  }
}

/**
 * Fixed window. Without `alignedWindows`, a window begins with its first call.
 */
export class Fixed extends Rule<Window> {
  readonly kind = "rl-window";
  readonly #window: bigint;
  readonly #alignedWindows: AlignedWindows | undefined;

  constructor(limit: bigint, window: bigint, alignedWindows?: AlignedWindows) {
    super(limit, `${window} ${alignedWindows?.key ?? ""}`);
    this.#window = window;
    this.#alignedWindows = alignedWindows;
  }

  unused(): Window {
    return new Window();
  }

  present(usage: Window, now: bigint): bigint {
    return now < this.#end(usage, now) ? usage.used : 0n;
  }

  verdict(usage: Window, now: bigint, cost: bigint): Verdict {
    if (this.present(usage, now) + cost <= this.limit) return ALLOWED_NOW;
    return cost > this.limit ? NEVER_ALLOWED : after(this.#end(usage, now) - now);
  }

  reset(usage: Window, now: bigint): bigint {
    return usage.isUnused ? 0n : max(this.#end(usage, now) - now, 0n);
  }

  charge(usage: Window, now: bigint, cost: bigint): void {
    this.#advance(usage, now);
    usage.used = saturatingAdd(usage.used, cost);
  }

  giveBack(usage: Window, now: bigint, units: bigint): void {
    this.#advance(usage, now);
    usage.used = max(usage.used - units, 0n);
  }

  settleableUsage(usage: Window, now: bigint): bigint {
    return usage.used === MAX_USAGE ? 0n : this.present(usage, now);
  }

  #end(usage: Window, now: bigint): bigint {
    const instant = min(usage.at, now);
    const alignedWindows = this.#alignedWindows;
    if (alignedWindows && (usage.isAligned || alignedWindows.calendar))
      return alignedWindows.end(instant);
    return instant + this.#window;
  }

  #advance(usage: Window, now: bigint): void {
    usage.used = this.present(usage, now);
    if (this.#alignedWindows || usage.used === 0n) usage.at = now;
    usage.isAligned = this.#alignedWindows !== undefined;
  }
}
