// The views, in the order of the navigation. `key`: what opens it behind "g". Which of them there are says the console
// (GET api/session, "views"): one without a server has only those that need none.
export const views = [
  { route: "now", title: "Now", key: "n", load: () => import("./now.js") },
  { route: "policies", title: "Policies", key: "p", load: () => import("./policies.js") },
  { route: "key", title: "Key", key: "k", load: () => import("./key.js") },
  { route: "playground", title: "Playground", key: "y", load: () => import("./playground.js") },
  { route: "replay", title: "Replay", key: "r", load: () => import("./replay.js") },
];
