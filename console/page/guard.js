// Estimate of the calls that an edit of a policy would have denied, from the calls that the policy admitted in the last
// five minutes, and the usage of a sample of keys while the dialog is open.
import { h, put, repeat } from "./dom.js";
import { duration, number } from "./format.js";
import { parse, scaled } from "./specs.js";

/** Share of denied calls above which the dialog warns. */
const WARNING_SHARE = 0.1;
const FIVE_MINUTES = 300_000;
/** Milliseconds between two searches for keys in use. */
const SEARCH_INTERVAL = 10_000;
/** Weight of the mean of all buckets, in observations of a single bucket. */
const MEAN_WEIGHT = 2;
const UNITS = { us: 0.001, ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000, mo: 2_592_000_000, y: 31_536_000_000 };

/** Returns the milliseconds of a duration such as 1m, or NaN. */
function milliseconds(word) {
  const [, count, unit] = /^([\d.]+)(us|ms|s|m|h|d|w|mo|y)?$/.exec(word ?? "") ?? [];
  return Number(count) * UNITS[unit ?? "s"];
}

/** Returns the parameters of a limit: its kind, its capacity, its window in milliseconds, and the units of a millisecond. */
function parameters(limit) {
  const [first, second, third] = limit.numbers;
  const capacity = Number(first);
  const shared = { capacity, shadow: limit.shadow, cost: Number(limit.cost || 1), id: `${limit.algorithm} ${limit.name}` };
  if (limit.algorithm === "CONCURRENCY") return { ...shared, kind: "leases" };
  if (limit.algorithm === "FIXED" || limit.algorithm.startsWith("SLIDING")) {
    const window = milliseconds(second);
    return { ...shared, kind: limit.algorithm === "FIXED" ? "fixed" : "sliding", window, rate: capacity / window };
  }
  return { ...shared, kind: "bucket", rate: Number(second) / milliseconds(third) };
}

/** Parses a policy with its scale to the parameters of its limits, or null if it has words that the page does not know. */
export function parametersOf(specs, scale = 1) {
  const policy = parse(specs);
  return policy && policy.limits.map((limit) => parameters(scale === 1 ? limit : scaled(limit, scale)));
}

/**
 * Adds an observation of a key to the result of the previous one, `before`. `usages` has [used units, milliseconds until it
 * has recovered] of each limit, and `limits` their parameters. Returns { at, limits: [{ used, units, time, seen }] } with the
 * `units` that were charged in the last `time` milliseconds. For a bucket, `seen` counts the observations after the first.
 */
export function observe(before, at, usages, limits) {
  return { at, limits: usages.map(([used, reset], index) => {
    const limit = limits[index];
    if (limit?.kind === "fixed") {
      // At least a tenth of the window: in a shorter time, the first calls would look like a flood.
      const time = Math.max(limit.window - reset, limit.window / 10);
      return { used, units: used, time };
    }
    if (limit?.kind === "sliding") return { used, units: used, time: limit.window };
    if (limit?.kind !== "bucket") return { used, units: 0, time: 0 };
    // Computed from the reset, because the reply has only whole units.
    const level = reset * limit.rate;
    const last = before?.limits[index];
    const passed = last ? at - before.at : 0;
    if (!(passed > 0)) return last ?? { used: level, units: 0, time: 0, seen: 0 };
    // A bucket recovers while it is in use, so its charges include what it recovered. After its former usage would have
    // recovered, it counts as in use only if it is in use now.
    const busy = Math.min(passed, last.used / limit.rate);
    const rest = level > 0 ? passed - busy : 0;
    const charged = limit.rate * (busy + rest) + level - last.used;
    return { used: level, units: last.units + Math.max(0, charged), time: last.time + passed, seen: last.seen + 1 };
  }) };
}

/**
 * Returns { rate, seen } of a key: its calls a millisecond, by the limit with the observed time closest to five minutes, and
 * the `seen` of this limit.
 */
function rateOf(key, limits) {
  let best = null;
  for (const [index, { units, time, seen }] of key.limits.entries()) {
    if (!(time > 0) || !limits[index]) continue;
    const distance = Math.abs(Math.log(time / FIVE_MINUTES));
    if (best === null || distance < best.distance) best = { distance, seen, rate: units / time / limits[index].cost };
  }
  if (best) return best;
  // A bucket that was observed once: at most the rate at which it recovers.
  const buckets = limits.filter(({ kind, shadow }) => kind === "bucket" && !shadow).map(({ rate, cost }) => rate / cost);
  return { rate: buckets.length > 0 ? Math.min(...buckets) : 0, seen: buckets.length > 0 ? 0 : undefined };
}

/** Returns the rates of keys. After a few observations, the rate of a bucket is averaged with the mean of all buckets. */
function ratesOf(keys, limits) {
  const rates = keys.map((key) => rateOf(key, limits));
  const buckets = rates.filter(({ seen }) => seen > 0);
  const mean = buckets.reduce((sum, { rate }) => sum + rate, 0) / buckets.length;
  return rates.map(({ rate, seen }) => ({ seen, rate: seen > 0 ? (rate * seen + mean * MEAN_WEIGHT) / (seen + MEAN_WEIGHT) : rate }));
}

