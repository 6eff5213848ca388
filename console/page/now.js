// Live view: decisions a second by policy, denied keys, waiting calls, and the nodes.
import { choosable, lines, spark } from "./chart.js";
import { empty, errorNotice, loading, policyLink, segmented } from "./dialog.js";
import { h, putKeyed, put, repeat } from "./dom.js";
import { exportButtons } from "./export.js";
import { compact, duration, instant, number, percent, rate, visible } from "./format.js";
import { banDialog, itemLabel } from "./key.js";

/** Ranges of the chart: name, minutes and label. The shortest is live, the others come from the history. */
const RANGES = [["5m", 5, "5 min"], ["15m", 15, "15 min"], ["1h", 60, "1 h"], ["6h", 360, "6 h"], ["24h", 1440, "24 h"]];
/** Range that only Prometheus has. */
const WEEK = ["7d", 10_080, "7 d"];
const MINUTE = 60_000;
/** Minutes of the live range. */
const LIVE_MINUTES = 5;
/** Length of the line beside a policy, in milliseconds. */
const SPARK_MS = 60_000;
/** Maximum number of policies in the list. */
const MAX_POLICIES = 12;
/** Times for which denied keys are counted, with their labels. */
const SINCE = [["1m", "1 min"], ["5m", "5 min"], ["15m", "15 min"], ["1h", "1 h"], ["start", "start"]];
/** Minutes of the line beside a denied key. */
const SPARK_MINUTES = 15;
/** Columns of an export. */
const EXPORT_COLUMNS = ["key", "item", "policy", "denied", "error", "node"];

/** Draws the denials of a key by minute, relative to their maximum, and describes them for screen readers. */
function denialSpark(minutes) {
  const maximum = Math.max(1, ...minutes);
  const points = minutes.map((denied, index) => [index / (minutes.length - 1), denied / maximum]);
  return [spark(points, "--denied"), h("span", { class: "hidden" }, `${number(minutes.at(-1))} in this minute, at most ${number(maximum)} a minute`)];
}

/** Returns the mean of a value over the last `count` ticks, because a single tick varies much. */
function mean(ticks, pick, count = 5) {
  const last = ticks.slice(-count);
  return last.length === 0 ? 0 : last.reduce((sum, tick) => sum + (pick(tick) ?? 0), 0) / last.length;
}

