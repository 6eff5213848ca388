// Dialogs that change a policy. Each shows the change first, and none overwrites a concurrent change.
import { field, noteField, segmented, toast } from "./dialog.js";
import { h, put, repeat } from "./dom.js";
import { duration, number, visible } from "./format.js";
import { guard, parametersOf } from "./guard.js";
import { ALGORITHMS, consequences, describe, describeFlag, difference, lines, parse, scaled, write } from "./specs.js";

const SIGN = { gone: "−", new: "+", same: "" };

/** Shows a change line by line. Returns true if the two policies differ. */
export function drawDifference(element, before, after) {
  const rows = difference(before, after);
  const changes = rows.some((row) => row.sign !== "same");
  put(element, changes
    ? h("div", { class: "difference" }, rows.map(({ sign, line }) => h("div", { class: sign, dataset: { sign: SIGN[sign] } },
      h("span", {}, h("span", { class: "hidden" }, { gone: "removed: ", new: "added: ", same: "unchanged: " }[sign]), line.description,
        line.name && h("span", { class: "muted" }, ` (${line.name})`), line.shadow && [" ", h("span", { class: "tag shadowed" }, "shadow")], line.ban && [" ", h("span", { class: "tag" }, "ban")]))))
    : h("p", { class: "muted" }, "Nothing changes yet."));
  return changes;
}

const blank = (algorithm) => ({ algorithm, numbers: ALGORITHMS[algorithm].fields.map((field) => field.example), flags: [], options: [], cost: "", name: "", shadow: false });

/** Creates the fields of one limit. `changed` is called at each change, `remove` removes the limit. */
function limitFields(limit, changed, remove) {
  const algorithm = h("select", { class: "select", "aria-label": "Algorithm", onchange: () => {
    const { name, shadow, cost } = limit;
    Object.assign(limit, blank(algorithm.value), { name: ALGORITHMS[algorithm.value].sized ? "" : name, shadow, cost });
    draw();
    changed();
  } }, Object.entries(ALGORITHMS).map(([word, { label }]) => h("option", { value: word, selected: word === limit.algorithm }, label)));
  const hint = h("p", { class: "muted small" });
  const numbers = h("div", { class: "numbers" });
  const options = h("div", { class: "row options" });
  const input = (value, set, more = {}) => h("input", { class: "input", value, spellcheck: "false", autocomplete: "off", oninput: (event) => { set(event.target.value.trim().replaceAll(/\s+/g, "")); changed(); }, ...more });
  const check = (text, on, set) => h("label", { class: "check" }, h("input", { type: "checkbox", checked: on, onchange: (event) => { set(event.target.checked); changed(); } }), text);
  const size = () => limit.options.find((option) => option.startsWith("SIZE "))?.slice(5) ?? "";
  const resize = (value) => { limit.options = [...limit.options.filter((option) => !option.startsWith("SIZE ")), ...(value ? [`SIZE ${value}`] : [])]; };
  function draw() {
    const { fields, summary, flags = [], sized } = ALGORITHMS[limit.algorithm];
    put(hint, summary);
    put(numbers, fields.map(({ label, time, hint: example }, index) => field(label, input(limit.numbers[index], (value) => { limit.numbers[index] = value; }, time ? {} : { inputmode: "decimal" }), example)));
    put(options,
      check("Shadow: only count, deny nobody", limit.shadow, (on) => { limit.shadow = on; }),
      flags.map((flag) => check(describeFlag(flag), limit.flags.includes(flag), (on) => { limit.flags = on ? [...limit.flags, flag] : limit.flags.filter((other) => other !== flag); })),
      h("details", { open: limit.name !== "" || limit.cost !== "" || size() !== "" }, h("summary", { class: "small" }, sized ? "Size, cost" : "Name, cost"),
        h("div", { class: "numbers" },
          sized ? field("Size", input(size(), resize), "of new keys, such as 2mb; empty: the server's setting")
            : field("Name", input(limit.name, (value) => { limit.name = value; }), "keeps usage when the window changes"),
          field("Cost of each call", input(limit.cost, (value) => { limit.cost = value; }, { inputmode: "decimal" }), "empty: what the call says"))));
  }
  draw();
  return h("fieldset", { class: "limit" }, h("legend", { class: "hidden" }, "Limit"),
    h("div", { class: "row spread" }, h("div", { class: "grow" }, algorithm), h("button", { type: "button", class: "button small quiet", onclick: remove }, "Remove")), hint, numbers, options);
}

