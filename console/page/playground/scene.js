// Settings of a simulation (a scene): algorithms, examples, and their encoding in a link.

/** Algorithms in the order of the page. `spec(scene)` returns the words of the limit; `flaw` is the known flaw. */
export const algorithms = [
  {
    id: "fixed", picture: "cells", title: "Fixed window", command: "RL.FIXED",
    spec: ({ limit, window }) => `FIXED ${limit} ${window}s`,
    what: "Counts calls, and begins again at 0 when the window is over.",
    flaw: "Two bursts across the end of a window both pass: twice the limit at nearly the same time.",
  },
  {
    id: "sliding", picture: "slider", title: "Sliding window", command: "RL.SLIDING",
    spec: ({ limit, window }) => `SLIDING ${limit} ${window}s`,
    what: "The count of this window, and the share of the last one that still overlaps.",
    flaw: "It assumes that the last window's calls were spread evenly. Late bursts in two windows can pass nearly twice the limit.",
  },
  {
    id: "strict", picture: "slots", title: "Strict sliding window", command: "RL.SLIDING … STRICT",
    spec: ({ limit, window }) => `SLIDING ${limit} ${window}s STRICT`,
    what: "Counts in 60 small slots, each whole until all of it is out of the window. Never more than the limit in any window.",
    flaw: "Units recover up to a sixtieth of the window late.",
  },
  {
    id: "log", picture: "log", title: "Sliding log", command: "RL.SLIDINGLOG",
    spec: ({ limit, window }) => `SLIDINGLOG ${limit} ${window}s`,
    what: "Remembers each call until it is as old as the window. Exact to the microsecond.",
    flaw: "It remembers up to 16 bytes for each admitted call in the window.",
  },
  {
    id: "token", picture: "bucket", title: "Token bucket", command: "RL.TOKENBUCKET",
    spec: ({ limit, window, burst }) => `TOKENBUCKET ${burst} ${limit} ${window}s`,
    what: "A bucket of tokens, refilled evenly. A call takes one; an empty bucket denies.",
    flaw: "A full bucket and its refill pass within one window: up to twice the limit, if the bucket holds as much.",
  },
  {
    id: "leaky", picture: "bucket", title: "Leaky bucket", command: "RL.LEAKYBUCKET",
    spec: ({ limit, window, burst }) => `LEAKYBUCKET ${burst} ${limit} ${window}s`,
    what: "A queue whose calls leave evenly, one after another. It tells each how long to wait; a full queue denies.",
    flaw: "After a burst, each call waits for all calls before it.",
  },
  {
    id: "concurrency", picture: "seats", title: "Concurrency", command: "RL.ACQUIRE",
    spec: ({ limit }) => `CONCURRENCY ${limit} 60s`,
    what: "Limits the calls in flight. Each holds a lease until it ends; a lease that is never released expires after a minute.",
    flaw: "It does not limit the rate: any number of short calls pass.",
  },
  {
    id: "sketch", picture: "rows", title: "Sketch", command: "RL.SKETCH",
    spec: ({ limit, window, burst, size }) => `SKETCH ${burst} ${limit} ${window}s SIZE ${Math.round(size)}kb`,
    what: "A token bucket for each of any number of addresses, in a fixed size. Addresses share cells: a call is charged to four, and the emptiest decides.",
    flaw: "It never grants more than a bucket per address. But if too many addresses share cells, callers below the limit are denied too.",
  },
];

/** Fields of a scene with their bounds. `others`: other callers a second. `size`: size of a sketch in KB. */
export const numbers = {
  limit: { minimum: 1, maximum: 60, step: 1, value: 10 },
  window: { minimum: 1, maximum: 60, step: 1, value: 10 },
  burst: { minimum: 1, maximum: 60, step: 1, value: 10 },
  rate: { minimum: 0, maximum: 20, step: 0.1, value: 0 },
  cost: { minimum: 1, maximum: 10, step: 1, value: 1 },
  hold: { minimum: 0.1, maximum: 20, step: 0.1, value: 2 },
  volley: { minimum: 1, maximum: 100, step: 1, value: 10 },
  others: { minimum: 0, maximum: 10_000, step: 100, value: 0 },
  size: { minimum: 64, maximum: 1024, step: 64, value: 64 },
  every: { minimum: 0, maximum: 120, step: 0.1, value: 0 },
  seed: { minimum: 0, maximum: 1_000_000, step: 1, value: 1 },
};

export const speeds = [[0, "Pause"], [50, "½×"], [100, "1×"], [300, "3×"], [1000, "10×"]];
const shown = ["fixed", "sliding", "strict", "log", "token", "leaky"];

