// Pictures of a simulated limit: its history, and its stored state.
import { outcome } from "./history.js";

const NAMES = ["surface", "sunken", "line", "line-strong", "text", "muted", "accent", "admitted", "admitted-soft", "denied", "denied-soft", "shadowed", "shadowed-soft", "warn"];

/** Returns the current colours of the page. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const all = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  all.font = style.getPropertyValue("--font") || "sans-serif";
  return all;
}

/** Clears a canvas and scales it to the pixels of the screen. Returns its context, width and height. */
function clearCanvas(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

/** Height of the upper part with the curves, in pixels. */
const CURVES_HEIGHT = 74;
/** Maximum height of a brick in pixels. */
const BRICK_HEIGHT = 5;

/**
 * Draws the history: usage and passed calls in the upper part, single calls in the lower part. Time goes from left to right;
 * `now` is at the right end once the picture is full.
 */
export function timeline(canvas, lane, { now, span, window, limit, colour }) {
  const { pen, width, height } = clearCanvas(canvas);
  const from = Math.max(0, now - span);
  const x = (at) => ((at - from) / span) * width;
  const { history } = lane;
  const hasRate = lane.algorithm.id !== "concurrency";
  const top = Math.max(limit, history.state?.limit ?? 0, 1) * 2.05;
  const base = CURVES_HEIGHT - 0.5;
  const y = (value) => base - (Math.min(value, top) / top) * (CURVES_HEIGHT - 4);

  // Grid lines at round numbers of seconds.
  const step = [1, 2, 5, 10, 30, 60, 120].find((seconds) => (seconds / span) * width > 44) ?? 300;
  pen.font = `10px ${colour.font}`;
  pen.textBaseline = "bottom";
  for (let at = Math.ceil(from / step) * step; at <= from + span; at += step) {
    pen.fillStyle = colour.line;
    pen.fillRect(Math.round(x(at)), 0, 1, height - 12);
    pen.fillStyle = colour.muted;
    const label = `${at} s`;
    const labelX = x(at) + 3;
    if (labelX + pen.measureText(label).width < width) pen.fillText(label, labelX, height);
  }

  // Beginning and end of windows.
  pen.strokeStyle = colour["line-strong"];
  pen.setLineDash([3, 3]);
  pen.lineWidth = 1;
  const edges = new Set(history.starts.flatMap((start) => [start, start + window]));
  for (const at of [...edges].filter((edge) => edge >= from && edge <= now)) {
    pen.beginPath();
    pen.moveTo(Math.round(x(at)) + 0.5, 2);
    pen.lineTo(Math.round(x(at)) + 0.5, height - 13);
    pen.stroke();
  }
  pen.setLineDash([]);

  // Usage according to the algorithm.
  const levels = history.levels.filter(([at]) => at >= from - 1);
  if (levels.length > 1) {
    pen.beginPath();
    pen.moveTo(x(levels[0][0]), base);
    for (const [at, used] of levels) pen.lineTo(x(at), y(used));
    pen.lineTo(x(levels.at(-1)[0]), base);
    pen.closePath();
    pen.fillStyle = colour["admitted-soft"];
    pen.fill();
  }

  // Units passed within the last window, regardless of the algorithm. Red above the limit.
  if (hasRate) {
    const steps = history.trailing(from, now, window);
    let last = [from, history.within(from, window)];
    pen.lineWidth = 1.75;
    pen.lineJoin = "round";
    const path = new Path2D();
    const over = new Path2D();
    path.moveTo(x(last[0]), y(last[1]));
    for (const [at, sum] of [...steps, [now, null]]) {
      const value = sum ?? last[1];
      path.lineTo(x(at), y(last[1]));
      path.lineTo(x(at), y(value));
      if (last[1] > limit + 1e-9) over.rect(x(last[0]), y(last[1]), x(at) - x(last[0]), y(limit) - y(last[1]));
      last = [at, value];
    }
    pen.fillStyle = colour["denied-soft"];
    pen.fill(over);
    pen.strokeStyle = colour.admitted;
    pen.stroke(path);
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, width, y(limit) - 0.9);
    pen.clip();
    pen.strokeStyle = colour.denied;
    pen.lineWidth = 2.25;
    pen.stroke(path);
    pen.restore();
  }
  pen.fillStyle = colour["line-strong"];
  pen.fillRect(0, Math.round(y(limit)), width, 1);
  pen.fillStyle = colour.muted;
  pen.fillText(`limit ${limit}`, 3, Math.round(y(limit)) - 1);
  if (now < span) {
    pen.fillStyle = colour.accent;
    pen.fillRect(Math.round(x(now)), 0, 1.5, height - 12);
  }

  // A brick for each call. Calls of the same instant are stacked.
  const floor = height - 14;
  const room = floor - CURVES_HEIGHT - 4;
  const column = Math.max(3, Math.min(7, width / 90));
  const columns = new Map();
  for (const [at, answer] of history.calls) {
    if (at < from) continue;
    const place = Math.floor((at / span) * (width / column));
    if (!columns.has(place)) columns.set(place, []);
    columns.get(place).push(answer);
  }
  for (const [place, answers] of columns) {
    const left = ((place * column) / width) * span;
    const brick = Math.min(BRICK_HEIGHT, room / answers.length);
    answers.forEach((answer, index) => {
      const kind = outcome(answer);
      const bottom = floor - index * brick;
      const tall = Math.max(1, brick - (brick > 3 ? 1 : 0.3));
      if (kind === "denied") {
        // Hollow, so that denials are recognizable without colours.
        pen.strokeStyle = colour.denied;
        pen.lineWidth = 1;
        if (tall > 2.5) pen.strokeRect(x(left) + 0.5, bottom - tall + 0.5, column - 2, tall - 1);
        else {
          pen.fillStyle = colour.denied;
          pen.fillRect(x(left), bottom - tall, column - 1, tall);
        }
      } else {
        pen.fillStyle = kind === "held" ? colour.shadowed : colour.admitted;
        pen.fillRect(x(left), bottom - tall, column - 1, tall);
      }
    });
  }
}

