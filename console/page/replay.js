// View of the replay of a log under limits. The console evaluates the calls and stores nothing of the log.
import { editDialog } from "./change.js";
import { copy, empty, field, loading, toast } from "./dialog.js";
import { h, put } from "./dom.js";
import { number, percent, visible } from "./format.js";
import { addShadow, isSketch } from "./specs.js";

const MAX_LOG_BYTES = 16 * 1024 * 1024;
const SUGGESTIONS = ["FIXED 100 1m", "SLIDING 100 1m STRICT", "TOKENBUCKET 20 100 1m", "LEAKYBUCKET 20 100 1m", "SLIDINGLOG 100 1m",
  "TOKENBUCKET 10 10 1s FIXED 1000 1d"];

/** Example log: one hour of calls of some clients, one of which calls far too often. */
function example() {
  const lines = [];
  const start = Date.UTC(2026, 0, 5, 9);
  let seed = 7;
  const random = () => ((seed = (seed * 48271) % 2147483647) / 2147483647);
  for (let second = 0; second < 3600; second += 1) {
    const calls = [];
    for (let client = 1; client <= 40; client += 1) if (random() < 0.05 + client / 400) calls.push(`198.51.100.${client}`);
    if (second % 900 < 240) for (let call = 0; call < 6; call += 1) calls.push("203.0.113.66");
    const time = new Date(start + second * 1000).toUTCString().replace(/^\w+, (\d+) (\w+) (\d+) ([\d:]+) .*$/, "$1/$2/$3:$4 +0000");
    for (const client of calls) lines.push(`${client} - - [${time}] "GET / HTTP/1.1" 200 512`);
  }
  return lines.join("\n");
}

