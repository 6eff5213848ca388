// View of a key: the state of its limits, its stored fields, and changes to it.
import { empty, errorNotice, field, loading, noteField, policyLink, segmented, toast } from "./dialog.js";
import { h, put, repeat } from "./dom.js";
import { compact, duration, instant, number, percent, visible } from "./format.js";
import { isSketch, lines } from "./specs.js";

/** Number of keys after which a search by prefix pauses. */
const ENOUGH = 100;
const BANS = [["10m", "10 min"], ["1h", "1 h"], ["1d", "1 day"], ["7d", "7 days"]];

/** Returns the item of a sketch, to be shown after the name of its key. */
export const itemLabel = (item) => h("span", { class: "item" }, h("span", { class: "tag" }, "item"), visible(item));

/** Bans a key, after a dialog that explains the effect. */
export function banDialog({ api, dialog }, key, until = 0, now = Date.now()) {
  let lasting = "1h";
  const effect = h("p", { class: "notice warn", "aria-live": "polite" });
  const customDuration = h("input", { class: "input mono", placeholder: "such as 90s, 2h, 30d", oninput: () => choose(customDuration.value.trim()) });
  const ms = (text) => {
    const [, count, unit] = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)?$/.exec(text) ?? [];
    return count === undefined ? null : Number(count) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }[unit ?? "s"];
  };
  function choose(value) {
    lasting = value;
    const length = ms(value);
    const end = now + (length ?? 0);
    put(effect, length === null ? "Say for how long, such as 90s, 2h or 30d."
      : end < until ? `It is banned until ${instant(until)} already, and a ban is never shortened.`
        : `Every call on this key is denied until ${instant(end)}, whatever its limits. Everybody who shares the key is hit.`);
  }
  choose(lasting);
  const [note, why] = noteField();
  return dialog({
    title: "Ban a key", small: true, aside: note,
    body: h("div", { class: "stack" }, h("code", { class: "code" }, visible(key)),
      h("div", { class: "field" }, h("span", {}, "For"), segmented("For", BANS, lasting, (value) => { customDuration.value = ""; choose(value); })),
      field("or", customDuration), effect),
    actions: [h("button", { class: "button primary danger" }, "Ban")],
    submit: async () => {
      const { banned_ms: left } = await api.post("api/key/ban", { key, for: lasting, ...why() });
      toast(`Banned for ${duration(left)}`);
      return true;
    },
  });
}

/** Opens a confirmation dialog; `submit(why)` makes the change, with the note as a part of its request. */
function confirm({ dialog }, title, body, action, submit, danger = true) {
  const [note, why] = noteField();
  return dialog({
    title, small: true, body: h("div", { class: "stack" }, body), aside: note,
    actions: [h("button", { class: `button primary${danger ? " danger" : ""}` }, action)], submit: () => submit(why()),
  });
}

/** Lifts the ban of a key, after a dialog. */
export const liftDialog = (context, key, until) => confirm(context, "Lift the ban", [h("code", { class: "code" }, visible(key)),
  h("p", {}, `It is banned until ${instant(until)}. Then only its limits decide, and its strikes are forgotten.`)], "Lift",
async (why) => { await context.api.post("api/key/lift", { key, ...why }); toast("Lifted"); return true; }, false);

function giveBackDialog({ api, dialog }, key, policy, limits) {
  const amount = h("input", { class: "input", type: "number", min: "0", step: "any", value: "1", inputmode: "decimal", oninput: () => draw() });
  const change = h("div", { class: "difference" });
  function draw() {
    const back = Number(amount.value) || 0;
    put(change, limits.map((limit) => [
      h("div", { class: "gone", dataset: { sign: "−" } }, `${limit.label}: ${number(limit.used)} used of ${number(limit.limit)}`),
      h("div", { class: "new", dataset: { sign: "+" } }, `${limit.label}: ${number(Math.max(0, limit.used - back))} used of ${number(limit.limit)}`),
    ]));
  }
  draw();
  const [note, why] = noteField();
  return dialog({
    title: "Give usage back", small: true, aside: note,
    body: h("div", { class: "stack" }, h("code", { class: "code" }, visible(key)), field("Units", amount, `of every limit of the policy ${visible(policy)} that has no cost of its own`), change),
    actions: [h("button", { class: "button primary" }, "Give back")],
    submit: async () => {
      await api.post("api/key/give-back", { key, policy, amount: Number(amount.value), ...why() });
      toast("Given back");
      return true;
    },
  });
}

/** Names of fields with instants. */
const INSTANTS = new Set(["drained_to", "start", "charged", "written", "oldest", "newest", "recovers_at", "banned_until", "first_strike"]);
const readable = (name) => name.replaceAll("_", " ");
/** Fields of a sketch, with sizes and shares. */
const SKETCH_FIELDS = { size: (bytes) => `${number(bytes / 1024)} KB`, filled: (share) => percent(Number(share)), unseen_denied: (share) => percent(Number(share)) };
/** Share of denied new items above which a sketch is too small. */
const TOO_SMALL = 0.01;

