// Parsing, formatting and explanation of the limits of a policy.
import { number } from "./format.js";

const bucket = (first, second, firstHint) => [
  { name: "capacity", label: first, hint: firstHint, example: "20" },
  { name: "refill", label: second, hint: "units", example: "10" },
  { name: "period", label: "in each", hint: "such as 1s, 5m, 1h", example: "1s", time: true },
];
const window = (hint) => [
  { name: "limit", label: "Limit", hint: "units", example: "100" },
  { name: "window", label: "in each", hint: hint ?? "such as 1s, 5m, 1h, 1d", example: "1m", time: true },
];

/** Algorithms with their names, recommendations, and numbers in the order of the words. */
export const ALGORITHMS = {
  TOKENBUCKET: { label: "Token bucket", summary: "Lets a burst pass, and then a steady rate.", fields: bucket("Burst", "Refill", "units at once"), flags: ["FORCE"] },
  FIXED: { label: "Fixed window", summary: "Counts in windows. Cheap; two bursts may meet at a boundary.", fields: window("such as 1m, 1d; of the calendar: 1w, 1mo, 3mo, 1y"), flags: ["ALIGNED", "FORCE"] },
  SLIDING: { label: "Sliding window", summary: "Counts in a window that slides. Smooth.", fields: window(), flags: ["STRICT", "FORCE"] },
  SLIDINGLOG: { label: "Sliding log", summary: "Exact: remembers each call in the window.", fields: window(), flags: ["FORCE"] },
  LEAKYBUCKET: { label: "Leaky bucket", summary: "Tells each call when its turn comes, at a steady rate.", fields: bucket("Queue", "Leak", "units that wait"), flags: ["FORCE"] },
  CONCURRENCY: { label: "Concurrency", summary: "Limits the calls in flight. Calls need an id.", fields: [
    { name: "limit", label: "At once", hint: "units", example: "10" },
    { name: "ttl", label: "held for at most", hint: "such as 30s, 5m", example: "1m", time: true }] },
  SKETCH: { label: "Sketch", summary: "A bucket for each of millions of items, in memory of a fixed size.", fields: bucket("Burst", "Refill", "units at once"), sized: true },
};
const FLAGS = { ALIGNED: "Windows begin by the clock", STRICT: "Never more in any window", FORCE: "Charge past the limit" };
export const describeFlag = (flag) => FLAGS[flag];

/** Parses words to { limits: [{ algorithm, numbers, flags, options, cost, name, shadow }], ban }, or null if a word is unknown. */
export function parse(text) {
  const words = text.trim().split(/\s+/).filter(Boolean);
  const limits = [];
  let ban = null;
  const take = () => words.shift();
  while (words.length > 0) {
    const word = take();
    const upper = word.toUpperCase();
    const limit = limits.at(-1);
    if (ALGORITHMS[upper]) {
      const numbers = ALGORITHMS[upper].fields.map(take);
      if (numbers.includes(undefined)) return null;
      limits.push({ algorithm: upper, numbers, flags: [], options: [], cost: "", name: "", shadow: false });
    } else if (upper === "BAN") {
      ban = { strikes: take(), window: take(), block: take(), longest: "" };
      if (words[0]?.toUpperCase() === "MAX") [, ban.longest] = [take(), take()];
      if (words.length > 0 || ban.block === undefined || ban.longest === undefined) return null;
    } else if (!limit) return null;
    else if (upper === "SHADOW") limit.shadow = true;
    else if (FLAGS[upper]) limit.flags.push(upper);
    else if (["COST", "AS", "OFFSET", "ANCHOR", "SIZE"].includes(upper) && words.length > 0) {
      if (upper === "COST") limit.cost = take();
      else if (upper === "AS") limit.name = take();
      else limit.options.push(`${upper} ${take()}`);
    } else return null;
  }
  return { limits, ban };
}

/** Formats a limit as words. */
export const wordsOf = (limit) => [limit.algorithm, ...limit.numbers, ...limit.flags, ...limit.options,
  limit.cost && `COST ${limit.cost}`, limit.name && `AS ${limit.name}`, limit.shadow && "SHADOW"].filter(Boolean).join(" ");

const banWords = (ban) => `BAN ${ban.strikes} ${ban.window} ${ban.block}${ban.longest ? ` MAX ${ban.longest}` : ""}`;

/** Formats limits and ban as words. */
export const write = ({ limits, ban }) => [...limits.map(wordsOf), ban && banWords(ban)].filter(Boolean).join(" ");

const UNITS = { us: "µs", ms: "ms", s: "s", m: "min", h: "h", d: "d", w: "week", mo: "month", y: "year" };
/** Formats a duration: 1m as "1 min", 90 as "90 s". */
export function time(word) {
  const [, count, unit] = /^([\d.e+-]+?)(us|ms|s|m|h|d|w|mo|y)?$/.exec(word ?? "") ?? [];
  return count === undefined ? String(word) : `${count} ${UNITS[unit ?? "s"]}`;
}

const count = (word) => (Number.isFinite(Number(word)) && word !== "" ? number(Number(word)) : String(word));
const WHOLE = { "1 s": "second", "1 min": "minute", "1 h": "hour", "1 d": "day" };
const per = (word) => WHOLE[time(word)] ?? time(word).replace(/^1 /, "");