export async function mount(root, context) {
  const { api, signal, link, go } = context;
  const requestedSince = context.query.get("since");
  const choices = context.hasPrometheus() ? [...RANGES, WEEK] : RANGES;
  const range = choices.find(([name]) => name === context.query.get("range")) ?? RANGES[0];
  const view = { ticks: [], at: 0, range, history: null, since: SINCE.some(([since]) => since === requestedSince) ? requestedSince : "5m" };
  const figures = h("div", { class: "figures" });
  const chart = h("div", { class: "chart" });
  const readout = h("div", { class: "readout" });
  const source = h("div", { class: "small muted", role: "status" });
  const policies = h("tbody");
  const policiesFoot = h("div", { class: "panel-foot" });
  const nodes = h("tbody");
  const denied = h("div", {}, loading());
  const waiting = h("div", {}, loading());

  const legend = h("div", { class: "legend" },
    h("span", {}, h("i", { class: "c-admitted" }), "admitted"), h("span", {}, h("i", { class: "c-denied" }), "denied"));
  /** Keeps the choices in the URL. */
  const keepInUrl = () => go("now", [], { ...(view.range !== RANGES[0] && { range: view.range[0] }), ...(view.since !== "5m" && { since: view.since }) }, true);
  const since = segmented("Since", SINCE, view.since, (value) => {
    view.since = value;
    keepInUrl();
    fetchTop();
  });
  const ranges = segmented("Range", choices.map(([name, , label]) => [name, label]), view.range[0], (name) => {
    view.range = choices.find(([known]) => known === name);
    view.history = null;
    drawSource();
    chart.chosen = null;
    put(readout);
    keepInUrl();
    drawChart();
    fetchHistory();
  });
  choosable(chart, "Time", readOut);
  const topPath = (count) => `api/top?count=${count}${view.since === "start" ? "" : `&since=${view.since}`}`;

  put(root,
    h("div", { class: "head" }, h("h1", {}, "Now"), h("span", { class: "muted small end" }, "updated every second")),
    h("div", { class: "grid" },
      h("section", { class: "panel", "aria-label": "Decisions" },
        h("div", { class: "panel-head" }, h("h2", {}, "Decisions a second"), h("div", { class: "end row" }, legend, ranges)),
        h("div", { class: "panel-body stack tight decisions" }, figures, chart, readout, source)),
      h("div", { class: "stack two-thirds" },
        h("section", { class: "panel", "aria-labelledby": "denied" },
          h("div", { class: "panel-head" }, h("h2", { id: "denied" }, "Denied most"), h("div", { class: "end row" }, since, exportButtons("denied", EXPORT_COLUMNS, () => api.get(topPath(1000), { signal })))),
          denied),
        h("section", { class: "panel", "aria-labelledby": "by-policy" },
          h("div", { class: "panel-head" }, h("h2", { id: "by-policy" }, "By policy"), h("span", { class: "muted small" }, "a second, mean of 5 s")),
          h("div", { class: "scroll" }, h("table", { class: "table" },
            h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Policy"), h("th", { scope: "col", class: "wide" }, "Last minute"),
              h("th", { scope: "col", class: "num" }, "Admitted"), h("th", { scope: "col", class: "num" }, "Denied"),
              h("th", { scope: "col", class: "num wide" }, "Share denied"), h("th", { scope: "col", class: "num wide" }, "Shadow"))),
            policies)), policiesFoot)),
      h("div", { class: "stack third" },
        h("section", { class: "panel", "aria-labelledby": "nodes" },
          h("div", { class: "panel-head" }, h("h2", { id: "nodes" }, "Nodes")),
          h("div", { class: "scroll" }, h("table", { class: "table" },
            h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Node"), h("th", { scope: "col", class: "num" }, "Share"),
              h("th", { scope: "col", class: "num" }, "Reply"))),
            nodes))),
        h("section", { class: "panel", "aria-labelledby": "waiting" },
          h("div", { class: "panel-head" }, h("h2", { id: "waiting" }, "Waiting")), waiting))));

  function drawFigures(now) {
    const [admitted, refused, shadowed, banned] = [0, 1, 2, 3].map((index) => mean(view.ticks, (tick) => tick.all[index]));
    const all = admitted + refused;
    const figure = (value, label, colour) => h("div", { class: "figure" }, h("b", { class: colour }, value), h("span", {}, label));
    put(figures, figure(rate(admitted), "admitted / s", "c-admitted"), figure(rate(refused), "denied / s", "c-denied"),
      figure(all > 0 ? percent(refused / all) : "–", "share denied"), figure(rate(banned), "by bans / s"),
      figure(rate(shadowed), "shadow would deny / s", "c-shadowed"),
      figure(number(now.waiting.calls), "waiting calls"), figure(number(now.count ?? 0), "policies"));
  }

  /** Returns the intervals of the chart: live ones of a second, or those of the history. */
  const intervals = () => (view.range[1] === LIVE_MINUTES ? view.ticks : view.history?.points ?? []);

  function drawChart() {
    const [, minutes, label] = view.range;
    const to = (minutes === LIVE_MINUTES ? view.at : view.history?.at) ?? view.at;
    if (to === 0) return;
    const step = minutes === LIVE_MINUTES ? 1000 : view.history?.step_ms ?? MINUTE;
    // A gap without samples has no line.
    const points = (outcome) => intervals().flatMap(({ at, all }, index, list) => [
      ...(index > 0 && at - list[index - 1].at > 3 * step ? [[at - 1, null]] : []), [at, all[outcome]]]);
    const maximum = Math.max(0, ...intervals().map(({ all }) => all[1]));
    if (chart.chosen !== null && chart.chosen < to - minutes * MINUTE) {
      chart.chosen = null;
      put(readout);
    }
    lines(chart, {
      from: to - minutes * MINUTE, to, height: 80,
      lines: [{ colour: "--admitted", points: points(0) }, { colour: "--denied", points: points(1) }],
      description: `The last ${label}: at most ${rate(maximum)} denied a second`,
    });
  }

  /** Returns the most denied keys of the interval that begins at `at`: those of its minute with the most denials of a key. */
  function keysAt(at) {
    const minutes = view.history.keys.filter(([minute]) => minute >= at - (at % MINUTE) && minute < at + view.history.step_ms);
    return minutes.map(([, keys]) => keys).toSorted((one, other) => other[0].denied - one[0].denied)[0] ?? [];
  }

  /** Says where the history comes from. */
  function drawSource() {
    const { source: from, prometheus, why } = view.history ?? {};
    source.className = `small ${why ? "c-warn" : "muted"}`;
    const line = view.range[1] === LIVE_MINUTES || !from ? "" : why ? `Prometheus at ${prometheus}: ${why}. Samples of the console are shown.`
      : from === "prometheus" ? `From Prometheus at ${prometheus}; keys from the console's samples.`
        : from === "both" ? `From Prometheus at ${prometheus}; where it has none, and keys, from the console's samples.` : "From the console's samples.";
    // Screen readers would read out a status that is set again.
    if (source.textContent !== line) put(source, line);
  }

  /** Shows the values at a time, with the policies and keys that were denied most. Returns them as text. */
  function readOut(at) {
    const interval = intervals().find((candidate) => candidate.at === at);
    if (!interval) return put(readout).textContent;
    const [admitted, refused] = interval.all;
    const all = admitted + refused;
    const deniedBy = Object.entries(interval.policies).filter(([, rates]) => rates[1] > 0).sort(([, one], [, other]) => other[1] - one[1]).slice(0, 3);
    const keys = view.range[1] === LIVE_MINUTES ? [] : keysAt(at).slice(0, 3);
    return put(readout, h("b", {}, instant(at)), h("span", { class: "c-admitted" }, `${rate(admitted)} admitted / s`),
      h("span", { class: "c-denied" }, `${rate(refused)} denied / s${all > 0 ? `, ${percent(refused / all)}` : ""}`),
      deniedBy.map(([name, rates]) => h("span", {}, policyLink(context, name), ` ${rate(rates[1])} denied / s`)),
      keys.map((key) => h("span", {}, h("a", { class: "name", href: link("key", [key.key], { ...(key.policy && { policy: key.policy }), ...(key.item !== null && { item: key.item }) }) },
        visible(key.key), key.item !== null && [" ", itemLabel(key.item)]), ` ${compact(key.denied)} denied in the minute`))).textContent;
  }

  let historyTimer;
  signal.addEventListener("abort", () => clearTimeout(historyTimer));
  /** Loads the history of the chosen range, and again after each of its intervals. */
  async function fetchHistory() {
    clearTimeout(historyTimer);
    const { range } = view;
    if (range[1] === LIVE_MINUTES || signal.aborted) return;
    const answer = await api.get(`api/history?minutes=${range[1]}`, { signal }).catch(() => null);
    // Another range may have been chosen meanwhile.
    if (view.range !== range || signal.aborted) return;
    if (answer !== null) {
      view.history = answer;
      drawSource();
      drawChart();
    }
    historyTimer = setTimeout(fetchHistory, answer?.step_ms ?? 2000);
  }

  function drawPolicies(now) {
    const busy = new Set(view.ticks.slice(-60).flatMap((tick) => Object.keys(tick.policies)));
    const rows = Object.keys(now.policies).map((name) => {
      const [admitted, refused, shadowed] = [0, 1, 2].map((index) => mean(view.ticks, (tick) => tick.policies[name]?.[index]));
      return { name, admitted, denied: refused, shadowed, busy: busy.has(name), calls: now.policies[name].calls };
    });
    rows.sort((one, other) => other.busy - one.busy || other.admitted + other.denied - one.admitted - one.denied || other.calls - one.calls || (one.name < other.name ? -1 : 1));
    const shown = rows.slice(0, MAX_POLICIES);
    const maximum = Math.max(0.001, ...view.ticks.slice(-60).flatMap((tick) => Object.values(tick.policies).map((counts) => counts[0] + counts[1])));
    putKeyed(policies, shown, (row) => row.name, (first) => {
      const cells = { spark: h("td", { class: "wide" }), admitted: h("td", { class: "num c-admitted" }), denied: h("td", { class: "num c-denied" }), share: h("td", { class: "num wide" }), shadowed: h("td", { class: "num wide c-shadowed" }) };
      const row = h("tr", {}, h("td", {}, policyLink(context, first.name)), Object.values(cells));
      return [row, (policy) => {
        const points = (index) => view.ticks.filter((tick) => tick.at > view.at - SPARK_MS)
          .map((tick) => [1 - (view.at - tick.at) / SPARK_MS, Math.min(1, (tick.policies[policy.name]?.[index] ?? 0) / maximum)]);
        const picture = spark(points(0), "--admitted");
        picture.append(...spark(points(1), "--denied").children);
        put(cells.spark, picture);
        cells.admitted.textContent = rate(policy.admitted);
        cells.denied.textContent = rate(policy.denied);
        const all = policy.admitted + policy.denied;
        cells.share.textContent = all > 0 ? percent(policy.denied / all) : "–";
        cells.shadowed.textContent = policy.shadowed > 0 ? rate(policy.shadowed) : "–";
      }];
    });
    const more = (now.count ?? 0) - shown.length;
    policiesFoot.hidden = rows.length > 0 && more <= 0;
    put(policiesFoot, rows.length === 0 ? "No policies yet. " : `${number(more)} more, with fewer calls. `,
      h("a", { href: link("policies") }, rows.length === 0 ? "Set one" : "All policies"));
  }

  function drawNodes(now) {
    putKeyed(nodes, now.nodes, (node) => node.name, () => {
      const cells = { name: h("td"), share: h("td", { class: "num" }), reply: h("td", { class: "num" }) };
      return [h("tr", {}, Object.values(cells)), (node) => {
        const replicaTag = (replica) => h("span", { class: `tag ${replica.state === "online" && replica.lag_s < 5 ? "" : "warn"}` },
          `replica ${replica.name}: ${replica.state === "online" ? `${number(replica.behind)} bytes, ${duration(replica.lag_s * 1000)} behind` : replica.state}`);
        const tags = node.away !== undefined ? h("span", { class: "tag denied" }, `away: ${node.away}`)
          : [!node.agrees ? h("span", { class: "tag warn" }, "other policies than the rest") : now.nodes.length > 1 && h("span", { class: "tag good" }, "same policies"),
            node.replicas.map(replicaTag)];
        put(cells.name, h("div", { class: "stack tight" }, h("span", { class: "name" }, node.name), h("div", { class: "row" }, tags)));
        put(cells.share, node.away !== undefined ? "–" : h("span", {}, node.share === null ? "–" : percent(node.share)));
        cells.share.title = node.away === undefined ? `${rate(node.rate)} decisions a second` : "";
        put(cells.reply, node.away !== undefined ? "–" : node.reply_ms < 1 ? "< 1 ms" : `${node.reply_ms.toFixed(1)} ms`);
      }];
    });
  }

  let waitingBody = null;
  const waitingFoot = h("div", { class: "panel-foot" });
  function drawWaiting(now) {
    if (now.waiting.calls === 0) {
      waitingBody = null;
      return put(waiting, empty("No calls are waiting", "Calls with BLOCK wait here in turn for a lease."));
    }
    if (waitingBody === null) {
      waitingBody = h("tbody");
      put(waiting, h("div", { class: "scroll" }, h("table", { class: "table" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Key"), h("th", { scope: "col", class: "num" }, "Calls"), h("th", { scope: "col", class: "num" }, "Longest"))),
        waitingBody)), waitingFoot);
    }
    const rows = now.waiting.longest.toSorted((one, other) => other.longest_ms - one.longest_ms);
    putKeyed(waitingBody, rows, (row) => JSON.stringify([row.node, row.db, row.key]), (first) => {
      const [calls, longest] = [h("td", { class: "num" }), h("td", { class: "num" })];
      return [h("tr", {}, h("td", {}, h("a", { class: "name", href: link("key", [first.key]) }, visible(first.key))), calls, longest), (row) => {
        calls.textContent = number(row.waiting);
        longest.textContent = duration(row.longest_ms);
      }];
    });
    return put(waitingFoot, `${number(now.waiting.calls)} calls for ${number(now.waiting.keys)} keys`);
  }

  let body = null;
  // Denials of the longest bar. Rows are reused for later responses, so the maximum is kept outside of them.
  let maximum = 1;
  async function fetchTop() {
    try {
      const rows = await api.get(`${topPath(20)}&minutes=${SPARK_MINUTES}`, { signal });
      if (rows.length === 0) {
        body = null;
        return put(denied, empty("Nothing was denied", view.since === "start" ? "Not since the server started." : "Not in this time. Choose a longer one above."));
      }
      if (body === null) {
        body = h("tbody");
        put(denied, h("div", { class: "scroll" }, h("table", { class: "table compact" },
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Key"), h("th", { scope: "col", class: "num" }, "Denied"),
            h("th", { scope: "col", class: "wide" }, `Last ${SPARK_MINUTES} min`), h("th", { scope: "col", class: "wide" }, "Policy"), h("th", { scope: "col" }, h("span", { class: "hidden" }, "Actions")))), body)));
      }
      maximum = rows[0].denied;
      return putKeyed(body, rows, (row) => JSON.stringify([row.key, row.item]), (first) => {
        const count = h("span");
        const bar = h("i", { class: "full" });
        const policy = h("td", { class: "wide" });
        const narrowTrend = h("span", { style: { display: "contents" } });
        const narrowPolicy = h("span", { style: { display: "contents" } });
        const narrow = h("div", { class: "narrow small" }, narrowTrend, narrowPolicy);
        let drawnPolicy;
        const trend = h("td", { class: "wide" });
        const linkOf = (row) => link("key", [row.key], { ...(row.policy && { policy: row.policy }), ...(row.item !== null && { item: row.item }) });
        const key = h("a", { class: "name whole", title: visible(first.key) }, visible(first.key), first.item !== null && [" ", itemLabel(first.item)]);
        const element = h("tr", {}, h("td", {}, h("div", { class: "stack tight" }, key, h("div", { class: "bar thin", "aria-hidden": "true" }, bar), narrow)),
          h("td", { class: "num" }, count), trend, policy,
          h("td", { class: "num" }, context.canChange() && first.item === null && h("button", { type: "button", class: "button small danger", onclick: () => banDialog(context, first.key) }, "Ban…",
            h("span", { class: "hidden" }, ` ${visible(first.key)}`))));
        return [element, (row) => {
          key.href = linkOf(row);
          count.textContent = compact(row.denied);
          count.title = row.error > 0 ? `at most ${number(row.error)} too many` : "";
          bar.style.width = `${(row.denied / maximum) * 100}%`;
          put(trend, denialSpark(row.minutes));
          put(narrowTrend, denialSpark(row.minutes));
          // A link that is drawn again would lose its focus.
          if (drawnPolicy === row.policy) return;
          drawnPolicy = row.policy;
          for (const cell of [policy, narrowPolicy]) put(cell, row.policy === null ? h("span", { class: "muted" }, "none") : policyLink(context, row.policy));
        }];
      });
    } catch (error) {
      if (!signal.aborted && body === null) put(denied, errorNotice(error));
      return undefined;
    }
  }

  async function fetchNow() {
    const answer = await api.get(`api/now?since=${view.ticks.at(-1)?.at ?? 0}`, { signal });
    view.ticks = [...view.ticks, ...answer.ticks].filter((tick) => tick.at > answer.at - LIVE_MINUTES * MINUTE - 2000);
    view.at = answer.at;
    drawFigures(answer);
    if (view.range[1] === LIVE_MINUTES) drawChart();
    drawPolicies(answer);
    drawNodes(answer);
    drawWaiting(answer);
  }

  repeat(2000, signal, fetchTop);
  repeat(1000, signal, fetchNow);
  fetchHistory();
}
