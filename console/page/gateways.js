// View of the gateways: whether they enforce limits, and outages, outcomes and latencies from their metrics.
import { empty, errorNotice, loading } from "./dialog.js";
import { h, putKeyed, put, repeat } from "./dom.js";
import { duration, instant, number, percent, rate, visible } from "./format.js";

/** Effects of the modes of --on-outage while a server is away. */
const MODES = { open: "requests pass", closed: "requests are denied", error: "the proxy decides", local: "the gateway counts a share of each limit itself" };
const OUTCOMES = ["allowed", "denied", "outage", "error"];
/** Classes of notices and tags by the level of a problem. */
const PROBLEMS = { bad: ["error", "denied"], warn: ["warn", "warn"] };

const mode = (name) => `${name}: ${MODES[name.split("=")[0]] ?? "unknown"}`;

/** Formats a latency. The largest bucket has no upper bound. */
function latency(ms, maximum) {
  if (ms === null) return "–";
  if (ms >= maximum) return `≥ ${duration(maximum)}`;
  return ms < 10 ? `${ms.toFixed(2)} ms` : `${ms.toFixed(0)} ms`;
}

const figure = (value, label, colour = "") => h("div", { class: "figure" }, h("b", { class: colour }, value), h("span", {}, label));
const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, value)];
const lasting = (since, at) => `since ${instant(since)}, for ${duration(Math.max(0, at - since))}`;

function facts(gateway, at) {
  const away = gateway.servers_away;
  return h("dl", { class: "facts" },
    fact("Server", away === 0 ? "answers"
      : h("span", { class: "c-denied" }, `${away === 1 ? "a server is" : `${number(away)} servers are`} away`, gateway.outage_start !== null && `, ${lasting(gateway.outage_start, at)}`)),
    fact("In an outage", mode(gateway.outage_mode)),
    gateway.shadow && fact("Shadow mode", h("span", { class: "c-warn" }, "no request is denied")),
    fact("Limits", gateway.refused ? h("span", { class: "c-warn" }, "the last ones are refused, earlier ones stay") : "the last ones are in use",
      gateway.refused_reloads > 0 && `, ${number(gateway.refused_reloads)} refused since it started`),
    gateway.control_plane !== null && fact("Control plane", gateway.control_plane ? "connected" : h("span", { class: "c-warn" }, "not connected")));
}

function figures({ decisions, requests, late, unsettled }) {
  const all = Object.values(requests).reduce((sum, { rate: one }) => sum + one, 0);
  const denied = decisions.denied + decisions.denied_local;
  const warnClass = (value) => (value > 0 ? "c-warn" : "");
  return h("div", { class: "figures" }, figure(rate(all), "requests / s"), figure(rate(denied), "denied / s", denied > 0 ? "c-denied" : ""),
    figure(rate(decisions.unmatched), "unmatched / s", warnClass(decisions.unmatched)),
    figure(rate(decisions.outage), "in an outage / s", warnClass(decisions.outage)),
    figure(rate(decisions.error), "errors / s", warnClass(decisions.error)),
    figure(number(late), "late replies", warnClass(late)), figure(number(unsettled), "charges not undone", warnClass(unsettled)));
}

const share = ({ unmatched, all }) => (all > 0 ? `, ${percent(unmatched / all)} of its decisions` : "");

function latencies({ requests, server }) {
  const row = (name, times) => times && h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "num" }, rate(times.rate)),
    h("td", { class: "num" }, latency(times.p50_ms, times.max_ms)), h("td", { class: "num" }, latency(times.p99_ms, times.max_ms)));
  return h("div", { class: "scroll" }, h("table", { class: "table compact" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Latency"), ["/ s", "p50", "p99"].map((name) => h("th", { scope: "col", class: "num" }, name)))),
    h("tbody", {}, OUTCOMES.map((name) => row(name, requests[name])), row("of the server", server))));
}

/** Creates the panel of a gateway, and the function that fills it. */
function panel(first) {
  const tag = h("span");
  const body = h("div", { class: "panel-body stack" });
  const times = h("div");
  const foot = h("div", { class: "panel-foot" });
  const element = h("section", { class: "panel half", "aria-label": visible(first.name) },
    h("div", { class: "panel-head" }, h("h2", { class: "name" }, visible(first.name)), tag), body, times, foot);
  return [element, (gateway) => {
    const worst = gateway.problems.find(({ level }) => level === "bad") ?? gateway.problems[0];
    put(tag, h("span", { class: `tag ${worst ? PROBLEMS[worst.level][1] : "good"}` }, worst?.state ?? "enforces limits"));
    // Without a sample, nothing is known of the gateway.
    const { counts, at } = gateway;
    put(body, gateway.problems.map(({ level, text, since }) => h("p", { class: `notice ${PROBLEMS[level][0]}` }, `${text}.`, since !== null && ` ${lasting(since, at).replace("s", "S")}.`)),
      counts && [figures(counts), facts(gateway, at)]);
    put(times, counts && latencies(counts));
    foot.hidden = (counts?.unmatched ?? []).length === 0;
    put(foot, "Unmatched: ", (counts?.unmatched ?? []).map((domain, index) => [index > 0 && "; ", h("span", { class: "name" }, visible(domain.domain)),
      ` ${rate(domain.unmatched)} / s${share(domain)}`]));
  }];
}

export async function mount(root, context) {
  const { api, signal } = context;
  const list = h("div", { class: "grid" }, loading());
  put(root, h("div", { class: "head" }, h("h1", {}, "Gateways"), h("span", { class: "muted small end" }, "counts of the last minute, updated every second")), list);
  let isFilled = false;
  await repeat(1000, signal, async () => {
    try {
      const { at, gateways } = await api.get("api/gateways", { signal });
      if (gateways.length === 0) {
        put(list, h("div", { class: "panel" }, empty("The console knows no gateway", ["Name each one at its start: ", h("code", {}, "--gateway http://host:8080")])));
        return;
      }
      if (!isFilled) put(list);
      isFilled = true;
      putKeyed(list, gateways.map((gateway) => ({ ...gateway, at })), ({ name }) => name, panel);
    } catch (error) {
      if (!signal.aborted && !isFilled) put(list, errorNotice(error));
    }
  });
}