/** Returns the share of a steady caller's calls that limits deny, from 0 to 1. `used` has { used, window } by the ids of limits. */
function deniedShare(after, rate, used = new Map()) {
  return Math.max(0, ...after.filter(({ shadow }) => !shadow).map((limit) => {
    if (limit.capacity < limit.cost) return 1;
    const stored = used.get(limit.id);
    if (limit.kind === "leases") return stored === undefined ? 0 : 1 - limit.capacity / stored.used;
    const units = rate * limit.cost;
    // In a long window, the present usage decides how much of the limit is left.
    if (limit.window > FIVE_MINUTES && stored?.window === limit.window) return Math.min(1, (stored.used - limit.capacity) / (units * FIVE_MINUTES));
    return 1 - limit.rate / units;
  }).filter((share) => !Number.isNaN(share)));
}

/**
 * Estimates the share of the admitted calls that other limits would have denied: { share, basis, bound }. `bound` is true for
 * an upper bound. `counts` are those of the last `seconds`, `keys` observed keys, and `complete` is true if these are all
 * keys. Returns null if there is no estimate.
 */
export function estimate(before, after, { counts, seconds, keys, complete }) {
  if (!before || !after || !(counts.admitted > 0)) return null;
  const plain = (limits) => JSON.stringify(limits.map(({ shadow, ...rest }) => rest));
  if (before.some(({ shadow }) => shadow) && !after.some(({ shadow }) => shadow) && plain(before) === plain(after)) {
    return { share: Math.min(1, counts.shadow_denied / counts.admitted), basis: "Counted by its limits in shadow mode." };
  }
  const total = counts.admitted / (seconds * 1000);
  if (keys.length === 0) {
    // As if one key made all calls, as far as the limits before the edit admit them.
    const caps = before.filter(({ shadow, rate }) => !shadow && rate > 0).map(({ rate, cost }) => rate / cost);
    return { share: deniedShare(after, Math.min(total, ...caps)), bound: true, basis: "At most: no key in use is known." };
  }
  const rates = ratesOf(keys, before);
  const rows = keys.map((key, row) => {
    const used = new Map(before.map(({ id, window }, index) => [id, { used: key.limits[index]?.used ?? 0, window }]));
    const { rate } = rates[row];
    return { rate, share: deniedShare(after, rate, used) };
  }).sort((one, other) => other.rate - one.rate);
  // Keys of other policies may be among the keys. If the keys are complete, the worst case counts: the keys that call most,
  // up to the calls that the policy admitted.
  let [calls, denied] = [0, 0];
  for (const { rate, share } of rows) {
    const counted = complete ? Math.min(rate, Math.max(0, total - calls)) : rate;
    calls += counted;
    denied += counted * share;
  }
  // Without a rate, as for leases, all keys have the same weight.
  const share = calls > 0 ? denied / calls : rows.reduce((sum, row) => sum + row.share, 0) / rows.length;
  if (rates.some(({ seen }) => seen === 0)) return { share, bound: true, basis: "At most: looking at the usage of its keys." };
  return { share, basis: `Estimated by the usage of ${number(keys.length)} ${keys.length === 1 ? "key" : "keys"} in use, as if each called steadily. Keys of other policies may be among them.` };
}

/**
 * Creates a warning about the calls that a change would deny. `before()` and `after()` return the limits of parametersOf.
 * Returns the element, and a function that draws it anew after an edit.
 */
export function guard({ api }, policy, signal, before, after) {
  const warning = h("div", { "aria-live": "polite" });
  const view = { answer: null, keys: new Map(), complete: false, text: "", requestedAt: 0 };
  function draw() {
    const found = view.answer && estimate(before(), after(), { ...view.answer, keys: [...view.keys.values()], complete: view.complete });
    const text = !found || !(Math.round(found.share * 1000) > WARNING_SHARE * 1000) ? ""
      : `${found.bound ? "Could" : "Would"} have denied ${found.bound ? "up to " : ""}${number(Math.round(found.share * 100))} % of the ${number(view.answer.counts.admitted)} calls that it admitted in the last ${view.answer.seconds > 290 ? "five minutes" : duration(view.answer.seconds * 1000)}.`;
    if (view.text === text) return;
    view.text = text;
    put(warning, text && h("p", { class: "notice warn" }, h("b", {}, text), ` ${found.basis}`));
  }
  repeat(2000, signal, async () => {
    // A search for keys costs more than a read of known keys.
    if (view.keys.size === 0 && view.answer && Date.now() - view.requestedAt < SEARCH_INTERVAL) return;
    view.requestedAt = Date.now();
    const answer = await api.post("api/usage", { policy, keys: [...view.keys.keys()] }, { signal });
    const limitsBefore = before();
    if (view.keys.size === 0) view.complete = answer.complete;
    for (const [key, usages] of answer.keys) view.keys.set(key, observe(view.keys.get(key), answer.at, usages, limitsBefore ?? []));
    view.answer = answer;
    draw();
  });
  return [warning, draw];
}
