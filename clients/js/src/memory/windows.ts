/** Sliding windows, which keep charges of different times apart. */

import {
  after,
  ALLOWED_NOW,
  ceilDiv,
  max,
  min,
  MAX_USAGE,
  movedPlace,
  NEVER_ALLOWED,
  saturatingAdd,
  Rule,
} from "./rule.js";
import type { Usage, Verdict } from "./rule.js";

/**
 * Usage of a sliding window counter: the counts of two adjacent windows, and the windows' length.
 */
class Slider implements Usage {
  start: bigint;
  window: bigint;
  previous: bigint;
  current: bigint;

  constructor(start = 0n, window = 0n, previous = 0n, current = 0n) {
    this.start = start;
    this.window = window;
    this.previous = previous;
    this.current = current;
  }

  /** Returns the usage with the window that contains `now` as the current one. */
  rolled(now: bigint): Slider {
    const passed = this.window ? max(now - this.start, 0n) / this.window : 2n;
    if (passed === 0n) return this;
    if (passed > 1n) return new Slider();
    return new Slider(this.start + this.window, this.window, this.current, 0n);
  }

  present(now: bigint): bigint {
    if (this.window === 0n) return 0n;
    const overlap = max(this.window - max(now - this.start, 0n), 0n);
    return saturatingAdd(ceilDiv(this.previous * overlap, this.window), this.current);
  }

  get isSaturated(): boolean {
    return this.previous === MAX_USAGE || this.current === MAX_USAGE;
  }

  get isUnused(): boolean {
    return this.previous === 0n && this.current === 0n;
  }

  ahead(now: bigint): bigint {
    return max(this.start - now, 0n);
  }

  moveBack(now: bigint): void {
    this.start = min(this.start, now);
  }

  get place(): bigint {
    return this.start;
  }

  movedPlace(place: bigint, now: bigint): bigint | undefined {
    return movedPlace(this, place, now);
  }

  takeBack(place: bigint | undefined, units: bigint): bigint {
    if (place === undefined || this.isSaturated) return 0n;
    let taken = 0n;
    if (place === this.start) {
      taken = min(units, this.current);
      this.current -= taken;
    } else if (place + this.window === this.start) {
      taken = min(units, this.previous);
      this.previous -= taken;
    }
    return taken;
  }

  movedRecovery(recoversAt: bigint, ahead: bigint): bigint {
    return max(recoversAt - ahead, 0n);
  }
}

/** Sliding window counter. */
export class Sliding extends Rule<Slider> {
  readonly kind = "rl-slider";
  readonly #window: bigint;

  constructor(limit: bigint, window: bigint) {
    super(limit, `${window}`);
    this.#window = window;
  }

  unused(): Slider {
    return new Slider();
  }

  present(usage: Slider, now: bigint): bigint {
    return usage.rolled(now).present(now);
  }

  verdict(usage: Slider, now: bigint, cost: bigint): Verdict {
    const rolled = usage.rolled(now);
    const { window, previous, current, start } = rolled;
    if (rolled.present(now) + cost <= this.limit) return ALLOWED_NOW;
    if (window === 0n || cost > this.limit) return NEVER_ALLOWED;
    const room = this.limit - cost;
    const waitFromStart =
      room >= current
        ? fadeTime(previous, room - current, window)
        : window + fadeTime(current, room, window);
    return after(waitFromStart - max(now - start, 0n));
  }

  reset(usage: Slider, now: bigint): bigint {
    const { window, previous, current, start } = usage.rolled(now);
    const windows = current ? 2n : previous ? 1n : 0n;
    return max(windows * window - max(now - start, 0n), 0n);
  }

  charge(usage: Slider, now: bigint, cost: bigint): void {
    this.#advance(usage, now);
    usage.current = saturatingAdd(usage.current, cost);
  }

  giveBack(usage: Slider, now: bigint, units: bigint): void {
    this.#advance(usage, now);
    const remaining = max(units - usage.current, 0n);
    usage.current = max(usage.current - units, 0n);
    const overlap = usage.window - max(now - usage.start, 0n);
    if (overlap > 0n)
      usage.previous = max(usage.previous - (remaining * usage.window) / overlap, 0n);
  }

  settleableUsage(usage: Slider, now: bigint): bigint | undefined {
    const isNew = usage.window !== this.#window || usage.rolled(now).isUnused;
    return isNew || usage.isSaturated ? 0n : undefined;
  }

