// Views of the list of policies and of a single policy.
import { deleteDialog, editDialog, scaleDialog } from "./change.js";
import { copy, empty, errorNotice, loading, policyLink } from "./dialog.js";
import { h, putKeyed, put, repeat } from "./dom.js";
import { exportButtons } from "./export.js";
import { compact, duration, number, percent, visible } from "./format.js";
import { itemLabel } from "./key.js";
import { isSketch, lines } from "./specs.js";

/** Number of policies that are shown at first, and more after each click. */
const STEP = 100;
/** Columns of an export. */
const EXPORT_COLUMNS = ["name", "specs", "scale", "scale_ms", "version", "calls", "admitted", "denied", "near", "shadow_denied", "banned", "repeated"];

const limitList = (specs) => h("ul", { class: "limits" }, lines(specs).map((line) => h("li", {}, line.description,
  line.name && h("span", { class: "muted" }, ` (${line.name})`), line.shadow && h("span", { class: "tag shadowed" }, "shadow"))));

/** Creates the tag of a scaled policy, "× 1.5 · 9 min more". Returns null for a scale of 1. */
export function scaleTag(policy) {
  if (policy.scale === 1) return null;
  const left = policy.scale_ms < 0 ? "until changed" : `${duration(policy.scale_ms)} more`;
  return h("span", { class: `tag ${policy.scale === 0 ? "denied" : "warn"}` }, `× ${number(policy.scale)} · ${left}`);
}

const shareDenied = ({ admitted, denied }) => (admitted + denied > 0 ? percent(denied / (admitted + denied)) : "–");

/** Creates the buttons of a policy, if the token allows changes. */
function tools(context, policy, done) {
  if (!context.canChange()) return [];
  const button = (text, open, more = "") => h("button", { type: "button", class: `button small ${more}`, onclick: () => open(context, policy()).then((changed) => changed && done(changed)) }, text,
    h("span", { class: "hidden" }, ` ${visible(policy().name)}`));
  return [button("Edit…", editDialog), button("Scale…", scaleDialog), button("Delete…", deleteDialog, "danger")];
}

export async function mount(root, context) {
  return context.parts.length > 0 ? mountPolicy(root, context, context.parts.join("/")) : mountList(root, context);
}

