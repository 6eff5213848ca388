// View of the last changes of all consoles, with their undo, of current bans, and of scaled policies.
import { drawDifference, scaleDialog } from "./change.js";
import { empty, errorNotice, loading, noteField, policyLink, toast } from "./dialog.js";
import { h, putKeyed, put, repeat } from "./dom.js";
import { duration, instant, number, visible } from "./format.js";
import { guard, parametersOf } from "./guard.js";
import { liftDialog } from "./key.js";
import { scaleTag } from "./policies.js";
import { consequences } from "./specs.js";

/** Number of changes that are shown at first, and more after each click. */
const STEP = 100;

const WORDS = {
  "policy set": "set", "policy deleted": "deleted", "policy scaled": "scaled", "key banned": "banned",
  "ban lifted": "lifted the ban of", "key reset": "reset", "usage given back": "gave usage back to",
};

const scaleText = ({ scale, scale_ms: ms }) => `× ${number(scale)}${scale === 1 ? "" : ms < 0 ? " until changed" : ` for ${duration(ms)}`}`;
const banText = (values) => (values?.banned_until ? `banned until ${instant(values.banned_until)}` : "not banned");
const unitsText = ({ remaining }) => `${remaining.map((units) => number(units)).join(", ")} left`;
const usageText = ({ usage }) => usage.map(({ kind, name, window, used }) => [name ?? window ?? kind, used === undefined ? "" : `${used} used`].filter(Boolean).join(": ")).join("; ") || "a ban or ids";

/** Shows the values before and after a change. For an undo, the arguments are exchanged. */
function drawValues(element, what, before, after) {
  try {
    drawKnownValues(element, what, before, after);
  } catch {
    // The entry is by another version of the console, or by another program.
    put(element, h("code", { class: "code" }, visible(JSON.stringify({ before, after }))));
  }
}

function drawKnownValues(element, what, before, after) {
  const specs = before?.specs ?? after?.specs;
  if (specs !== undefined) {
    drawDifference(element, before?.specs ?? null, after?.specs ?? null);
    // A deletion ends the scale, and its undo restores it.
    const scales = [before, after].map((values) => (values?.scale ?? 1) !== 1 && scaleText(values));
    if (scales[0] !== scales[1]) element.append(h("p", { class: "small muted" }, `Scale: ${scales[0] || "none"} before, ${scales[1] || "none"} after.`));
    return;
  }
  const [was, is] = what === "policy scaled" ? [scaleText(before), scaleText(after)]
    : what === "usage given back" ? [unitsText(before), unitsText(after)]
      : what === "key reset" ? [usageText(before), "unused"] : [banText(before), banText(after)];
  put(element, h("div", { class: "difference" }, [["gone", "−", "before: ", was], ["new", "+", "after: ", is]].map(([sign, mark, hidden, text]) =>
    h("div", { class: sign, dataset: { sign: mark } }, h("span", {}, h("span", { class: "hidden" }, hidden), visible(text))))));
}

const nameOf = ({ user, who }) => visible(user ?? `somebody at ${who}`);

/** Undoes a change, after a dialog that shows the effect. Resolves to true, or undefined if cancelled. */
async function undoDialog(context, change) {
  const { api, dialog, signal } = context;
  const closed = new AbortController();
  // The change has only limits or a scale. The policy has both.
  const policy = change.key ? null : await api.get(`api/policies/${api.segment(change.policy)}`, { signal }).catch(() => null);
  const limits = (side) => () => parametersOf(side.specs ?? policy.specs, side.scale ?? policy.scale);
  const [denials] = policy && change.before ? guard(context, change.policy, closed.signal, limits(change.after), limits(change.before)) : [null];
  const values = h("div");
  drawValues(values, change.what, change.after, change.before);
  const stale = h("div");
  const [note, why] = noteField();
  const apply = h("button", { class: "button primary" }, "Undo");
  const { before, after } = change;
  const warnings = before?.specs && after?.specs ? consequences(after.specs, before.specs)
    : change.what === "policy set" ? ["Callers that name no other policy get an error; the gateway lets their requests pass."]
      : change.what === "key banned" || change.what === "ban lifted" ? ["Strikes and the level of the ban are forgotten, and not restored."] : [];
  return dialog({
    title: `Undo: ${WORDS[change.what]} ${visible(change.key ?? change.policy)}`, small: true, aside: note,
    body: h("div", { class: "stack" }, h("h3", {}, "What changes"), values, denials, warnings.map((line) => h("p", { class: "notice" }, line)), stale),
    actions: [apply],
    submit: async () => {
      try {
        await api.post(`api/changes/${change.id}/undo`, why());
        toast("Undone");
        return true;
      } catch (error) {
        if (error.status !== 409) throw error;
        const { stands } = error.body;
        put(stale, h("div", { class: "notice warn stack tight", role: "alert" }, h("b", {}, `It cannot be undone: ${error.message}.`),
          stands?.specs && h("code", { class: "code" }, stands.specs)));
        apply.disabled = true;
        return false;
      }
    },
  }).finally(() => closed.abort());
}