/** Explains a limit in words. */
export function describe(limit) {
  const [first, second, third] = limit.numbers;
  const main = {
    TOKENBUCKET: () => `${count(first)} at once, then ${count(second)} per ${per(third)}`,
    LEAKYBUCKET: () => `${count(second)} per ${per(third)} in turn, ${count(first)} may wait`,
    FIXED: () => `${count(first)} per ${per(second)}`,
    SLIDING: () => (limit.flags.includes("STRICT") ? `never more than ${count(first)} in any ${per(second)}` : `${count(first)} in any ${per(second)}`),
    SLIDINGLOG: () => `exactly ${count(first)} in any ${per(second)}`,
    CONCURRENCY: () => `${count(first)} at once, held for ${time(second)} at most`,
    SKETCH: () => `each item ${count(first)} at once, then ${count(second)} per ${per(third)}`,
  }[limit.algorithm]();
  const more = [limit.flags.includes("ALIGNED") && "of the clock", limit.flags.includes("FORCE") && "charged past it", ...limit.options.map((option) => option.toLowerCase()),
    limit.cost && `each call costs ${count(limit.cost)}`].filter(Boolean);
  return [main, ...more].join(", ");
}

export const describeBan = (ban) => `ban for ${time(ban.block)} at the ${count(ban.strikes)}${ordinal(ban.strikes)} denied call within ${time(ban.window)}${ban.longest ? `, doubled each time up to ${time(ban.longest)}` : ""}`;
const ordinal = (word) => ({ 1: "st", 2: "nd", 3: "rd" })[/1[123]$/.test(word) ? 0 : Number(String(word).at(-1))] ?? "th";

/** Returns the lines of a policy: [{ words, description, name, shadow, limit, ban }], or a single line if it cannot be parsed. */
export function lines(specs) {
  const policy = parse(specs);
  if (!policy) return [{ words: specs, description: specs }];
  const all = policy.limits.map((limit) => ({ words: wordsOf(limit), description: describe(limit), name: limit.name, shadow: limit.shadow, limit }));
  if (policy.ban) all.push({ words: banWords(policy.ban), description: describeBan(policy.ban), ban: true });
  return all;
}

/** Scales a limit and rounds as the server does: down to millionths, a refill to at least one millionth. */
export function scaled(limit, factor) {
  const scaledWord = (word, minimum = 0) => {
    const value = Math.floor(Number(word) * factor * 1e6 + 1e-6) / 1e6;
    return String(Math.max(value, minimum));
  };
  const numbers = [...limit.numbers];
  numbers[0] = scaledWord(numbers[0]);
  if (ALGORITHMS[limit.algorithm].fields[1].name === "refill") numbers[1] = scaledWord(numbers[1], 1e-6);
  return { ...limit, numbers };
}

/** Compares two policies line by line: { sign: "gone" | "new" | "same", line }. */
export function difference(before, after) {
  const [was, is] = [before === null ? [] : lines(before), after === null ? [] : lines(after)];
  const isIn = (line, others) => others.some((other) => other.words === line.words);
  return [
    ...was.filter((line) => !isIn(line, is)).map((line) => ({ sign: "gone", line })),
    ...is.map((line) => ({ sign: isIn(line, was) ? "same" : "new", line })),
  ];
}

/** Returns true if the policy is a sketch. */
export const isSketch = (specs) => /^SKETCH\b/i.test(specs);
const hasSketch = ({ limits }) => limits[0]?.algorithm === "SKETCH";

/** Returns warnings about the replacement of `before` by `after`. */
export function consequences(before, after) {
  const [was, is] = [before === null ? null : parse(before), parse(after)];
  if (!is) return [];
  const warnings = [];
  if (is.limits.length > 0 && is.limits.every((limit) => limit.shadow)) warnings.push("All limits are in shadow mode: denials are counted and not enforced.");
  if (was && hasSketch(was) !== hasSketch(is)) {
    // Their usages cannot be converted or compared.
    warnings.push(hasSketch(is) ? "Calls on keys that are in use get an error: a sketch needs a key of its own. Calls must name an item."
      : "Calls on the key of the sketch get an error until all of it has recovered: other limits need other keys.");
    return warnings;
  }
  if (was && hasSketch(is) && was.limits[0].options.join() !== is.limits[0].options.join()) warnings.push("An existing key keeps its size.");
  for (const limit of was ? is.limits : []) {
    const same = was.limits.find((old) => (limit.name ? old.name === limit.name && old.algorithm === limit.algorithm : !old.name && old.algorithm === limit.algorithm));
    if (!same) warnings.push(`“${describe(limit)}” starts empty: earlier usage does not count for it.`);
    else if (same.shadow && !limit.shadow) warnings.push(`“${describe(limit)}” denies from now on. Its usage in shadow mode counts.`);
  }
  for (const limit of was?.limits ?? []) {
    if (!limit.shadow && !is.limits.some((other) => !other.shadow && other.algorithm === limit.algorithm && other.name === limit.name)) {
      warnings.push(`“${describe(limit)}” limits nobody any more.`);
    }
  }
  return warnings;
}

/** Adds the limits of `tried` to a policy in shadow mode. A limit gets a name if the policy has an unnamed one of its algorithm. */
export function addShadow(specs, tried) {
  const [policy, added] = [parse(specs), parse(tried)];
  if (!policy || !added) return specs;
  const taken = new Set(policy.limits.map((limit) => limit.name));
  let number = 1;
  for (const limit of added.limits) {
    if (!limit.name && policy.limits.some((other) => other.algorithm === limit.algorithm && !other.name)) {
      while (taken.has(`tried${number > 1 ? number : ""}`)) number += 1;
      limit.name = `tried${number > 1 ? number : ""}`;
      taken.add(limit.name);
    }
    policy.limits.push({ ...limit, shadow: true });
  }
  return write(policy);
}
