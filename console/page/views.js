// Views in the order of the navigation. `key` opens a view after "g". The console lists the available ones (GET api/session,
// "views"): without a server, only those that need none.
export const views = [
  { route: "now", title: "Now", key: "n", load: () => import("./now.js") },
  { route: "policies", title: "Policies", key: "p", load: () => import("./policies.js") },
  { route: "key", title: "Key", key: "k", load: () => import("./key.js") },
  { route: "changes", title: "Changes", key: "c", load: () => import("./changes.js") },
  { route: "gateways", title: "Gateways", key: "g", load: () => import("./gateways.js") },
  { route: "playground", title: "Playground", key: "y", load: () => import("./playground.js") },
  { route: "replay", title: "Replay", key: "r", load: () => import("./replay.js") },
];