async function mountList(root, context) {
  const { api, signal, link, go } = context;
  const view = { policies: null, shown: STEP, digest: null, text: context.query.get("search") ?? "", order: "name" };
  const search = h("input", { class: "input mono", type: "search", "data-search": true, "aria-label": "Search policies", placeholder: "Search names and limits", value: view.text, oninput: () => { view.text = search.value; view.shown = STEP; draw(); keepInUrl(); } });
  const count = h("span", { class: "muted small", role: "status" });
  const body = h("tbody");
  const more = h("div", { class: "panel-foot" });
  const sorts = new Map();
  const sortableHead = (text, order, more = "") => {
    const cell = h("th", { scope: "col", class: more }, h("button", { type: "button", onclick: () => { view.order = order; draw(); keepInUrl(); } }, text));
    sorts.set(order, cell);
    return cell;
  };
  const area = h("div", {}, loading());
  /** Keeps the search and the order in the URL. */
  const keepInUrl = () => go("policies", [], { ...(view.text && { search: view.text }), ...(view.order !== "name" && { sort: view.order }) }, true);
  put(root,
    h("div", { class: "head" }, h("h1", {}, "Policies"), count, h("div", { class: "row end grow-narrow" }, search,
      exportButtons("policies", EXPORT_COLUMNS, async () => matching().map(({ counts, ...policy }) => ({ ...policy, ...counts }))),
      context.canChange() && h("button", { type: "button", class: "button primary", onclick: () => create() }, "New policy"))),
    h("section", { class: "panel", "aria-label": "Policies" }, area, more));
  const table = h("div", { class: "scroll" }, h("table", { class: "table policies" },
    h("thead", {}, h("tr", {}, sortableHead("Name", "name"), h("th", { scope: "col", class: "wide" }, "Limits"),
      sortableHead("Calls", "calls", "num wide"), sortableHead("Admitted", "admitted", "num wide"), sortableHead("Denied", "denied", "num"), h("th", { scope: "col", class: "num wide" }, "Share denied"),
      sortableHead("Shadow would deny", "shadow_denied", "num wide"), context.canChange() && h("th", { scope: "col" }, h("span", { class: "hidden" }, "Actions")))), body));
  more.hidden = true;
  if (sorts.has(context.query.get("sort"))) view.order = context.query.get("sort");

  /** Returns the policies that match the search, in the chosen order. */
  function matching() {
    const text = view.text.toLowerCase();
    const found = (view.policies ?? []).filter((policy) => text === "" || policy.name.toLowerCase().includes(text) || policy.specs.toLowerCase().includes(text));
    return view.order === "name" ? found : found.sort((one, other) => other.counts[view.order] - one.counts[view.order]);
  }

  async function create(name = "", specs = "") {
    const changed = await editDialog(context, { name, version: null, specs: "" }, specs);
    if (changed) await fetchAll();
  }

  function draw() {
    if (view.policies === null) return;
    const found = matching();
    for (const [order, cell] of sorts) cell.setAttribute("aria-sort", order !== view.order ? "none" : order === "name" ? "ascending" : "descending");
    put(count, view.text === "" ? `${number(view.policies.length)}` : `${number(found.length)} of ${number(view.policies.length)}`);
    if (found.length === 0) {
      more.hidden = true;
      put(area, view.policies.length > 0 ? empty("None match", "Another word finds more.")
        : empty("No policies yet", context.canChange() ? "A policy is a list of limits with a name that callers use." : "A token that allows changes is needed to set one."));
      return;
    }
    if (area.firstChild !== table) put(area, table);
    putKeyed(body, found.slice(0, view.shown), (policy) => policy.name, (first) => {
      let current = first;
      const cells = { limits: h("td", { class: "wide" }), calls: h("td", { class: "num wide" }), admitted: h("td", { class: "num wide" }), denied: h("td", { class: "num" }), share: h("td", { class: "num wide" }), shadow: h("td", { class: "num wide c-shadowed" }) };
      const narrow = h("div", { class: "narrow small muted" });
      const scale = h("span");
      const row = h("tr", {}, h("td", {}, h("div", { class: "stack tight" }, h("div", { class: "row" }, policyLink(context, first.name), scale), narrow)),
        Object.values(cells), context.canChange() && h("td", {}, h("div", { class: "row tools" }, tools(context, () => current, fetchAll))));
      let specs = null;
      return [row, (policy) => {
        current = policy;
        if (specs !== policy.specs) {
          put(cells.limits, limitList(policy.specs));
          put(narrow, limitList(policy.specs));
          specs = policy.specs;
        }
        put(scale, scaleTag(policy));
        for (const name of ["calls", "admitted", "denied"]) cells[name].textContent = compact(policy.counts[name]);
        cells.share.textContent = shareDenied(policy.counts);
        cells.shadow.textContent = policy.counts.shadow_denied > 0 ? compact(policy.counts.shadow_denied) : "–";
      }];
    });
    const rest = found.length - view.shown;
    more.hidden = rest <= 0;
    put(more, h("button", { type: "button", class: "button small", onclick: () => { view.shown += STEP; draw(); } }, `Show ${number(Math.min(STEP, rest))} more`), ` of ${number(rest)}`);
  }

  async function fetchAll() {
    try {
      view.policies = await api.get("api/policies", { signal });
      draw();
    } catch (error) {
      if (!signal.aborted && view.policies === null) put(area, errorNotice(error));
    }
  }

  let samples = 0;
  repeat(2000, signal, async () => {
    const { digest, policies } = await api.get("api/now?since=9007199254740991", { signal });
    samples += 1;
    // Each sample has the counts of the most called policies. All policies are fetched after a change, and periodically,
    // less often if there are many.
    if (digest !== view.digest || view.policies === null || samples % (view.policies.length > 500 ? 15 : 3) === 0) {
      view.digest = digest;
      return fetchAll();
    }
    for (const policy of view.policies) policy.counts = policies[policy.name] ?? policy.counts;
    return draw();
  });
  const nameToSet = context.query.get("set");
  if (nameToSet !== null && context.canChange()) {
    go("policies", [], {}, true);
    const stored = await api.get(`api/policies/${api.segment(nameToSet)}`, { signal }).catch(() => null);
    const changed = await editDialog(context, stored ?? { name: nameToSet, version: null, specs: "" }, context.query.get("specs") ?? "");
    if (changed) await fetchAll();
  }
}