  #advance(usage: Slider, now: bigint): void {
    const rolled = usage.rolled(now);
    const stays = rolled.window === this.#window && !rolled.isUnused;
    Object.assign(usage, stays ? rolled : new Slider(now, this.#window, 0n, rolled.present(now)));
  }
}

/** Returns the time within a window at which the weighted previous count falls to `room`. */
function fadeTime(count: bigint, room: bigint, window: bigint): bigint {
  return count ? max(window - (room * window) / count, 0n) : 0n;
}

/** Usage of a strict sliding window: counts by the number of the slot since the Unix epoch. */
class Slots implements Usage {
  window = 0n;
  written = 0n;
  counts = new Map<bigint, bigint>();

  get width(): bigint {
    return max(ceilDiv(this.window, 60n), 1n);
  }

  /** Returns the time at which a slot leaves the window. */
  leavesAt(slot: bigint): bigint {
    return (slot + 1n) * this.width - 1n + this.window;
  }

  /** Returns the slots within the window, newest first. */
  liveSlots(now: bigint): [slot: bigint, count: bigint][] {
    const live = [...this.counts].filter(([slot]) => now < this.leavesAt(slot));
    return live.sort(([one], [other]) => (one > other ? -1 : 1));
  }

  get isUnused(): boolean {
    return this.counts.size === 0;
  }

  get isSaturated(): boolean {
    return [...this.counts.values()].includes(MAX_USAGE);
  }

  ahead(now: bigint): bigint {
    return max(this.written - now, 0n);
  }

  moveBack(now: bigint): void {
    const moved = new Map<bigint, bigint>();
    for (const [old, count] of this.counts) {
      const slot = this.movedSlot(old, now);
      if (now < this.leavesAt(slot)) moved.set(slot, saturatingAdd(moved.get(slot) ?? 0n, count));
    }
    this.counts = moved;
    this.written = min(this.written, now);
  }

  get place(): bigint {
    return (this.written / this.width) * this.width;
  }

  movedPlace(place: bigint, now: bigint): bigint | undefined {
    const slot = place / this.width;
    const stays = (slot + 1n) * this.width - 1n >= this.ahead(now);
    return stays ? this.movedSlot(slot, now) * this.width : undefined;
  }

  takeBack(place: bigint | undefined, units: bigint): bigint {
    if (place === undefined || this.isSaturated) return 0n;
    return this.lower(place / this.width, units);
  }

  /** Subtracts up to `units` from a slot. Returns the number of units subtracted. */
  lower(slot: bigint, units: bigint): bigint {
    const count = this.counts.get(slot) ?? 0n;
    const taken = min(units, count);
    if (taken === count) this.counts.delete(slot);
    else this.counts.set(slot, count - taken);
    return taken;
  }

  recoversIn(now: bigint): bigint {
    const [newest] = this.liveSlots(now);
    return newest ? this.leavesAt(newest[0]) - now : 0n;
  }

  movedRecovery(recoversAt: bigint, ahead: bigint, now: bigint): bigint {
    return max(recoversAt - ahead, now + this.recoversIn(now));
  }

  movedSlot(slot: bigint, now: bigint): bigint {
    const end = max((slot + 1n) * this.width - 1n - this.ahead(now), 0n);
    return min(end / this.width, now / this.width);
  }
}

/** Strict sliding window, counted in 60 slots. */
export class Strict extends Rule<Slots> {
  readonly kind = "rl-strict";
  readonly #window: bigint;

  constructor(limit: bigint, window: bigint) {
    super(limit, `${window}`);
    this.#window = window;
  }

  unused(): Slots {
    return new Slots();
  }

  present(usage: Slots, now: bigint): bigint {
    return usage.liveSlots(now).reduce((sum, [, count]) => saturatingAdd(sum, count), 0n);
  }

  verdict(usage: Slots, now: bigint, cost: bigint): Verdict {
    if (cost > this.limit) return NEVER_ALLOWED;
    let total = 0n;
    for (const [slot, count] of usage.liveSlots(now)) {
      total += count;
      if (total + cost > this.limit) return after(usage.leavesAt(slot) - now);
    }
    return ALLOWED_NOW;
  }

  reset(usage: Slots, now: bigint): bigint {
    return usage.recoversIn(now);
  }

  charge(usage: Slots, now: bigint, cost: bigint): void {
    this.#advance(usage, now);
    const slot = now / usage.width;
    usage.counts.set(slot, saturatingAdd(usage.counts.get(slot) ?? 0n, cost));
  }