function banFields(ban, changed, remove) {
  const input = (label, name, hint) => field(label, h("input", { class: "input", value: ban[name], oninput: (event) => { ban[name] = event.target.value.trim(); changed(); } }), hint);
  return h("fieldset", { class: "limit" }, h("legend", { class: "hidden" }, "Ban"),
    h("div", { class: "row spread" }, h("b", {}, "Ban after repeated denials"), h("button", { type: "button", class: "button small quiet", onclick: remove }, "Remove")),
    h("div", { class: "numbers four" }, input("Denied calls", "strikes", "number of calls"), input("within", "window", "such as 10m"), input("ban for", "block", "such as 1h"), input("doubled up to", "longest", "empty: not doubled")));
}

/**
 * Sets a policy, or creates one (version: null). `proposed` are the initial words. Resolves to the new state of the
 * policy, or undefined if cancelled.
 */
export function editDialog(context, policy, proposed = "") {
  const { api } = context;
  const closed = new AbortController();
  const isNew = policy.version === null;
  let base = { version: policy.version, specs: isNew ? null : policy.specs };
  let model = parse(proposed || policy.specs);
  let asText = model === null;
  const name = h("input", { class: "input mono", value: policy.name, placeholder: "such as login or plan:free", spellcheck: "false", autocomplete: "off", "aria-label": "Name", oninput: () => changed() });
  const text = h("textarea", { class: "input", rows: 4, spellcheck: "false", "aria-label": "Limits as words", oninput: () => { model = parse(text.value); changed(); } });
  text.value = proposed || policy.specs;
  const area = h("div", { class: "stack" });
  const more = h("div", { class: "row" });
  const change = h("div", { "aria-live": "polite" });
  const warnings = h("div", { class: "stack tight" });
  const stale = h("div", {});
  const apply = h("button", { class: "button primary" }, isNew ? "Set policy" : "Apply");
  const [note, why] = noteField();
  const words = () => (asText ? text.value.trim().replaceAll(/\s+/g, " ") : write(model));
  const scale = policy.scale ?? 1;
  const [denials, drawDenials] = isNew ? [null, () => {}]
    : guard(context, policy.name, closed.signal, () => parametersOf(base.specs ?? "", scale), () => parametersOf(words(), scale));

  let checkTimer = 0;
  function changed() {
    const changes = drawDifference(change, base.specs, words() || null);
    put(warnings, words() === "" ? null : consequences(base.specs, words()).map((line) => h("p", { class: "notice" }, line)));
    // A policy with a sketch has no other limit and no ban.
    more.hidden = asText || model?.limits.some(({ algorithm }) => algorithm === "SKETCH") === true;
    drawDenials();
    apply.disabled = !changes || words() === "" || (isNew && name.value === "");
    clearTimeout(checkTimer);
    checkTimer = setTimeout(check, 250);
  }
  /** Checks the words while they are written. */
  async function check() {
    const checked = words();
    if (checked === "" || closed.signal.aborted) return;
    try {
      await api.post("api/check", { specs: checked }, { signal: closed.signal });
      warnings.querySelector(".refused")?.remove();
    } catch (error) {
      if (error.status !== 400 || checked !== words()) return;
      warnings.querySelector(".refused")?.remove();
      warnings.prepend(h("p", { class: "notice error refused" }, error.message));
      apply.disabled = true;
    }
  }
  function draw() {
    put(area, asText ? text : [
      model.limits.map((limit) => limitFields(limit, changed, () => { model.limits.splice(model.limits.indexOf(limit), 1); draw(); })),
      model.ban && banFields(model.ban, changed, () => { model.ban = null; draw(); }),
      put(more,
        h("button", { type: "button", class: "button small", disabled: model.limits.length >= 8, onclick: () => { model.limits.push(blank("TOKENBUCKET")); draw(); } }, "Add a limit"),
        !model.ban && h("button", { type: "button", class: "button small", onclick: () => { model.ban = { strikes: "10", window: "10m", block: "1h", longest: "" }; draw(); } }, "Add a ban")),
    ]);
    changed();
  }
  const form = segmented("Write as", [["form", "Form"], ["text", "Words"]], asText ? "text" : "form", (format) => {
    if (format === "text" && !asText) text.value = write(model);
    if (format === "form" && model === null) {
      toast("These words cannot be shown as a form");
      form.querySelector("[data-value=text]").click();
      return;
    }
    asText = format === "text";
    draw();
  });
  if (model?.limits.length === 0) model.limits.push(blank("TOKENBUCKET"));

  /** Resolves a concurrent change: the user decides which version is kept. */
  function conflict(stored) {
    const gone = stored === null || stored.version === undefined;
    put(stale, h("div", { class: "notice warn stack tight", role: "alert" },
      h("b", {}, gone ? "Somebody has deleted this policy meanwhile." : isNew && base.version === null ? "There is a policy of this name already." : "Somebody has changed this policy meanwhile."),
      !gone && h("ul", { class: "limits" }, lines(stored.specs).map((line) => h("li", {}, line.description, line.shadow && [" ", h("span", { class: "tag shadowed" }, "shadow")]))),
      h("div", { class: "row" },
        !gone && h("button", { type: "button", class: "button small", onclick: () => { rebase(stored); text.value = stored.specs; model = parse(stored.specs); asText ||= model === null; draw(); } }, "Take theirs"),
        h("button", { type: "button", class: "button small", onclick: () => { rebase(gone ? null : stored); draw(); } }, gone ? "Keep mine, set it anew" : "Keep mine, change theirs"))));
    apply.disabled = true;
  }
  function rebase(stored) {
    base = stored === null ? { version: null, specs: null } : { version: stored.version, specs: stored.specs };
    put(stale);
  }

  const done = context.dialog({
    title: isNew ? "New policy" : `Edit ${visible(policy.name)}`,
    body: h("div", { class: "stack" }, isNew && field("Name", name, "callers use it; it cannot be changed later"),
      h("div", { class: "row spread" }, h("h3", {}, "Limits"), form), area),
    aside: h("div", { class: "stack tight" }, h("h3", {}, "What changes"), stale, change, denials, warnings,
      h("p", { class: "muted small" }, "It applies to every caller at once. Usage is kept."), note),
    actions: [apply],
    submit: async () => {
      if (apply.disabled) return false;
      try {
        const set = await api.put(`api/policies/${api.segment(isNew ? name.value : policy.name)}`, { specs: words(), version: base.version, ...why() });
        toast(isNew ? "Set" : "Changed");
        return set;
      } catch (error) {
        if (error.status !== 409) throw error;
        conflict(error.body.stands ?? null);
        return false;
      }
    },
  });
  draw();
  if (!isNew) {
    repeat(2000, closed.signal, async () => {
      const stored = await api.get(`api/policies/${api.segment(policy.name)}`, { signal: closed.signal }).catch((error) => {
        if (error.status === 404) return null;
        throw error;
      });
      if ((stored?.version ?? null) !== base.version && stale.childElementCount === 0) conflict(stored);
    });
  }
  return done.finally(() => closed.abort());
}