/** Draws the stored state as the picture of the algorithm. */
export function drawState(canvas, lane, { now, window, limit, colour, reducedMotion }) {
  const { pen, width, height } = clearCanvas(canvas);
  const { state, charges } = { state: lane.history.state, charges: lane.history.charges };
  if (!state) return;
  const used = Math.max(0, state.limit - state.left);
  const box = { x: 6, y: 8, w: width - 12, h: height - 16 };
  const draw = { bucket, cells, slider, slots, log, seats, rows }[lane.algorithm.picture];
  draw({ pen, box, used, state, charges, now, window, limit, colour, reducedMotion, leaky: lane.algorithm.id === "leaky" });
}

function outline(pen, box, colour) {
  pen.strokeStyle = colour["line-strong"];
  pen.lineWidth = 1.5;
  pen.strokeRect(box.x + 0.5, box.y + 0.5, box.w - 1, box.h - 1);
}

/** Draws a bucket, of tokens left or of delayed calls. */
function bucket({ pen, box, used, state, now, colour, reducedMotion, limit, window, leaky }) {
  const share = Math.min(1, (leaky ? used : state.left) / state.limit);
  const inset = box.w * 0.13;
  const [left, right] = [box.x + inset * 0.6, box.x + box.w - inset * 0.6];
  const [topY, bottomY] = [box.y + 10, box.y + box.h - (leaky ? 10 : 2)];
  const side = (y) => ((y - topY) / (bottomY - topY)) * inset;
  const level = bottomY - (bottomY - topY) * share;
  pen.beginPath();
  pen.moveTo(left + side(level), level);
  pen.lineTo(right - side(level), level);
  pen.lineTo(right - inset, bottomY);
  pen.lineTo(left + inset, bottomY);
  pen.closePath();
  pen.fillStyle = leaky ? colour.shadowed : colour.admitted;
  pen.globalAlpha = 0.85;
  pen.fill();
  pen.globalAlpha = 1;
  pen.beginPath();
  pen.moveTo(left, topY - 3);
  pen.lineTo(left + inset, bottomY);
  pen.lineTo(right - inset, bottomY);
  pen.lineTo(right, topY - 3);
  pen.strokeStyle = colour["line-strong"];
  pen.lineWidth = 1.75;
  pen.lineJoin = "round";
  pen.stroke();
  // A drop for each unit that flows in or out.
  const moves = leaky ? used > 0 : share < 1;
  if (moves && !reducedMotion) {
    const phase = (now * (limit / window)) % 1;
    const drop = leaky ? bottomY + 2 + phase * 8 : box.y - 6 + phase * (level - box.y + 4);
    pen.beginPath();
    pen.arc(box.x + box.w / 2, Math.min(drop, leaky ? box.y + box.h + 4 : level), 2.5, 0, 7);
    pen.fillStyle = leaky ? colour.shadowed : colour.admitted;
    pen.fill();
  }
}