function facts(info) {
  const rows = Object.entries({ kind: info.kind, ...info }).filter(([, value]) => !Array.isArray(value) || value.every((element) => typeof element !== "object"));
  return h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, readable(name)),
    h("dd", {}, INSTANTS.has(name) && Number.isFinite(value) ? instant(value) : visible(SKETCH_FIELDS[name]?.(value) ?? String(value)))]));
}

const untilText = (ms) => (ms >= 0 ? `in ${duration(ms)}` : "over");

function table(label, heads, rows) {
  return h("div", { class: "scroll" }, h("table", { class: "table", "aria-label": label },
    h("thead", {}, h("tr", {}, heads.map((head, index) => h("th", { scope: "col", class: index > 0 ? "num" : "" }, head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, index) => h("td", { class: index > 0 ? "num" : "name" }, cell)))))));
}

const panel = (title, ...children) => h("section", { class: "panel", "aria-label": title }, h("div", { class: "panel-head" }, h("h2", {}, title)), children);

/** Lists the keys that begin with a prefix, a portion at a time. */
async function search(body, context, prefix) {
  const found = new Map();
  const list = h("ul", { class: "choices" });
  const status = h("span", { class: "muted small", role: "status" });
  const foot = h("div", { class: "panel-foot", hidden: true });
  put(body, h("section", { class: "panel", "aria-label": "Keys" },
    h("div", { class: "panel-head" }, h("h2", {}, "Keys that begin with ", h("span", { class: "name" }, visible(prefix))), status), list, foot));
  let cursor = "";
  async function findMore() {
    const enough = found.size + ENOUGH;
    foot.hidden = true;
    try {
      while (found.size < enough && cursor !== null) {
        const answer = await context.api.get(`api/keys?${new URLSearchParams({ prefix, ...(cursor && { cursor }) })}`, { signal: context.signal });
        ({ cursor } = answer);
        for (const { key, kind } of answer.keys) found.set(key, kind);
        put(status, `${number(found.size)}${cursor === null ? "" : ", looking for more"}`);
      }
    } catch (error) {
      if (!context.signal.aborted) put(body, errorNotice(error));
      return;
    }
    put(status, `${number(found.size)}${cursor === null ? "" : " so far"}`);
    put(list, found.size === 0 && h("li", {}, empty("No key begins so", "Keys that have recovered in full are gone.")),
      [...found].sort(([one], [other]) => (one < other ? -1 : 1)).map(([key, kind]) => h("li", {},
        h("a", { class: "name", href: context.link("key", [key]) }, visible(key)), kind && h("span", { class: "tag" }, kind))));
    foot.hidden = cursor === null;
    put(foot, h("button", { type: "button", class: "button small", onclick: findMore }, "Look for more"));
  }
  await findMore();
}

