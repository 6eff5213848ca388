// The stream of a scene: server-sent events, read by fetch, which sends the token.

/** Calls `heard(event, data)` for each event until the stream or the signal ends. */
export async function events(response, heard) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      let name = "message";
      let data = "";
      for (const line of part.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data += line.slice(5).trim();
      }
      // A line that only keeps the connection has no data.
      if (data) heard(name, JSON.parse(data));
    }
  }
}

/**
 * A scene in the console: begins it, begins it anew when its stream ends, and tells it what has changed, the latest
 * state after the one before was heard of. `began` is called each time it begins, `told` for each tick.
 */
export function connect({ api, signal, wanted, began, told, failed }) {
  let id = null;
  let changing = false;
  let change = null;
  let turn = null;

  async function run() {
    while (!signal.aborted) {
      const ended = (turn = new AbortController());
      const stop = () => ended.abort();
      signal.addEventListener("abort", stop);
      try {
        const response = await api.request("api/playground", {
          method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(wanted()), signal: ended.signal,
        });
        await events(response, (name, data) => {
          if (ended.signal.aborted) return;
          if (name === "scene") {
            id = data.id;
            began();
          } else told(data);
        });
      } catch (error) {
        if (signal.aborted) return;
        if (!ended.signal.aborted) failed(error);
      } finally {
        signal.removeEventListener("abort", stop);
        id = null;
      }
      if (!ended.signal.aborted) await new Promise((later) => setTimeout(later, 1000));
    }
  }

  /** Sends what has changed: together, if more has meanwhile. */
  async function send(more) {
    change = { ...change, ...more, calls: (change?.calls ?? 0) + (more.calls ?? 0) };
    if (changing || id === null) return;
    changing = true;
    while (change !== null && id !== null) {
      const now = change;
      change = null;
      await api.post(`api/playground/${id}`, now, { signal }).catch((error) => {
        if (!signal.aborted && error.status !== 404) failed(error);
      });
    }
    changing = false;
  }

  run();
  return {
    send,
    /** Begins anew, with nothing used. */
    again() {
      change = null;
      turn?.abort();
    },
  };
}
