// Line charts as SVG. A text or a table beside each chart has the same information for screen readers.
import { h, put, s } from "./dom.js";
import { instant, rate } from "./format.js";

const WIDTH = 1000;

/** Rounds up to 1, 2 or 5 times a power of ten, for the end of an axis. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}

/** Returns the SVG path of points [x, y] from 0 to 1. A null y is a gap. */
function path(points, height) {
  let pen = "M";
  let out = "";
  for (const [x, y] of points) {
    if (y === null) {
      pen = "M";
      continue;
    }
    out += `${pen}${(x * WIDTH).toFixed(1)} ${((1 - y) * height).toFixed(1)}`;
    pen = "L";
  }
  return out;
}

/**
 * Draws lines into an element: { from, to } of the time axis in milliseconds, `lines` of { colour: "--admitted", points:
 * [[ms, value or null], ...] }, `height` in pixels, `maximum` of the value axis (by default that of the values), `description`
 * the text for screen readers, `format(value)` formats a value.
 */
export function lines(element, { from, to, lines: series, height = 120, maximum, description, format = rate }) {
  const top = maximum ?? ceiling(Math.max(0, ...series.flatMap((line) => line.points.map(([, value]) => value ?? 0))));
  const position = ([at, value]) => [(at - from) / (to - from), value === null ? null : Math.min(1, value / top)];
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", height, role: "img", "aria-label": description });
  for (const share of [0, 0.5, 1]) {
    const y = Math.min(height - 0.5, Math.max(0.5, share * height));
    picture.append(s("line", { class: "grid-line", x1: 0, x2: WIDTH, y1: y, y2: y }));
  }
  for (const line of series) {
    const points = line.points.filter(([at]) => at >= from && at <= to).map(position);
    picture.append(s("path", { class: "line", d: path(points, height), style: { stroke: `var(${line.colour})` } }));
  }
  const labels = h("div", { class: "labels", "aria-hidden": "true" },
    h("span", { style: { top: "2px", left: "0" } }, format(top)),
    h("span", { style: { bottom: "2px", left: "0" } }, instant(from)),
    h("span", { style: { bottom: "2px", right: "0" } }, instant(to)));
  put(element, picture, labels);
  Object.assign(element, { axis: { from, to, height }, times: series[0].points.filter(([at, value]) => value !== null && at >= from && at <= to).map(([at]) => at) });
  mark(element);
}

/** Marks the chosen time of a chart. */
function mark(element) {
  element.querySelector(".chosen")?.remove();
  if (!element.axis || (element.chosen ?? null) === null) return;
  const { from, to, height } = element.axis;
  const x = ((element.chosen - from) / (to - from)) * WIDTH;
  element.querySelector("svg").append(s("line", { class: "chosen", x1: x, x2: x, y1: 0, y2: height }));
}

/**
 * Lets the pointer and the arrow keys choose a time of a chart. `onChoose(at)` is called with the nearest time that has
 * values, or null, and returns the text for screen readers.
 */
export function choosable(element, label, onChoose) {
  const choose = (at) => {
    element.chosen = at;
    element.setAttribute("aria-valuetext", onChoose(at) || "no time chosen");
    element.setAttribute("aria-valuenow", String(Math.max(0, element.times.indexOf(at))));
    element.setAttribute("aria-valuemax", String(Math.max(0, element.times.length - 1)));
    mark(element);
  };
  for (const [name, value] of Object.entries({ tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0, "aria-valuetext": "no time chosen" })) element.setAttribute(name, value);
  const nearest = (at) => element.times.reduce((best, time) => (Math.abs(time - at) < Math.abs(best - at) ? time : best), element.times[0]);
  element.addEventListener("pointermove", (event) => {
    if (element.times.length === 0) return;
    const { left, width } = element.getBoundingClientRect();
    choose(nearest(element.axis.from + ((event.clientX - left) / width) * (element.axis.to - element.axis.from)));
  });
  element.addEventListener("keydown", (event) => {
    const { times } = element;
    const index = times.indexOf(nearest(element.chosen ?? element.axis?.to));
    const to = { ArrowLeft: index - (element.chosen === null ? 0 : 1), ArrowRight: index + 1, Home: 0, End: times.length - 1, Escape: null }[event.key];
    if (to === undefined || times.length === 0) return;
    event.preventDefault();
    choose(to === null ? null : times[Math.min(times.length - 1, Math.max(0, to))]);
  });
  Object.assign(element, { chosen: null, times: [] });
}

/** Draws a small line without axes, for a row of a table. `points`: [[0 to 1, 0 to 1 or null], ...] */
export function spark(points, colour, width = 96, height = 22) {
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", width, height, "aria-hidden": "true", class: "spark" });
  picture.append(s("path", { class: "line", d: path(points, height), style: { stroke: `var(${colour})`, fill: "none", strokeWidth: 1.5 }, "vector-effect": "non-scaling-stroke" }));
  return picture;
}