export async function mount(root, context) {
  const { api, signal, go } = context;
  const key = context.parts.length > 0 ? context.parts.join("/") : null;
  const prefix = context.query.get("prefix");
  const input = h("input", { class: "input mono", "data-search": true, "aria-label": "Key", placeholder: "A key, such as login:10.0.0.7", value: key ?? prefix ?? "", list: "denied-keys", spellcheck: "false", autocomplete: "off" });
  const known = h("datalist", { id: "denied-keys" });
  const form = h("form", { class: "row search", onsubmit: (event) => {
    event.preventDefault();
    if (input.value !== "") go("key", [input.value]);
  } }, input, h("button", { class: "button primary" }, "Look"),
  h("button", { type: "button", class: "button", onclick: () => go("key", [], { prefix: input.value }) }, "By prefix"), known);
  const body = h("div", { class: "stack" });
  put(root, h("div", { class: "head" }, h("h1", {}, "Key"), form), body);

  api.get("api/top?count=100", { signal }).then((rows) => put(known, rows.map((row) => h("option", { value: row.key })))).catch(() => {});
  if (key === null && prefix !== null) return search(body, context, prefix);
  if (key === null) {
    input.focus();
    put(body, loading());
    const rows = await api.get("api/top?count=12&since=1h", { signal }).catch(() => []);
    return put(body, rows.length === 0 ? h("div", { class: "panel" }, empty("Which key?", "Type its name. Keys that are denied appear here."))
      : panel("Denied most in the last hour", h("ul", { class: "choices" }, rows.map((row) => h("li", {},
        h("a", { class: "name", href: context.link("key", [row.key], { ...(row.policy && { policy: row.policy }), ...(row.item !== null && { item: row.item }) }) },
          visible(row.key), row.item !== null && [" ", itemLabel(row.item)]), h("span", { class: "num muted" }, `${compact(row.denied)} denied`))))));
  }

  const policies = await api.get("api/policies", { signal }).catch((error) => {
    if (error.status !== 0 && error.status !== 503) throw error;
    return [];
  });
  let chosen = context.query.get("policy") ?? "";
  let item = context.query.get("item") ?? "";
  const selection = () => ({ ...(chosen && { policy: chosen }), ...(item && { item }) });
  const specs = new Map(policies.map((policy) => [policy.name, policy.specs]));
  const choice = h("input", { class: "input mono", list: "policy-names", value: chosen, placeholder: "the one it was last denied by", spellcheck: "false", autocomplete: "off", onchange: () => {
    chosen = choice.value.trim();
    go("key", [key], selection(), true);
    draw();
  } });
  const itemInput = h("input", { class: "input mono", value: item, placeholder: "such as an address", spellcheck: "false", autocomplete: "off", onchange: () => {
    item = itemInput.value.trim();
    go("key", [key], selection(), true);
    draw();
  } });
  const itemField = h("label", { class: "row small muted", hidden: item === "" }, "item", itemInput);
  const names = h("datalist", { id: "policy-names" }, policies.slice(0, 500).map((policy) => h("option", { value: policy.name })));
  const title = h("div", { class: "row spread" }, h("code", { class: "code grow" }, visible(key)));
  const banned = h("div");
  const bars = h("div", {}, loading());
  const memory = h("div", { class: "stack" });
  const actions = h("div", { class: "row" });
  const sketchNote = h("span", { class: "muted small", hidden: true }, "Items of a sketch cannot be banned or given units back, because they share cells. Resetting it forgets all items.");
  // Shown only if the name has invisible characters, since the input field shows it already.
  put(body, visible(key) !== key && title, banned,
    h("section", { class: "panel", "aria-label": "Limits" },
      h("div", { class: "panel-head" }, h("h2", {}, "How full its limits are"), h("div", { class: "end row" }, h("label", { class: "row small muted" }, "under the policy", choice), itemField, names)),
      bars),
    context.canChange() ? actions : null, memory);

  let last = null;
  const redraw = (changed) => changed && draw();
  const lift = h("button", { type: "button", class: "button", hidden: true, onclick: () => liftDialog(context, key, last.info.banned_until).then(redraw) }, "Lift ban…");
  put(actions,
    h("button", { type: "button", class: "button danger", onclick: () => banDialog(context, key, last?.info?.banned_until, last?.at).then(redraw) }, "Ban…"),
    lift,
    h("button", { type: "button", class: "button", onclick: () => {
      const limits = limitsOf(last);
      if (!last?.policy || limits.length === 0) return context.dialog({ title: "Give usage back", small: true, body: h("p", {}, "First choose the policy under which usage is given back.") });
      return giveBackDialog(context, key, last.policy, limits.filter((limit) => !limit.line?.ban)).then(redraw);
    } }, "Give back…"),
    h("button", { type: "button", class: "button danger", onclick: () => confirm(context, "Reset the key", [h("code", { class: "code" }, visible(key)),
      h("p", { class: "notice warn" }, last?.info?.kind === "rl-sketch" ? "It forgets the usage of all of its items. Its next call creates it with the size of that call."
        : "It forgets all usage, leases, idempotency keys, strikes and bans. The next call finds every limit unused.")], "Reset",
    async (why) => { await api.post("api/key/reset", { key, ...why }); toast("Reset"); return true; }).then(redraw) }, "Reset…"));

  actions.append(sketchNote);

  const isBanned = ({ info, at }) => (info?.banned_until ?? 0) > at;

  /** Returns the limits of a response with their words and used units. */
  function limitsOf(answer) {
    const known = lines(specs.get(answer?.policy) ?? answer?.spec ?? "").filter((line) => !line.ban);
    return (answer?.ruled?.limits ?? []).map((limit, index) => ({
      ...limit, line: known[index], label: known[index]?.description ?? limit.name ?? `limit ${index + 1}`, used: Math.max(0, limit.limit - limit.remaining),
    }));
  }

  function drawBars(answer) {
    const sketched = isSketch(specs.get(answer.policy) ?? "") || answer.info?.kind === "rl-sketch";
    itemField.hidden = !sketched && item === "";
    for (const button of [...actions.children].slice(0, 3)) button.hidden = sketched;
    lift.hidden = sketched || !isBanned(answer);
    sketchNote.hidden = !sketched;
    if (sketched && item === "") return put(bars, empty("Which item?", "A sketch counts each of its items apart. Type one above, such as an address."));
    if (answer.refused !== undefined) return put(bars, h("div", { class: "panel-body" }, h("p", { class: "notice error" }, answer.refused)));
    if (!answer.policy && !answer.ruled) return put(bars, empty("Under which policy?", "The key does not say. Choose one above to see how full its limits are."));
    const limits = limitsOf(answer);
    const verdict = answer.ruled.allowed ? h("span", { class: "tag good" }, answer.ruled.wait_ms > 0 ? `a call now passes and is held for ${duration(answer.ruled.wait_ms)}` : "a call now passes")
      : h("span", { class: "tag denied" }, answer.ruled.wait_ms < 0 ? "a call now never passes" : `a call now is denied for ${duration(answer.ruled.wait_ms)}`);
    return put(bars, h("div", { class: "panel-body stack" },
      h("div", { class: "row" }, answer.policy ? policyLink(context, answer.policy)
        : h("span", { class: "muted" }, "by the numbers of its last call"), verdict),
      limits.map((limit) => {
        const share = limit.limit > 0 ? Math.min(1, limit.used / limit.limit) : 1;
        const colour = limit.line?.shadow ? "shadowed" : share >= 1 ? "full" : share >= 0.8 ? "near" : "";
        return h("div", { class: "stack tight" },
          h("div", { class: "row spread" }, h("span", {}, limit.label, limit.name && h("span", { class: "muted" }, ` (${visible(limit.name)})`), limit.line?.shadow && h("span", { class: "tag shadowed" }, "shadow")),
            h("span", { class: "num" }, h("b", {}, number(limit.used)), ` of ${number(limit.limit)} · ${percent(share)}`)),
          h("div", { class: "bar", role: "img", "aria-label": `${number(limit.used)} of ${number(limit.limit)} used` }, h("i", { class: colour, style: { width: `${share * 100}%` } })),
          h("div", { class: "row spread small muted" }, h("span", {}, limit.allowed ? `${number(limit.remaining)} left` : limit.wait_ms < 0 ? "never lets a call of 1 pass" : `denies, for ${duration(limit.wait_ms)}`),
            h("span", {}, limit.reset_ms > 0 ? `unused again in ${duration(limit.reset_ms)}` : "unused")));
      })));
  }

  function drawMemory({ info, at }) {
    if (info === null) return put(memory, h("div", { class: "panel" }, empty("It remembers nothing", "Never used, or recovered in full: the two are the same.")));
    const parts = [info, ...(info.parts ?? [])];
    const leases = parts.flatMap((part) => part.leases ?? []);
    const queue = info.queue ?? [];
    const unseen = Number(info.unseen_denied ?? 0);
    return put(memory,
      unseen > TOO_SMALL && h("p", { class: "notice warn" }, `It denies ${percent(unseen)} of the items that have not called before: it is too small for so many. Use another key, with a larger SIZE.`),
      leases.length > 0 && panel("Leases", table("Leases", ["Holder", "Units", "Expires"], leases.map((lease) => {
        const [holder, units, expires] = Array.isArray(lease) ? lease : Object.values(lease);
        return [visible(String(holder)), number(Number(units)), untilText(Number(expires) - at)];
      }))),
      queue.length > 0 && panel("Waiting in turn", table("Waiting", ["Holder", "Units", "Waits since", "Gives up"], queue.map(([holder, units, waited, left]) =>
        [visible(String(holder)), number(Number(units)), duration(waited), left < 0 ? "never" : `in ${duration(left)}`]))),
      h("details", { class: "panel", open: memory.querySelector("details")?.open ?? true }, h("summary", { class: "panel-head" }, h("h2", {}, "What it remembers")),
        h("div", { class: "panel-body parts" }, facts(info), (info.parts ?? []).map((part) => facts(part)))));
  }

  let shown = "";
  async function draw() {
    let answer;
    try {
      answer = await api.get(`api/key?${new URLSearchParams({ key, policy: chosen, item })}`, { signal });
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 400) put(bars, h("div", { class: "panel-body" }, errorNotice(error)));
      else if (last === null) put(bars, h("div", { class: "panel-body" }, errorNotice(error)));
      return;
    }
    last = answer;
    if (answer.policy && !specs.has(answer.policy)) specs.set(answer.policy, (await api.get(`api/policies/${api.segment(answer.policy)}`, { signal }).catch(() => ({}))).specs ?? "");
    const left = (answer.info?.banned_until ?? 0) - answer.at;
    put(banned, left > 0 && h("div", { class: "notice error row spread" },
      h("span", {}, h("b", {}, "Banned"), ` until ${instant(answer.info.banned_until)}, ${duration(left)} more`, answer.info.ban_level > 1 && `, level ${answer.info.ban_level}`)));
    drawBars(answer);
    const now = JSON.stringify(answer.info);
    if (now !== shown || answer.info?.leases || answer.info?.queue) drawMemory(answer);
    shown = now;
  }
  await repeat(1000, signal, draw);
  return undefined;
}