/** Draws a count as cells, and the elapsed part of its window. */
function cells({ pen, box, used, state, now, window, colour }) {
  const start = (state.remembers.start ?? 0) / 1e6;
  const open = used > 0 && now < start + window;
  grid(pen, { ...box, h: box.h - 12 }, Math.max(1, Math.round(state.limit)), Math.round(open ? used : 0), colour.admitted, colour);
  const y = box.y + box.h - 6;
  pen.fillStyle = colour.line;
  pen.fillRect(box.x, y, box.w, 4);
  pen.fillStyle = colour.muted;
  if (open) pen.fillRect(box.x, y, box.w * Math.min(1, (now - start) / window), 4);
}

/** Draws the units of a concurrency limit. Those in use are filled. */
function seats({ pen, box, state, used, colour }) {
  grid(pen, box, Math.max(1, Math.round(state.limit)), Math.round(used), colour.shadowed, colour);
}

function grid(pen, box, count, taken, fill, colour) {
  let columns = Math.ceil(Math.sqrt((count * box.w) / box.h));
  const rows = Math.ceil(count / columns);
  columns = Math.ceil(count / rows);
  const size = Math.min(box.w / columns, box.h / rows, 22);
  const [x, y] = [box.x + (box.w - size * columns) / 2, box.y + (box.h - size * rows) / 2];
  const gap = size > 8 ? 2 : 1;
  for (let index = 0; index < count; index += 1) {
    const [left, top] = [x + (index % columns) * size, y + Math.floor(index / columns) * size];
    pen.fillStyle = index < taken ? fill : colour.line;
    pen.fillRect(left, top, size - gap, size - gap);
  }
}

/** Draws two counts: the part of the previous window that still counts, and the current window. */
function slider({ pen, box, state, now, window, limit, colour }) {
  const { previous = 0, current = 0, start = 0 } = state.remembers;
  const elapsed = now - start / 1e6;
  // More than one window may have passed since the last call.
  const [last, present, part] = elapsed < window ? [previous, current, elapsed / window]
    : elapsed < 2 * window ? [current, 0, elapsed / window - 1] : [0, 0, 0];
  const half = box.w / 2 - 3;
  const top = Math.max(limit, last, present, 1);
  const tall = box.h - 12;
  const bar = (x, value, share, fill) => {
    const height = (value / top) * tall;
    pen.fillStyle = colour.line;
    pen.fillRect(x, box.y + tall - height, half, height);
    pen.fillStyle = fill;
    pen.fillRect(x + half * (1 - share), box.y + tall - height, half * share, height);
  };
  bar(box.x, last, 1 - part, colour.shadowed);
  bar(box.x + half + 6, present, 1, colour.admitted);
  pen.fillStyle = colour["line-strong"];
  pen.fillRect(box.x, box.y + tall, box.w, 1.5);
  pen.fillStyle = colour.muted;
  pen.font = `10px ${colour.font}`;
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  pen.fillText("last", box.x + half / 2, box.y + box.h + 2);
  pen.fillText("this", box.x + half * 1.5 + 6, box.y + box.h + 2);
  pen.textAlign = "left";
}