async function mountPolicy(root, context, name) {
  const { api, signal, link, go } = context;
  let policy = null;
  const body = h("div", { class: "stack" }, loading());
  put(root, h("div", { class: "head" }, h("a", { href: link("policies") }, "Policies"), h("span", { class: "muted", "aria-hidden": "true" }, "/"), h("h1", { class: "name whole", title: visible(name) }, visible(name))), body);
  const limits = h("div", { class: "panel-body stack" });
  const figures = h("div", { class: "panel-body figures" });
  const denied = h("div");
  let list = null;
  const bar = h("div", { class: "row" });
  const done = (changed) => (changed === "deleted" ? go("policies") : draw());

  function fill() {
    put(body, bar, h("div", { class: "grid" },
      h("section", { class: "panel half", "aria-label": "Limits" }, h("div", { class: "panel-head" }, h("h2", {}, "Limits")), limits),
      h("section", { class: "panel half", "aria-label": "Counts" }, h("div", { class: "panel-head" }, h("h2", {}, "Since the servers started")), figures),
      h("section", { class: "panel", "aria-label": "Denied most" }, h("div", { class: "panel-head" }, h("h2", {}, "Denied most by it"), h("span", { class: "muted small" }, "in the last hour")), denied)));
    put(bar, tools(context, () => policy, done), copy(() => `RL.LIMIT KEY ${name}${isSketch(policy.specs) ? " ITEM item" : ""}`, "Copy the call"), copy(() => `RL.POLICYSET ${name} ${policy.specs}`, "Copy the setting"));
  }

  async function draw() {
    try {
      const next = await api.get(`api/policies/${api.segment(name)}`, { signal });
      const first = policy === null;
      policy = next;
      if (first) fill();
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 404) {
        policy = null;
        put(body, h("div", { class: "panel" }, empty("There is no such policy", h("a", { href: link("policies") }, "All policies"))));
      } else if (policy === null) put(body, errorNotice(error));
      return;
    }
    const { counts } = policy;
    put(limits, scaleTag(policy), limitList(policy.specs), h("code", { class: "code" }, policy.specs),
      h("span", { class: "muted small" }, `set ${new Date(policy.version / 1000).toISOString().replace("T", " ").slice(0, 19)} UTC`));
    const figure = (value, label, colour = "") => h("div", { class: "figure" }, h("b", { class: colour }, value), h("span", {}, label));
    put(figures, figure(compact(counts.admitted), "admitted", "c-admitted"), figure(compact(counts.denied), "denied", "c-denied"), figure(shareDenied(counts), "share denied"),
      figure(compact(counts.near), "near the limit", "c-warn"), figure(compact(counts.shadow_denied), "shadow would deny", "c-shadowed"), figure(compact(counts.banned), "by a ban"), figure(compact(counts.repeated), "repeated"));
    const rows = (await api.get("api/top?count=500&since=1h", { signal }).catch(() => [])).filter((row) => row.policy === name).slice(0, 15);
    if (rows.length === 0) {
      list = null;
      return put(denied, empty("Nobody in the last hour"));
    }
    if (list === null) put(denied, (list = h("ul", { class: "choices" })));
    return putKeyed(list, rows, (row) => JSON.stringify([row.key, row.item]), (first) => {
      const count = h("span", { class: "num muted" });
      const address = link("key", [first.key], { policy: name, ...(first.item !== null && { item: first.item }) });
      return [h("li", {}, h("a", { class: "name", href: address }, visible(first.key), first.item !== null && [" ", itemLabel(first.item)]), count),
        (row) => { count.textContent = `${compact(row.denied)} denied`; }];
    });
  }
  await repeat(2000, signal, draw);
}