export async function mount(root, context) {
  const { api, query, signal } = context;
  let file = null;
  const text = h("textarea", {
    class: "input mono", rows: 7, spellcheck: "false", "aria-label": "Log", dataset: { log: "" },
    placeholder: '203.0.113.7 - - [05/Jan/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 512\n{"ts":1767603600.2,"request":{"remote_ip":"203.0.113.7"}}\n1767603600 user:42 3',
    oninput: () => choose(null),
  });
  const chosen = h("span", { class: "muted small" });
  const upload = h("input", { type: "file", class: "rp-file", "aria-label": "A log file", onchange: () => choose(upload.files[0] ?? null) });
  const limit = h("input", { class: "input mono", value: query.get("limit") ?? "FIXED 100 1m", list: "rp-limits", spellcheck: "false", autocomplete: "off", required: true });
  const goal = h("input", { class: "input", type: "number", min: 0, max: 100, step: "any", value: query.get("goal") ?? "1" });
  const late = h("input", { class: "input mono", value: query.get("late") ?? "0", spellcheck: "false" });
  const fieldInputs = Object.fromEntries(["key", "time", "cost", "trusted"].map((name) => [name, h("input", { class: "input mono", value: query.get(name) ?? "", spellcheck: "false" })]));
  const submit = h("button", { class: "button primary", type: "submit" }, "Replay");
  const result = h("div", { class: "rp-result", "aria-live": "polite", "aria-busy": "false" });

  function choose(chosenFile) {
    file = chosenFile;
    if (chosenFile === null) upload.value = "";
    else text.value = "";
    put(chosen, chosenFile === null ? "" : `${visible(chosenFile.name)}, ${number(Math.ceil(chosenFile.size / 1024))} KB`);
  }

  const form = h("form", { class: "panel", onsubmit: (event) => { event.preventDefault(); run(); } },
    h("div", { class: "panel-body stack" },
      h("div", {
        class: "rp-drop",
        ondragover: (event) => event.preventDefault(),
        ondrop: (event) => { event.preventDefault(); if (event.dataTransfer.files[0]) choose(event.dataTransfer.files[0]); },
      }, h("div", { class: "row spread" }, h("h2", {}, "Log"),
        h("span", { class: "row" }, chosen, h("label", { class: "button small" }, "Choose a file", upload),
          h("button", { class: "button small quiet", type: "button", onclick: () => { choose(null); text.value = example(); } }, "Use an example"))),
      text,
      h("small", { class: "muted" }, "An access log, JSON lines, or lines of time, key and cost; a file may be compressed (.gz). It is not kept.")),
      h("datalist", { id: "rp-limits" }, SUGGESTIONS.map((value) => h("option", { value }))),
      h("div", { class: "rp-options" },
        field("Limit", limit, "as RL.POLICYSET takes it; several are one policy"),
        field("May deny at most, in % of the calls", goal, "the smallest such limit is searched")),
      h("details", {}, h("summary", {}, "More"),
        h("div", { class: "rp-options rp-more" },
          field("Lines may be late by", late, "10s, for logs with the start time of each request"),
          field("Field of the key", fieldInputs.key, "of JSON lines: request.remote_ip"),
          field("Field of the time", fieldInputs.time), field("Field of the cost", fieldInputs.cost),
          field("Trusted proxies", fieldInputs.trusted, "whose X-Forwarded-For counts: 10.0.0.0/8, or several with commas"))),
      h("div", { class: "row" }, submit)));

  put(root, h("div", { class: "head" }, h("h1", {}, "Replay"),
    h("span", { class: "muted" }, "Who would have been denied by a limit, before it is set")),
  h("div", { class: "stack" }, form, result));
  put(result, empty("No log was replayed yet", "Paste one, choose a file, or use the example."));

  async function run() {
    const options = { limit: limit.value.trim(), goal: `${goal.value || 0}%` };
    if (late.value.trim()) options.late = late.value.trim();
    for (const [name, input] of Object.entries(fieldInputs)) if (input.value.trim()) options[name] = input.value.trim();
    const log = file ?? new Blob([text.value]);
    if (log.size === 0) {
      put(result, h("div", { class: "notice warn" }, "There is no log: paste one, choose a file, or use the example."));
      text.focus();
      return;
    }
    if (log.size > MAX_LOG_BYTES) {
      const words = `ratelimit-console replay ${file ? file.name : "LOG"} --limit '${options.limit}' --goal ${options.goal}`;
      put(result, h("div", { class: "notice warn" }, "The log is longer than 16 MB. The command line reads logs of any length:",
        h("code", { class: "code" }, words), copy(words)));
      return;
    }
    context.go("replay", [], { ...options, goal: goal.value }, true);
    submit.disabled = true;
    result.setAttribute("aria-busy", "true");
    put(result, loading());
    try {
      const response = await api.request(`api/replay?${new URLSearchParams(options)}`, { method: "POST", body: log, headers: { "Content-Type": "text/plain" }, signal });
      put(result, report(await response.json()));
    } catch (error) {
      if (signal.aborted) return;
      put(result, h("div", { class: "notice error", role: "alert" }, error.message));
    } finally {
      submit.disabled = false;
      result.setAttribute("aria-busy", "false");
    }
  }

  function report(replay) {
    const share = replay.calls === 0 ? 0 : replay.denied / replay.calls;
    const figure = (value, word, colour) => h("div", { class: "figure" }, h("b", { class: colour }, value), h("span", {}, word));
    return h("div", { class: "grid" },
      h("section", { class: "panel half", "aria-label": "Result of the replay" },
        h("div", { class: "panel-head" }, h("h2", {}, "Under "), h("span", { class: "name" }, replay.limit)),
        h("div", { class: "panel-body stack" },
          h("div", { class: "figures" },
            figure(number(replay.calls), "calls"), figure(number(replay.admitted), "admitted", "c-admitted"),
            figure(`${number(replay.denied)}`, `denied, ${percent(share)}`, "c-denied"),
            figure(`${number(replay.keys_denied)} of ${number(replay.keys)}`, "keys were denied something")),
          h("div", { class: "bar rp-share", role: "img", "aria-label": `${percent(share)} denied` },
            h("i", { style: { width: `${(1 - share) * 100}%` } }), h("i", { class: "full", style: { left: `${(1 - share) * 100}%`, width: `${share * 100}%` } })),
          h("p", { class: "muted small" }, `${replay.first} to ${replay.last}`),
          skipped(replay), h("div", { class: "row" }, shadowButton(replay.limit)))),
      h("section", { class: "panel half", "aria-label": "The smallest limit" },
        h("div", { class: "panel-head" }, h("h2", {}, `The smallest that denies at most ${replay.goal}`)),
        h("div", { class: "panel-body stack" }, smallest(replay))),
      h("section", { class: "panel", "aria-label": "Who would have been denied" },
        h("div", { class: "panel-head" }, h("h2", {}, "Who would have been denied")), denied(replay)));
  }

  function smallest(replay) {
    if (replay.smallest === null) return h("p", {}, "No limit of this kind denies so little.");
    const words = `RL.POLICYSET name ${replay.smallest}`;
    return [
      h("code", { class: "code rp-smallest" }, replay.smallest),
      h("p", { class: "muted small" }, `It denies ${number(replay.smallest_denied)} calls, ${percent(replay.smallest_denied / replay.calls)}.`),
      h("div", { class: "row" },
        h("button", { class: "button small", type: "button", onclick: () => { limit.value = replay.smallest; run(); toast("Replaying the smallest limit"); } }, "Replay it"),
        shadowButton(replay.smallest), copy(replay.smallest, "Copy the limit"), copy(words, "Copy as a policy")),
    ];
  }

  /** Creates the button that adds limits in shadow mode to a policy, to count what they would deny of live traffic. */
  function shadowButton(specs) {
    return context.canChange() && h("button", { class: "button small", type: "button", onclick: () => setInShadow(specs) }, "Set in shadow mode…");
  }

  async function setInShadow(specs) {
    const policies = await api.get("api/policies", { signal }).catch(() => []);
    const name = h("input", { class: "input mono", list: "rp-policies", spellcheck: "false", autocomplete: "off", placeholder: "such as login or plan:free", autofocus: true });
    const policy = await context.dialog({
      title: "Set in shadow mode", small: true,
      body: h("div", { class: "stack" }, h("code", { class: "code" }, specs),
        h("p", {}, "A limit in shadow mode denies nothing. It counts the live calls that it would deny."),
        field("Policy", name, "an existing policy keeps its limits and gets this one in addition"),
        h("datalist", { id: "rp-policies" }, policies.slice(0, 500).map((policy) => h("option", { value: policy.name })))),
      actions: [h("button", { class: "button primary" }, "Next")],
      submit: async () => {
        if (name.value === "") throw new Error("Say which policy.");
        const policy = await api.get(`api/policies/${api.segment(name.value)}`, { signal }).catch((error) => {
          if (error.status !== 404) throw error;
          return { name: name.value, version: null, specs: "" };
        });
        if (isSketch(policy.specs)) throw new Error(`${visible(name.value)} is a sketch, and no limit stands beside one. Choose another policy.`);
        return policy;
      },
    });
    if (!chosen) return;
    const set = await editDialog(context, chosen, addShadow(chosen.specs, specs));
    if (set) context.go("policies", [set.name]);
  }

  function denied(replay) {
    if (replay.denied_keys.length === 0) return empty("Nobody", "This limit would have denied none of these calls.");
    const maximum = replay.denied_keys[0][1];
    return [h("div", { class: "scroll" }, h("table", { class: "table" },
      h("thead", {}, h("tr", {}, h("th", {}, "Key"), h("th", { class: "num" }, "Denied"), h("th", { class: "rp-bars wide" }, "Share of all that was denied"))),
      h("tbody", {}, replay.denied_keys.map(([key, count]) => h("tr", {},
        h("td", {}, h("span", { class: "name" }, visible(key))), h("td", { class: "num c-denied" }, number(count)),
        h("td", { class: "wide" }, h("div", { class: "bar", role: "img", "aria-label": percent(count / replay.denied) },
          h("i", { class: "full", style: { width: `${(count / maximum) * 100}%` } })))))))),
    replay.keys_denied > replay.denied_keys.length && h("div", { class: "panel-foot" }, `and ${number(replay.keys_denied - replay.denied_keys.length)} more`)];
  }

  function skipped({ skipped: count, skipped_why: why, first_not_understood: first }) {
    if (count === 0) return false;
    const shown = first === null ? "" : `, the first is line ${number(first[0])}: ${visible(first[1])}`;
    const reasons = [[why.not_understood, `not understood${shown}`], [why.out_of_order, "behind a later line: see More, lines may be late"],
      [why.beyond_keys, "of keys beyond the first 100,000, which are not followed"], [why.overfull, "that a server would refuse, because their keys hold too many calls"]];
    return h("div", { class: "notice warn" }, `${number(count)} ${count === 1 ? "line" : "lines"} skipped: `,
      reasons.filter(([lines]) => lines > 0).map(([lines, explanation]) => `${number(lines)} ${explanation}`).join("; "));
  }
}
