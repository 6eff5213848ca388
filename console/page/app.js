// Shell of the page: navigation between views (by the fragment of the URL), sign-in, and the state of the server.
import * as api from "./api.js";
import { dialog, errorNotice, field, loading, toast } from "./dialog.js";
import { h, put, repeat } from "./dom.js";
import { instant, visible } from "./format.js";
import { views } from "./views.js";

const byId = (id) => document.getElementById(id);
const shell = { session: { role: "look", views: [], server: null }, stop: null, signal: undefined };

/** Context of a view. */
function context(parts, query, signal) {
  return {
    api,
    /** Path segments after the view: #/key/a%20b has ["a b"]. */
    parts,
    /** URLSearchParams of the fragment. */
    query,
    /** Signal that is aborted when the view is closed. Pass it to fetches, timers and listeners. */
    signal,
    /** `true` if the token allows changes. */
    canChange: () => shell.session.role === "change",
    /** `true` if the history comes from Prometheus. */
    hasPrometheus: () => shell.session.prometheus === true,
    /** Opens a dialog that closes with the view. */
    dialog: (options) => dialog({ ...options, signal }),
    /**
     * Opens a view: go("key", ["a b"], { policy: "login" }). With `replace`, the history gets no new entry. Has no effect
     * after this view is closed.
     */
    go: (route, parts = [], query = {}, replace = false) => {
      if (signal.aborted) return;
      const address = link(route, parts, query);
      if (replace) history.replaceState(null, "", address);
      else location.hash = address;
    },
    /** Returns the URL of a view, for links. */
    link,
  };
}