/** Scales a policy, with a preview of the scaled limits. */
export function scaleDialog(context, policy) {
  const { api, dialog } = context;
  const closed = new AbortController();
  const model = parse(policy.specs);
  let factor = policy.scale === 1 ? 1.5 : policy.scale;
  const slider = h("input", { class: "slider", type: "range", min: "0", max: "3", step: "0.05", value: String(factor), "aria-label": "Factor", oninput: () => set(Number(slider.value)) });
  const exact = h("input", { class: "input", type: "number", min: "0", max: "1000", step: "any", value: String(factor), "aria-label": "Factor, exactly", oninput: () => set(Number(exact.value), exact) });
  const lasting = h("select", { class: "select", onchange: () => draw() }, [["5m", "5 minutes"], ["10m", "10 minutes"], ["30m", "30 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["1d", "1 day"], ["", "until it is changed"]]
    .map(([value, label]) => h("option", { value, selected: value === "10m" }, label)));
  const change = h("div", { "aria-live": "polite" });
  const [denials, drawDenials] = guard(context, policy.name, closed.signal, () => parametersOf(policy.specs, policy.scale), () => parametersOf(policy.specs, factor));
  const [note, why] = noteField();
  const presets = [["0.5", "Half"], ["1", "As set"], ["1.5", "Half more"], ["2", "Twice"]];
  function set(value, from) {
    factor = Number.isFinite(value) ? Math.min(1000, Math.max(0, value)) : 1;
    if (from !== exact) exact.value = String(factor);
    slider.value = String(factor);
    for (const button of presetButtons.children) button.setAttribute("aria-pressed", String(Number(button.dataset.value) === factor));
    draw();
  }
  const presetButtons = segmented("Factor", presets, String(factor), (value) => set(Number(value)));
  function draw() {
    const until = lasting.value === "" ? "It stays until somebody changes it." : `The limits return by themselves after ${lasting.selectedOptions[0].textContent}.`;
    const rows = (model?.limits ?? []).map((limit) => {
      const [was, is] = [describe(scaled(limit, policy.scale)), describe(scaled(limit, factor))];
      return was === is ? h("div", { class: "same", dataset: { sign: "" } }, was)
        : [h("div", { class: "gone", dataset: { sign: "−" } }, was), h("div", { class: "new", dataset: { sign: "+" } }, is)];
    });
    put(change, h("div", { class: "stack tight" }, rows.length > 0 && h("div", { class: "difference" }, rows),
      factor === 0 && h("p", { class: "notice error" }, "A factor of 0 denies every call."), h("p", { class: "muted small" }, until, " Costs and windows are not scaled.")));
    drawDenials();
  }
  const done = dialog({
    title: `Scale ${visible(policy.name)}`,
    body: h("div", { class: "stack" },
      policy.scale !== 1 && h("p", { class: "notice" }, `It is scaled by ${number(policy.scale)} now${policy.scale_ms < 0 ? "" : `, for ${duration(policy.scale_ms)} more`}.`),
      h("div", { class: "row" }, presetButtons), h("div", { class: "scale" }, field("Factor", slider), field("Exactly", exact), field("For", lasting)), h("h3", {}, "What changes"), change),
    aside: h("div", { class: "stack tight" }, denials, note),
    actions: [h("button", { class: "button primary" }, "Apply")],
    submit: async () => {
      const scaledNow = await api.post(`api/policies/${api.segment(policy.name)}/scale`, { factor, for: factor === 1 ? null : lasting.value || null, ...why() });
      toast(factor === 1 ? "As set again" : `Scaled by ${number(factor)}`);
      return scaledNow;
    },
  });
  draw();
  return done.finally(() => closed.abort());
}

/** Deletes a policy. Resolves to "deleted", or undefined if cancelled. */
export function deleteDialog({ api, dialog }, policy) {
  let { version } = policy;
  const change = h("div");
  drawDifference(change, policy.specs, null);
  const stale = h("div");
  const [note, why] = noteField();
  return dialog({
    title: `Delete ${visible(policy.name)}`, small: true,
    body: h("div", { class: "stack" }, change, stale,
      h("p", { class: "notice warn" }, "Callers that name no other policy get an error; the gateway lets their requests pass. Usage of keys stays until it has recovered.")),
    aside: note,
    actions: [h("button", { class: "button primary danger" }, "Delete")],
    submit: async () => {
      try {
        await api.remove(`api/policies/${api.segment(policy.name)}?${new URLSearchParams({ version, ...why() })}`);
      } catch (error) {
        if (error.status !== 409 && error.status !== 404) throw error;
        if (!error.body.stands) {
          toast("Somebody has deleted it already");
          return "deleted";
        }
        version = error.body.stands.version;
        drawDifference(change, error.body.stands.specs, null);
        put(stale, h("p", { class: "notice warn", role: "alert" }, "Somebody has changed it meanwhile, as shown above. Delete it anyway?"));
        return false;
      }
      toast("Deleted");
      return "deleted";
    },
  });
}
