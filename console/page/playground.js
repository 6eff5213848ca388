// Playground: algorithms side by side under the same traffic. The console simulates them; the page draws the results.
import { copy, segmented } from "./dialog.js";
import { h, put } from "./dom.js";
import { compact, duration, number, percent } from "./format.js";
import { colours, drawState, timeline } from "./playground/draw.js";
import { History } from "./playground/history.js";
import { algorithms, command, examples, fromExample, fromLink, lanesOf, numbers, requestOf, speeds, toLink } from "./playground/scene.js";
import { connect } from "./playground/stream.js";

const narrow = matchMedia("(max-width: 760px)");
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

export async function mount(root, context) {
  const { api, signal } = context;
  let scene = fromLink(context.query);
  let format = "command";
  const folded = new Map();
  let lanes = [];
  const clock = { now: 0, received: 0 };

  const lanesRoot = h("div", { class: "pg-lanes" });
  const controls = h("div", { class: "pg-controls" });
  const story = h("p", { class: "pg-story", "aria-live": "polite" });
  const chips = h("div", { class: "pg-chips", role: "group", "aria-label": "Examples" });
  const speed = h("div");
  const volley = h("button", { class: "button small", type: "button", onclick: () => stream.send({ calls: scene.volley }) });
  const problem = h("div", { class: "notice error", role: "alert", hidden: true });
  put(root,
    h("div", { class: "head" }, h("h1", {}, "Playground"),
      h("div", { class: "row end" },
        h("button", { class: "button primary small", type: "button", onclick: () => stream.send({ calls: 1 }) }, "One call"), volley, speed,
        h("button", { class: "button small", type: "button", onclick: () => stream.restart() }, "Start again"),
        copy(() => location.href, "Copy link"))),
    chips, story, problem,
    h("div", { class: "pg-layout" }, controls, lanesRoot));

  const stream = connect({
    api, signal, settings: () => ({ ...requestOf(scene), seed: scene.seed }),
    onStart() {
      problem.hidden = true;
      Object.assign(clock, { now: 0, received: performance.now() });
      for (const lane of lanes) lane.history = new History();
    },
    onTick,
    onError(error) {
      problem.hidden = false;
      put(problem, error.message);
    },
  });

  function onTick({ now, calls, lanes: states }) {
    // The first ticks after a change may still have the previous algorithms.
    if (states.length !== lanes.length) return;
    const at = now / 1e6;
    const before = at - span() - 2;
    lanes.forEach((lane, index) => {
      for (const [when, answers] of calls) lane.history.call(when / 1e6, answers[index], scene.cost, scene.window);
      lane.history.tick(at, states[index]);
      lane.history.forget(before, scene.window);
    });
    Object.assign(clock, { now: at, received: performance.now() });
  }

  const span = () => Math.max(15, Math.min(180, scene.window * 3));
  /** Returns the time to draw, interpolated between two ticks. */
  const drawnNow = () => (reducedMotion.matches || scene.speed === 0 ? clock.now
    : clock.now + Math.min(0.1, (performance.now() - clock.received) / 1000) * (scene.speed / 100));

  /** Applies a change by the user: updates the link and sends the change to the console. */
  function changed(fields, keepsExample = false) {
    Object.assign(scene, fields);
    if (!keepsExample) drawChips();
    context.go("playground", [], toLink(scene), true);
    for (const lane of lanes) lane.refresh();
    const { limits, ...more } = requestOf(scene);
    stream.send({ limits, ...more });
  }

  function open(next) {
    scene = next;
    context.go("playground", [], toLink(scene), true);
    drawChips();
    drawControls();
    drawLanes();
    stream.restart();
  }

  function drawChips() {
    put(chips, examples.map(({ id, title }) => h("button", {
      type: "button", class: "button small", "aria-pressed": String(scene.example === id), onclick: () => open(fromExample(id)),
    }, title)));
    put(story, examples.find(({ id }) => id === scene.example)?.story ?? "");
    put(volley, `A burst of ${scene.volley}`);
    put(speed, segmented("Speed", speeds, scene.speed, (value) => changed({ speed: value }, true)));
  }

  function slider(name, label, unit, hint) {
    const { minimum, maximum, step } = numbers[name];
    const shown = h("output", { class: "num" });
    const show = () => put(shown, `${number(scene[name])}${unit ? ` ${unit}` : ""}`);
    const input = h("input", {
      class: "slider", type: "range", min: minimum, max: maximum, step, "aria-label": label, dataset: { name },
      oninput: () => {
        const value = Number(input.value);
        // The size of a bucket follows the limit until the user changes it.
        const follows = name === "limit" && scene.burst === scene.limit ? { burst: value } : {};
        changed({ [name]: value, ...follows });
        show();
        if (name === "volley") put(volley, `A burst of ${value}`);
        if (follows.burst !== undefined) drawControls.burst?.();
      },
    });
    const sync = () => {
      input.value = String(scene[name]);
      input.setAttribute("aria-valuetext", `${number(scene[name])} ${unit}`.trim());
      show();
    };
    sync();
    if (name === "burst") drawControls.burst = sync;
    return h("div", { class: "pg-slider" }, h("div", { class: "row spread" }, h("span", {}, label), shown), input, hint && h("small", { class: "muted" }, hint));
  }

  /** Creates a collapsible panel, which is closed on narrow screens to keep the pictures visible. */
  function group(title, children) {
    const closed = folded.get(title) ?? narrow.matches;
    return h("details", { class: "panel", open: !closed, ontoggle: (event) => folded.set(title, !event.target.open) },
      h("summary", { class: "panel-head" }, h("h2", {}, title)), h("div", { class: "panel-body stack" }, children));
  }

  function drawControls() {
    const random = h("input", { type: "checkbox", checked: scene.random, onchange: () => changed({ random: random.checked }) });
    const hasConcurrency = scene.shown.includes("concurrency");
    const hasSketch = scene.shown.includes("sketch");
    const hasBursts = scene.bursts.length > 0;
    put(controls,
      group("Traffic", [
        slider("rate", "Calls a second", ""),
        h("label", { class: "check" }, random, "at random"),
        slider("volley", "A burst has", "calls"),
        slider("cost", "A call costs", ""),
        hasConcurrency && slider("hold", "A call takes", "s"),
        hasSketch && slider("others", "Others a second", "", "each calls once, from its own address"),
        hasBursts && h("button", { class: "button small", type: "button", onclick: () => { changed({ bursts: [], every: 0 }); drawControls(); } }, "Stop the example's bursts")]),
      group("Limit", [slider("limit", "Limit", ""), slider("window", "in", "s"), slider("burst", "A bucket holds", ""),
        hasSketch && slider("size", "Size of the sketch", "KB", "another size starts empty"),
        h("p", { class: "muted small" }, "Changes apply at once. Usage is kept.")]),
      group("Algorithms", algorithms.map(({ id, title }) => {
        const box = h("input", { type: "checkbox", checked: scene.shown.includes(id), onchange: () => show(id, box.checked) });
        return h("label", { class: "check" }, box, title);
      })));
  }

  function show(id, visible) {
    const next = algorithms.map((algorithm) => algorithm.id).filter((other) => (other === id ? visible : scene.shown.includes(other)));
    if (next.length === 0) return drawControls();
    // A different set of limits starts a new simulation.
    return open({ ...scene, shown: next });
  }

  function drawLanes() {
    lanes = lanesOf(scene).map((algorithm) => lane(algorithm));
    const words = segmented("Show as", [["command", "Command"], ["policy", "Policy"]], format, (value) => {
      format = value;
      for (const lane of lanes) lane.refresh();
    });
    put(lanesRoot,
      h("div", { class: "pg-legend legend" },
        h("span", {}, h("i", { class: "pg-key-passes" }), "passes"), h("span", {}, h("i", { class: "pg-key-held" }), "passes after a wait"),
        h("span", {}, h("i", { class: "pg-key-denied" }), "denied"), h("span", {}, h("i", { class: "pg-key-used" }), "used, as it counts"),
        h("span", {}, h("i", { class: "pg-key-line" }), "passed in the last window; red above the limit"),
        h("span", { class: "end" }, words)),
      lanes.map(({ element }) => element));
  }

  /** Creates the row of an algorithm: description, stored state and history. */
  function lane(algorithm) {
    const code = h("code", { class: "pg-code" });
    const figures = h("div", { class: "pg-figures", role: "status", "aria-live": "off" });
    const caption = h("figcaption", { class: "small muted" });
    const picture = h("canvas", { class: "pg-state", role: "img" });
    const line = h("canvas", { class: "pg-timeline", role: "img" });
    const row = {
      algorithm, history: new History(), picture, line,
      element: h("section", { class: "panel pg-lane", dataset: { lane: algorithm.id }, "aria-label": algorithm.title },
        h("div", { class: "pg-about" }, h("h2", {}, algorithm.title), h("p", { class: "muted small" }, algorithm.what), figures),
        h("figure", { class: "pg-now" }, picture, caption), line,
        h("div", { class: "pg-foot" }, h("p", { class: "small pg-flaw" }, algorithm.flaw),
          h("div", { class: "row pg-command" }, code, copy(() => code.textContent)))),
      refresh: () => put(code, command(algorithm, scene, format)),
      describe() {
        const { admitted, denied, maximum, longestWait, state } = row.history;
        const others = state?.others;
        const unfair = others?.denied > 0;
        // A sketch never passes too much; its flaw is early denials.
        const over = others ? unfair : algorithm.id !== "concurrency" && maximum > scene.limit + 1e-9;
        const figure = (value, word, colour) => h("div", {}, h("b", { class: colour }, value), " ", h("span", { class: "muted" }, word));
        put(figures,
          figure(number(admitted), "passed", "c-admitted"), figure(number(denied), "denied", "c-denied"),
          algorithm.id === "concurrency" ? figure(number(state?.held ?? 0), "under way", "c-shadowed")
            : figure(number(maximum), `at most in ${number(scene.window)} s`, over ? "c-denied" : ""),
          longestWait > 0 && figure(duration(longestWait), "longest wait", "c-shadowed"),
          others && figure(compact(others.passed), "others passed", "c-admitted"),
          others && figure(compact(others.denied), "others denied", unfair ? "c-denied" : ""));
        const next = state?.next === null ? "never passes" : (state?.next ?? 0) >= 0 ? "next call passes" : `next in ${duration(-state.next)}${algorithm.id === "concurrency" ? " at the latest" : ""}`;
        const used = state ? `${number(Math.round((state.limit - state.left) * 10) / 10)} of ${number(state.limit)} used` : "";
        const unseen = others && Number(state.remembers.unseen_denied ?? 0);
        put(caption, used, h("br"), h("span", { class: state?.next === null || state?.next < 0 ? "c-denied" : "" }, next),
          others && [h("br"), h("span", { class: unseen > 0 ? "c-denied" : "" }, `denies ${percent(unseen)} of new addresses`)]);
        picture.setAttribute("aria-label", `${algorithm.title} now: ${used}`);
        line.setAttribute("aria-label", `${algorithm.title} over time: ${admitted} passed, ${denied} denied, at most ${maximum} in ${scene.window} seconds`);
        row.element.classList.toggle("pg-over", over);
      },
    };
    row.refresh();
    row.describe();
    return row;
  }

  let colour = colours();
  const recolour = () => (colour = colours());
  const themeObserver = new MutationObserver(recolour);
  themeObserver.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  signal.addEventListener("abort", () => themeObserver.disconnect());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour, { signal });

  let drawn = 0;
  let described = 0;
  function draw(time) {
    if (signal.aborted) return;
    requestAnimationFrame(draw);
    // 30 frames a second suffice, and two a second with reduced motion.
    if (time - drawn < (reducedMotion.matches ? 500 : 30)) return;
    drawn = time;
    const now = drawnNow();
    for (const lane of lanes) {
      const picture = { now, span: span(), window: scene.window, limit: scene.limit, colour, reducedMotion: reducedMotion.matches };
      timeline(lane.line, lane, picture);
      drawState(lane.picture, lane, picture);
    }
    if (time - described > 200) {
      described = time;
      for (const lane of lanes) lane.describe();
    }
  }

  drawChips();
  drawControls();
  drawLanes();
  requestAnimationFrame(draw);
}