export function link(route, parts = [], query = {}) {
  const search = new URLSearchParams(query).toString();
  return `#/${[route, ...parts].map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const availableViews = () => views.filter((view) => shell.session.views.includes(view.route));

async function route() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [name, ...parts] = path.split("/").map(decoded);
  const view = availableViews().find((available) => available.route === name) ?? availableViews()[0];
  shell.stop?.();
  const stopped = new AbortController();
  shell.signal = stopped.signal;
  let module;
  shell.stop = () => {
    stopped.abort();
    module?.unmount?.();
  };
  drawHeader(view);
  const main = byId("main");
  if (!view) return put(main);
  document.title = `${view.title} · Rate limits`;
  put(main, loading());
  const root = h("div", { class: "view", dataset: { view: view.route } });
  try {
    module = await view.load();
    if (stopped.signal.aborted) return undefined;
    put(main, root);
    await module.mount(root, context(view.route === name ? parts : [], new URLSearchParams(search), stopped.signal));
  } catch (error) {
    if (!stopped.signal.aborted) put(main, errorNotice(error));
  }
  return undefined;
}

function drawHeader(view) {
  put(byId("nav"), availableViews().map((item) => h("a", { href: link(item.route), "aria-current": item === view && "page" }, item.title)));
  byId("nav").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  const { role, signedIn, server } = shell.session;
  put(byId("account"), signedIn ? "Sign out" : "Sign in");
  byId("account").hidden = !signedIn && role === "look" && shell.session.readonly === true;
  byId("account").title = permissionText();
  document.body.classList.toggle("can-change", role === "change");
  if (server === null) put(byId("server"));
}

/** Loads the session: role, views and server. */
async function loadSession() {
  try {
    shell.session = { signedIn: api.token.get() !== "", ...(await api.get("api/session")) };
    return true;
  } catch (error) {
    if (error.status === 401) return await signIn(api.token.get() !== "" ? "The console does not know this token." : "");
    throw error;
  }
}

/** Describes the permission of the token: anna may change limits. */
const permissionText = () => `${shell.session.user ?? "you"} may ${shell.session.role === "change" ? "change limits" : "look"}`;

let signInDialog = null;
/** Asks for a token until the console accepts one or the dialog is closed. Only one dialog is open at a time. */
function signIn(why) {
  signInDialog ??= openSignIn(why).finally(() => (signInDialog = null));
  return signInDialog;
}

async function openSignIn(why) {
  const input = h("input", { class: "input mono", type: "password", autocomplete: "current-password", "aria-label": "Token", autofocus: true });
  const done = await dialog({
    title: "Sign in", small: true,
    body: h("div", { class: "stack" }, why && h("p", { class: "notice error" }, why),
      field("Token", input, "A token of RATELIMIT_CONSOLE_TOKEN may look, one of …_WRITE_TOKEN may change limits. It is kept for this tab only.")),
    actions: [h("button", { class: "button primary" }, "Sign in")],
    submit: async () => {
      const before = api.token.get();
      api.token.set(input.value.trim());
      try {
        shell.session = { signedIn: true, ...(await api.get("api/session")) };
      } catch (error) {
        api.token.set(before);
        throw error.status === 401 ? new Error("The console does not know this token.") : error;
      }
    },
  });
  if (!done) return false;
  toast(`Signed in: ${permissionText()}`);
  return true;
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme === "dark";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("theme", dark ? "light" : "dark");
  } catch {
    // The browser forbids storage: the theme is kept only until the page is reloaded.
  }
}

function showShortcuts() {
  const rows = [["?", "this list"], ["/", "search in the view"], ["t", "light or dark"],
    ...availableViews().map((view) => [`g ${view.key}`, view.title]), ["Esc", "close the dialog"]];
  dialog({
    title: "Keyboard", small: true, signal: shell.signal,
    body: h("dl", { class: "stack tight" }, rows.map(([keys, action]) => h("div", { class: "row spread" },
      h("dt", {}, action), h("dd", {}, keys.split(" ").map((key) => [h("kbd", {}, key), " "]))))),
  });
}

let prefixPressedAt = 0;
function handleKey(event) {
  const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const view = Date.now() - prefixPressedAt < 1500 && availableViews().find((item) => item.key === event.key);
  prefixPressedAt = event.key === "g" && !view ? Date.now() : 0;
  if (view) location.hash = link(view.route);
  else if (event.key === "?") showShortcuts();
  else if (event.key === "t") toggleTheme();
  else if (event.key === "/") document.querySelector("main [data-search]")?.focus();
  else return;
  event.preventDefault();
}

// The banner shows problems that concern each view: limits are not enforced, or the data on the page is outdated. The
// indicator in the header shows the worst problem.
const status = { reached: true, problems: [], drawn: null };
const LOST = { level: "bad", node: "console", state: "away", banner: true, text: "The console does not answer. The page shows earlier data and tries again every second" };

function drawProblems() {
  const problems = status.reached ? status.problems : [LOST, ...status.problems];
  const [worst] = problems;
  const lines = problems.filter(({ banner }) => banner);
  const { server } = shell.session;
  const drawn = JSON.stringify([problems, server]);
  // Unchanged problems are not drawn again, because screen readers would announce them again.
  if (drawn === status.drawn) return;
  status.drawn = drawn;
  const sentence = ({ text, since, view }) => h("p", {}, `${text}.`, since && ` Since ${instant(since)}.`, view && [" ", h("a", { href: link(view) }, "Show")]);
  put(byId("outage"), lines.map(sentence));
  byId("outage").hidden = lines.length === 0;
  byId("server").className = `server ${worst === undefined ? "up" : { bad: "down", warn: "warn" }[worst.level]}`;
  const others = problems.length > 1 ? ` (+ ${problems.length - 1})` : "";
  put(byId("server"), worst === undefined ? server !== null && h("span", { class: "label" }, server)
    : h("a", { class: "label", href: link(worst.view ?? "now"), title: worst.text }, `${visible(worst.node)}: ${worst.state}${others}`));
}

/** Checks the state of the servers and gateways each second. */
async function watch() {
  try {
    const state = await api.get("api/state");
    status.problems = state.problems;
    shell.session.server = state.server;
  } catch (error) {
    if (error.status !== 0) return;
  }
  drawProblems();
}

async function start() {
  byId("theme").addEventListener("click", toggleTheme);
  byId("keys").addEventListener("click", showShortcuts);
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  byId("account").addEventListener("click", async () => {
    if (shell.session.signedIn) {
      api.token.set("");
      shell.session = { ...shell.session, role: "look", signedIn: false };
      toast("Signed out");
      await loadSession().catch(() => {});
    } else if (!(await signIn(""))) return;
    route();
  });
  document.addEventListener("keydown", handleKey);
  api.on("reached", (replied) => {
    if (status.reached === replied) return;
    status.reached = replied;
    drawProblems();
  });
  put(byId("main"), loading());
  for (;;) {
    try {
      if (await loadSession()) break;
      put(byId("main"), h("div", { class: "empty" }, h("b", {}, "Not signedIn in"),
        h("button", { class: "button primary", onclick: () => location.reload() }, "Sign in")));
      return;
    } catch (error) {
      put(byId("main"), errorNotice(error));
      await new Promise((later) => setTimeout(later, 1000));
    }
  }
  // The stored token may have been revoked.
  api.on("token", async () => {
    if (signInDialog !== null || !(await signIn("The console does not know this token any more."))) return;
    // An open dialog continues with the new token.
    if (document.querySelector("dialog[open]") === null) route();
  });
  addEventListener("hashchange", route);
  // The signal never aborts: the state is checked as long as the page is open.
  if (shell.session.server !== null) repeat(1000, new AbortController().signal, watch);
  await route();
}

start();
