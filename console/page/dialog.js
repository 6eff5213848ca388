// Dialogs, toasts, and elements that all views share.
import { h, put } from "./dom.js";
import { visible } from "./format.js";

/** Shows a toast, which screen readers announce. */
export function toast(text) {
  const line = h("div", {}, text);
  document.getElementById("toasts").append(line);
  setTimeout(() => line.remove(), 6000);
}

/**
 * Opens a dialog. `actions` are elements, and `body` an element or a function of `close(value)` that returns one; `aside` is
 * always visible above the actions. `submit` runs on Enter and on actions of type submit. The dialog closes with its result,
 * but stays open if the result is false or if it throws an error, which is shown. The dialog closes when `signal` aborts, and
 * does not open after that. The promise resolves to the value with which the dialog was closed, or undefined.
 */
export function dialog({ title, body, aside, actions = [], small = false, submit, signal }) {
  if (signal?.aborted) return Promise.resolve();
  return new Promise((done) => {
    const problem = h("div", { class: "notice error", role: "alert", hidden: true });
    let value;
    const element = h("dialog", { class: small ? "small" : "", "aria-labelledby": "dialog-title" });
    const close = (result) => {
      value = result;
      element.close();
    };
    const form = h("form", { method: "dialog", novalidate: true },
      h("div", { class: "dialog-head" },
        h("h2", { id: "dialog-title" }, title),
        h("button", { type: "button", class: "button quiet icon", "aria-label": "Close", onclick: () => element.close() }, "✕")),
      h("div", { class: "dialog-body" }, typeof body === "function" ? body(close) : body, problem),
      aside && h("div", { class: "dialog-aside" }, aside),
      actions.length > 0 && h("div", { class: "dialog-foot" },
        h("button", { type: "button", class: "button quiet", onclick: () => element.close() }, "Cancel"), actions));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!submit || form.classList.contains("busy")) return;
      form.classList.add("busy");
      problem.hidden = true;
      try {
        const result = await submit();
        if (result !== false) close(result ?? true);
      } catch (error) {
        // The dialog may have been closed while the request was in flight.
        if (!element.open) toast(error.message);
        problem.hidden = false;
        put(problem, error.message);
        problem.scrollIntoView({ block: "nearest" });
      } finally {
        form.classList.remove("busy");
      }
    });
    element.append(form);
    element.addEventListener("close", () => {
      element.remove();
      done(value);
    });
    signal?.addEventListener("abort", () => element.close());
    document.body.append(element);
    element.showModal();
    (element.querySelector("[autofocus]") ?? element.querySelector(".dialog-body input, .dialog-body select, .dialog-foot .primary"))?.focus();
  });
}

/** Creates a field with its label: field("Limit", input, "in whole units") */
export const field = (label, input, hint) => h("label", { class: "field" }, h("span", {}, label), input, hint && h("small", {}, hint));

/** Creates a field for a note on a change. Returns it with a function that returns the note as a part of a request. */
export function noteField() {
  const input = h("input", { class: "input", maxlength: 500, autocomplete: "off" });
  return [field("Why", input, "a note for the list of changes, if you like"), () => (input.value.trim() === "" ? {} : { why: input.value })];
}

/** Creates buttons of which one is pressed. `choices`: [[value, label], ...]. `onChoose(value)` is called after a click. */
export function segmented(label, choices, value, onChoose) {
  const group = h("div", { class: "segmented", role: "group", "aria-label": label });
  const press = (pressed) => {
    for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === String(pressed)));
  };
  group.append(...choices.map(([choice, text]) => h("button", {
    type: "button", dataset: { value: choice }, onclick: () => { press(choice); onChoose(choice); },
  }, text)));
  press(value);
  return group;
}

/** Placeholder during the first load. */
export const loading = () => h("div", { class: "loading", role: "status", "aria-label": "Loading" }, h("i"), h("i"), h("i"));

/** Placeholder of an empty view: a title and an explanation. */
export const empty = (line, more) => h("div", { class: "empty" }, h("b", {}, line), more);

/** Notice with an error, in place of a view or a part of it. */
export const errorNotice = (error) => h("div", { class: "notice error", role: "alert" }, error.message);

/** Creates a link to a policy. Its name stays on one line. */
export const policyLink = ({ link }, name) => h("a", { class: "name whole", href: link("policies", [name]), title: visible(name) }, visible(name));

/** Creates a button that copies a text. */
export const copy = (text, label = "Copy") => h("button", {
  type: "button", class: "button small", onclick: async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      toast("Copied");
    } catch {
      toast("The browser does not let the page copy");
    }
  },
}, label);
