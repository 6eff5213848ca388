// History of a simulated limit for the visible time, and the units passed within any window.

/** Returns the outcome of a decision: the delay in milliseconds, the negated wait of a denial, or null if it never passes. */
export const outcome = (answer) => (answer === null || answer < 0 ? "denied" : answer > 0 ? "held" : "admitted");

export class History {
  constructor() {
    this.admitted = 0;
    this.denied = 0;
    this.longestWait = 0;
    /** Maximum number of units that passed within any window. */
    this.maximum = 0;
    /** [instant, decision] of each call, with instants in seconds. */
    this.calls = [];
    /** [instant, units used] at each tick. */
    this.levels = [];
    /** [instant, cost] of each passed call, at the instant at which it takes effect. */
    this.charges = [];
    /** Beginnings of windows, if the limit has windows. */
    this.starts = [];
    this.state = null;
  }

  call(at, answer, cost, window) {
    this.calls.push([at, answer]);
    if (outcome(answer) === "denied") {
      this.denied += 1;
      return;
    }
    this.admitted += 1;
    this.longestWait = Math.max(this.longestWait, answer);
    this.charges.push([at + answer / 1000, cost]);
    this.maximum = Math.max(this.maximum, this.within(at + answer / 1000, window));
  }

  /** Returns the units passed within the window that ends at `at`. */
  within(at, window) {
    let sum = 0;
    for (let index = this.charges.length - 1; index >= 0; index -= 1) {
      const [charged, cost] = this.charges[index];
      if (charged <= at - window + 1e-9) break;
      if (charged <= at) sum += cost;
    }
    return sum;
  }

  tick(at, state) {
    this.state = state;
    this.levels.push([at, state.limit - state.left]);
    const start = state.remembers.start;
    if (start !== undefined && state.remembers.used > 0 && start / 1e6 !== this.starts.at(-1)) {
      this.starts = [...this.starts.slice(-50), start / 1e6];
    }
  }

  /** Removes entries older than an instant. */
  forget(before, window) {
    const drop = (list, at) => {
      let count = 0;
      while (count < list.length && list[count][0] < at) count += 1;
      // In batches, because removing from the front of an array is slow.
      if (count > 200) list.splice(0, count - 1);
    };
    drop(this.calls, before);
    drop(this.levels, before);
    drop(this.charges, before - window);
  }

  /** Returns the steps of the sum within the last window, [instant, sum], between two instants. */
  trailing(from, to, window) {
    const changes = [];
    for (const [at, cost] of this.charges) {
      if (at > to || at + window < from) continue;
      changes.push([at, cost], [at + window, -cost]);
    }
    changes.sort((left, right) => left[0] - right[0] || left[1] - right[1]);
    const steps = [];
    let sum = 0;
    changes.forEach(([at, change], index) => {
      sum += change;
      // Only the last sum of an instant is a step.
      const hasMore = index + 1 < changes.length && changes[index + 1][0] - at < 1e-6;
      if (at <= to && !hasMore) steps.push([Math.max(at, from), sum]);
    });
    return steps;
  }
}