/** Examples. `bursts`: [seconds, calls]. */
export const examples = [
  {
    id: "boundary", title: "Two bursts across a boundary",
    story: "9 calls just before the window ends, 10 just after it. The fixed window lets all pass: 19 calls in 1.6 seconds of a limit of 10 in 10. Watch its line go over the limit. The others keep the limit, except for the units that a token bucket refills meanwhile.",
    scene: { bursts: [[0, 1], [9.2, 9], [10.8, 10]], every: 40 },
  },
  {
    id: "late", title: "Late in both windows",
    story: "A burst at the end of a window, and one at the end of the next. By then the sliding window has nearly forgotten the first, though it is less than 10 seconds old. Only the strict window and the log remember.",
    scene: { bursts: [[0, 1], [9.9, 9], [19.8, 10]], every: 50 },
  },
  {
    id: "steady", title: "Twice the limit, evenly",
    story: "2 calls a second, of which 1 is allowed. Windows let a burst pass and then nothing; buckets let every second call pass; the leaky bucket makes its calls wait.",
    scene: { rate: 2 },
  },
  {
    id: "quiet", title: "A burst after a quiet time",
    story: "25 calls at once, each half minute. All but one let 10 pass in the same instant; the leaky bucket spreads its 10 over as many seconds.",
    scene: { bursts: [[0.5, 25]], every: 30 },
  },
  {
    id: "random", title: "Random, near the limit",
    story: "On average as many calls as the limit allows, but at random. The algorithm that denies least tolerates short bursts most.",
    scene: { rate: 1, random: true },
  },
  {
    id: "slow", title: "Slow calls",
    story: "A call a second, and each takes 5 seconds. A limit of 3 at once is reached though no rate limit would notice; make calls shorter and it is not.",
    scene: { rate: 1, hold: 5, limit: 3, window: 3, burst: 3, shown: ["concurrency", "token", "log"] },
  },
  {
    id: "addresses", title: "Too many addresses",
    story: "5,000 calls a second, each from another address, and you below your limit. All share 64 KB: soon the cells fill faster than they drain, and honest calls are denied, yours too. 128 KB are enough. A bucket of your own never notices the others, and takes memory for each of them.",
    scene: { rate: 0.3, window: 20, others: 5000, speed: 300, shown: ["token", "sketch"] },
  },
];

const defaults = () => ({
  ...Object.fromEntries(Object.entries(numbers).map(([name, { value }]) => [name, value])),
  random: false, bursts: [], shown, speed: 100, example: "",
});

/** Creates a scene from an example. */
export function fromExample(id) {
  const example = examples.find((candidate) => candidate.id === id) ?? examples[0];
  return { ...defaults(), ...structuredClone(example.scene), example: example.id };
}

const clamped = (name, text) => {
  const { minimum, maximum } = numbers[name];
  const value = Number(text);
  return text !== "" && Number.isFinite(value) ? Math.min(maximum, Math.max(minimum, value)) : null;
};

/** Parses the scene of a link. Missing and malformed fields have the values of the example. */
export function fromLink(query) {
  const scene = fromExample(query.get("example"));
  for (const name of Object.keys(numbers)) {
    const value = query.has(name) ? clamped(name, query.get(name)) : null;
    if (value !== null) scene[name] = value;
  }
  if (query.has("random")) scene.random = query.get("random") === "1";
  if (query.has("bursts")) {
    const bursts = query.get("bursts").split(",").map((burst) => burst.split(":").map(Number));
    scene.bursts = bursts.filter(([at, calls]) => at >= 0 && at <= 3600 && calls >= 1 && calls <= 100).slice(0, 20);
  }
  if (query.has("show")) {
    const named = query.get("show").split(",").filter((id) => algorithms.some((algorithm) => algorithm.id === id));
    if (named.length > 0) scene.shown = named;
  }
  const speed = Number(query.get("speed") ?? scene.speed);
  if (speeds.some(([value]) => value === speed)) scene.speed = speed;
  return scene;
}

/** Encodes a scene for a link: the fields that differ from its example. */
export function toLink(scene) {
  const example = fromExample(scene.example);
  const query = { example: example.example };
  for (const name of Object.keys(numbers)) if (scene[name] !== example[name]) query[name] = String(scene[name]);
  if (scene.random !== example.random) query.random = scene.random ? "1" : "0";
  const bursts = ({ bursts: all }) => all.map((burst) => burst.join(":")).join(",");
  if (bursts(scene) !== bursts(example)) query.bursts = bursts(scene);
  if (scene.shown.join() !== example.shown.join()) query.show = scene.shown.join();
  if (scene.speed !== example.speed) query.speed = String(scene.speed);
  return query;
}

/** Returns the algorithms of a scene in the order of the page. */
export const lanesOf = (scene) => algorithms.filter(({ id }) => scene.shown.includes(id));

/** Returns the body of the request for a simulation. */
export const requestOf = (scene) => ({
  limits: lanesOf(scene).map(({ spec }) => spec(scene)),
  traffic: {
    rate: Math.round(scene.rate * 1000), random: scene.random, cost: scene.cost,
    bursts: scene.bursts.map(([at, calls]) => [Math.round(at * 1000), calls]), every: Math.round(scene.every * 1000),
  },
  hold: Math.round(scene.hold * 1000),
  others: Math.round(scene.others),
  speed: scene.speed,
});

/** Returns the command that decides like a simulated limit. */
export function command(algorithm, scene, format) {
  const words = algorithm.spec(scene);
  const cost = scene.cost === 1 ? "" : ` COST ${scene.cost}`;
  if (algorithm.id === "sketch") {
    return format === "policy" ? `RL.POLICYSET per-address ${words}` : `RL.${words.replace(" ", " addresses 203.0.113.42 ")}${cost}`;
  }
  if (format === "policy") return `RL.POLICYSET login ${words}`;
  if (algorithm.id === "concurrency") return `RL.ACQUIRE user:42 ${scene.limit} 60s call-17${cost}`;
  return `RL.${words.replace(" ", " user:42 ")}${cost}`;
}