/** Draws 61 slots as a ring, each with its count: as many as a window of 60 slots overlaps. The hand is at the current time. */
function slots({ pen, box, charges, now, window, limit, colour }) {
  const width = window / 60;
  const counts = new Array(61).fill(0);
  const current = Math.floor(now / width);
  for (const [at, cost] of charges) {
    const slot = Math.floor(at / width);
    if (slot > current - 61 && slot <= current) counts[((slot % 61) + 61) % 61] += cost;
  }
  const [x, y] = [box.x + box.w / 2, box.y + box.h / 2];
  const outer = Math.min(box.w, box.h) / 2;
  const inner = outer * 0.6;
  counts.forEach((count, slot) => {
    const from = (slot / 61) * 2 * Math.PI - Math.PI / 2;
    const to = from + ((2 * Math.PI) / 61) * 0.8;
    const far = count > 0 ? inner + (outer - inner) * Math.max(0.4, Math.min(1, count / limit)) : inner + 5;
    pen.beginPath();
    pen.arc(x, y, far, from, to);
    pen.arc(x, y, inner, to, from, true);
    pen.closePath();
    pen.fillStyle = count > 0 ? colour.admitted : colour.line;
    pen.fill();
  });
  const hand = ((current % 61) / 61) * 2 * Math.PI - Math.PI / 2;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + Math.cos(hand) * inner, y + Math.sin(hand) * inner);
  pen.strokeStyle = colour.text;
  pen.lineWidth = 1.5;
  pen.stroke();
}

/** Draws stored calls by age: new ones at the right, expiring ones at the left. */
function log({ pen, box, charges, now, window, colour }) {
  outline(pen, box, colour);
  const kept = charges.filter(([at]) => at > now - window && at <= now);
  const stacks = new Map();
  for (const [at] of kept) {
    const x = Math.round(box.x + 4 + ((at - now + window) / window) * (box.w - 9));
    const index = stacks.get(x) ?? 0;
    stacks.set(x, index + 1);
    const size = 4;
    const y = box.y + box.h - 4 - size - (index * (size + 1)) % (box.h - 8);
    pen.fillStyle = colour.admitted;
    pen.fillRect(x, Math.max(box.y + 3, y), size - 1, size);
  }
}

/** Draws the four cells of an address. The emptiest cell decides, and is highlighted. */
function rows({ pen, box, state, colour }) {
  const emptiest = Math.max(...state.cells);
  const chosen = state.cells.indexOf(emptiest);
  const [wide, tall] = [box.w / 4 - 4, box.h - 14];
  state.cells.forEach((left, row) => {
    const x = box.x + row * (box.w / 4) + 2;
    const height = (1 - Math.min(1, left / state.limit)) * tall;
    pen.fillStyle = colour.line;
    pen.fillRect(x, box.y, wide, tall);
    pen.fillStyle = row !== chosen ? colour["line-strong"] : state.next === null || state.next < 0 ? colour.denied : colour.admitted;
    pen.fillRect(x, box.y + tall - height, wide, height);
    if (row !== chosen) return;
    pen.strokeStyle = colour.text;
    pen.lineWidth = 1.5;
    pen.strokeRect(x - 1, box.y - 1, wide + 2, tall + 2);
  });
  pen.fillStyle = colour.muted;
  pen.font = `10px ${colour.font}`;
  pen.textAlign = "center";
  pen.textBaseline = "alphabetic";
  pen.fillText("your four cells", box.x + box.w / 2, box.y + box.h + 2);
  pen.textAlign = "left";
}