  giveBack(usage: Slots, now: bigint, units: bigint): void {
    this.#advance(usage, now);
    let rest = units;
    for (const [slot] of usage.liveSlots(now).reverse()) rest -= usage.lower(slot, rest);
  }

  settleableUsage(usage: Slots): bigint | undefined {
    return usage.window !== this.#window || usage.isSaturated ? 0n : undefined;
  }

  #advance(usage: Slots, now: bigint): void {
    const present = this.present(usage, now);
    const live = usage.liveSlots(now);
    const isSameWindow = usage.window === this.#window;
    usage.window = this.#window;
    usage.written = now;
    usage.counts = new Map(isSameWindow ? live : present ? [[now / usage.width, present]] : []);
  }
}

/** Usage of a sliding log: the times and costs of charges, oldest first. */
class Entries implements Usage {
  entries: [chargedAt: bigint, cost: bigint][] = [];

  get total(): bigint {
    return this.entries.reduce((sum, [, cost]) => sum + cost, 0n);
  }

  get isUnused(): boolean {
    return this.entries.length === 0;
  }

  ahead(now: bigint): bigint {
    return max((this.place ?? 0n) - now, 0n);
  }

  moveBack(now: bigint): void {
    const back = this.ahead(now);
    const entries = this.entries;
    this.entries = [];
    for (const [at, cost] of entries) this.add(max(at - back, 0n), cost);
  }

  get place(): bigint | undefined {
    return this.entries.at(-1)?.[0];
  }

  movedPlace(place: bigint, now: bigint): bigint | undefined {
    return movedPlace(this, place, now);
  }

  add(at: bigint, cost: bigint): void {
    const newest = this.entries.at(-1);
    if (newest && newest[0] === at) newest[1] += cost;
    else if (cost > 0n) this.entries.push([at, cost]);
  }

  /**
   * Subtracts up to `units` from the entries for which `mayTake` returns `true`, oldest first.
   * Returns the number of units subtracted.
   */
  lower(units: bigint, mayTake: (at: bigint) => boolean): bigint {
    let rest = units;
    for (const entry of this.entries) {
      const taken = mayTake(entry[0]) ? min(rest, entry[1]) : 0n;
      entry[1] -= taken;
      rest -= taken;
    }
    this.entries = this.entries.filter(([, cost]) => cost > 0n);
    return units - rest;
  }

  takeBack(place: bigint | undefined, units: bigint): bigint {
    return this.total === MAX_USAGE ? 0n : this.lower(units, (at) => at === place);
  }

  movedRecovery(recoversAt: bigint, ahead: bigint): bigint {
    return max(recoversAt - ahead, 0n);
  }
}

/** Sliding window log. */
export class SlidingLog extends Rule<Entries> {
  readonly kind = "rl-reqlog";
  readonly #window: bigint;

  constructor(limit: bigint, window: bigint) {
    super(limit, `${window}`);
    this.#window = window;
  }

  unused(): Entries {
    return new Entries();
  }

  present({ entries }: Entries, now: bigint): bigint {
    return entries.reduce((sum, [at, cost]) => (at + this.#window > now ? sum + cost : sum), 0n);
  }

  verdict(usage: Entries, now: bigint, cost: bigint): Verdict {
    if (this.present(usage, now) + cost <= this.limit) return ALLOWED_NOW;
    if (cost > this.limit) return NEVER_ALLOWED;
    let newer = 0n;
    for (const [at, units] of usage.entries.toReversed()) {
      newer += units;
      if (newer + cost > this.limit) return after(at + this.#window - now);
    }
    return ALLOWED_NOW;
  }

  reset({ place }: Entries, now: bigint): bigint {
    return place === undefined ? 0n : max(place + this.#window - now, 0n);
  }

  charge(usage: Entries, now: bigint, cost: bigint): void {
    this.#forget(usage, now);
    usage.add(now, min(cost, MAX_USAGE - usage.total));
  }

  giveBack(usage: Entries, now: bigint, units: bigint): void {
    this.#forget(usage, now);
    usage.lower(units, () => true);
  }

  settleableUsage(usage: Entries): bigint | undefined {
    return usage.total === MAX_USAGE ? 0n : undefined;
  }

  #forget(usage: Entries, now: bigint): void {
    usage.entries = usage.entries.filter(([at]) => at + this.#window > now);
  }
}