const panel = (size, title, note, ...children) => h("section", { class: `panel ${size}`, "aria-label": title },
  h("div", { class: "panel-head" }, h("h2", {}, title), note), children);

export async function mount(root, context) {
  const { api, signal, link } = context;
  const list = h("ul", { class: "changes" });
  const changes = h("div", {}, loading());
  const more = h("div", { class: "panel-foot", hidden: true });
  const scaled = h("div", {}, loading());
  const bans = h("div", {}, loading());
  const covered = h("div", { class: "panel-foot" });
  const view = { count: STEP, found: new Map(), searching: false, at: 0 };
  put(root, h("div", { class: "head" }, h("h1", {}, "Changes"), h("span", { class: "muted small" }, "of all consoles of this server")),
    h("div", { class: "grid" },
      panel("half", "Scaled policies", null, scaled),
      panel("half", "Current bans", null, bans, covered),
      panel("", "Last changes", null, changes, more)));
  const redraw = (changed) => changed && Promise.all([drawChanges(), drawScaled(), drawBans()]);

  function entry(first) {
    let current = first;
    const values = h("div");
    drawValues(values, first.what, first.before, first.after);
    const marks = h("div", { class: "row" });
    const element = h("li", {},
      h("div", { class: "row spread" },
        h("span", {}, h("b", {}, nameOf(first)), first.undoes ? " undid a change: " : " ", WORDS[first.what], " ",
          first.key ? h("a", { class: "name whole", href: link("key", [first.key], first.policy ? { policy: first.policy } : {}), title: visible(first.key) }, visible(first.key))
            : first.policy ? policyLink(context, first.policy) : "a key with a long name",
          first.after?.amount !== undefined && `, ${number(first.after.amount)} units`),
        h("time", { class: "muted small", datetime: new Date(first.at).toISOString(), title: visible(first.who) }, instant(first.at))),
      first.why && h("p", { class: "why" }, visible(first.why)), values, marks);
    return [element, (change) => {
      const next = JSON.stringify([change.obstacle, change.elsewhere, change.undoneBy]);
      current = change;
      // Drawn anew only if it differs, so that the focus on its button is kept.
      if (element.dataset.state === next) return;
      element.dataset.state = next;
      put(marks,
        change.elsewhere && h("span", { class: "notice warn small" }, change.elsewhere === "before" ? "Before this, somebody changed the policy without a console." : "Since then, somebody has changed the policy without a console."),
        change.undoneBy ? h("span", { class: "tag" }, `undone by ${change.undoneBy}`)
          : change.obstacle ? h("span", { class: "muted small" }, `Cannot be undone: ${change.obstacle}.`)
            : context.canChange() && h("button", { type: "button", class: "button small", onclick: () => undoDialog(context, current).then(redraw) }, "Undo…",
              h("span", { class: "hidden" }, ` ${WORDS[change.what]} ${visible(change.key ?? change.policy)}`)));
    }];
  }

  async function drawChanges() {
    let answer;
    try {
      answer = await api.get(`api/changes?count=${view.count}`, { signal });
    } catch (error) {
      if (!signal.aborted && list.parentElement === null) put(changes, errorNotice(error));
      return;
    }
    if (answer.changes.length === 0) {
      put(changes, empty("No changes yet", "Changes of policies and keys in any console of this server appear here."));
      return;
    }
    for (const { what, key, at } of answer.changes) {
      if ((what === "ban lifted" || what === "key reset") && at >= view.found.get(key)?.seen) view.found.delete(key);
    }
    const undone = new Map(answer.changes.filter(({ undoes }) => undoes).map((change) => [change.undoes, nameOf(change)]));
    if (list.parentElement === null) put(changes, list);
    putKeyed(list, answer.changes.map((change) => ({ ...change, undoneBy: undone.get(change.id) })), ({ id }) => id, entry);
    more.hidden = answer.changes.length < view.count || view.count >= answer.kept;
    put(more, h("button", { type: "button", class: "button small", onclick: () => { view.count = Math.min(answer.kept, view.count + STEP); drawChanges(); } }, "Show more"),
      ` The server keeps the last ${number(answer.kept)}.`);
  }

  const toolButton = (text, name, onclick) => context.canChange() && h("button", { type: "button", class: "button small", onclick }, text, h("span", { class: "hidden" }, ` ${visible(name)}`));

  const scaledRows = h("ul", { class: "choices wrapped" });
  async function drawScaled() {
    const policies = await api.get("api/policies?scaled=true", { signal });
    if (policies.length === 0) {
      put(scaled, empty("No policy is scaled"));
      return;
    }
    if (scaledRows.parentElement === null) put(scaled, scaledRows);
    putKeyed(scaledRows, policies, ({ name }) => name, (first) => {
      let current = first;
      const tag = h("span");
      return [h("li", {}, policyLink(context, first.name), h("div", { class: "row" }, tag, toolButton("Scale…", first.name, () => scaleDialog(context, current).then(redraw)))),
        (policy) => { current = policy; put(tag, scaleTag(policy)); }];
    });
  }

  const banRows = h("ul", { class: "choices wrapped" });
  async function drawBans() {
    const answer = await api.get("api/bans", { signal });
    view.at = answer.at;
    const known = new Set(answer.bans.map(({ key }) => key));
    const rows = [...answer.bans, ...[...view.found.values()].filter(({ key, banned_until: until }) => !known.has(key) && until > answer.at)];
    if (rows.length === 0) put(bans, empty("No bans are known"));
    else if (banRows.parentElement === null) put(bans, banRows);
    putKeyed(banRows, rows, ({ key }) => key, (first) => {
      let current = first;
      const left = h("span", { class: "tag denied" });
      const by = h("span", { class: "muted small" });
      return [h("li", {}, h("div", { class: "stack tight" }, h("a", { class: "name whole", href: link("key", [first.key]), title: visible(first.key) }, visible(first.key)), by),
        h("div", { class: "row" }, left, toolButton("Lift…", first.key, () => liftDialog(context, first.key, current.banned_until).then((lifted) => { if (lifted) view.found.delete(first.key); return redraw(lifted); })))),
      (ban) => {
        current = ban;
        left.textContent = `${duration(Math.max(0, ban.banned_until - answer.at))} more`;
        by.textContent = ban.in_console ? `by ${visible(ban.user ?? "a console")}${ban.why ? `: ${visible(ban.why)}` : ""}` : "by a limit, or without a console";
      }];
    });
    if (view.searching) return;
    put(covered, `Bans in the last ${number(answer.changes)} changes, and of the ${number(answer.denied)} keys denied most in the last hour and since the servers started. `,
      h("button", { type: "button", class: "button small", onclick: search }, "Look through all keys"));
  }

  /** Looks for banned keys among all keys, a portion at a time. */
  async function search() {
    view.searching = true;
    const status = h("span", { role: "status" }, "Looking through all keys…");
    put(covered, status);
    try {
      let cursor = "";
      while (cursor !== null) {
        const answer = await api.get(`api/keys?${new URLSearchParams({ banned: true, ...(cursor && { cursor }) })}`, { signal });
        ({ cursor } = answer);
        for (const ban of answer.keys) view.found.set(ban.key, { ...ban, seen: view.at });
        put(status, `Looking through all keys: ${number(view.found.size)} bans so far`);
      }
      toast(`${number(view.found.size)} bans among all keys`);
    } catch (error) {
      if (!signal.aborted) toast(error.message);
    }
    view.searching = false;
    await drawBans().catch(() => {});
  }

  repeat(5000, signal, drawScaled);
  repeat(5000, signal, drawBans);
  await repeat(5000, signal, drawChanges);
}
