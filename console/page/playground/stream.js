// Stream of a simulation: server-sent events, read by fetch because EventSource cannot send the token.

/** Calls `listener(name, data)` for each event until the stream ends or the signal aborts. */
async function readEvents(response, listener) {
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
      // Keep-alive comments have no data.
      if (data) listener(name, JSON.parse(data));
    }
  }
}

/**
 * Runs a simulation in the console, restarts it when its stream ends, and sends changes one after another, always the
 * latest state. `onStart` is called at each start, `onTick` for each tick, and `onError` for each failure.
 */
export function connect({ api, signal, settings, onStart, onTick, onError }) {
  let id = null;
  let changing = false;
  let change = null;
  let controller = null;

  async function run() {
    while (!signal.aborted) {
      const current = (controller = new AbortController());
      const stop = () => current.abort();
      signal.addEventListener("abort", stop);
      try {
        const response = await api.request("api/playground", {
          method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(settings()), signal: current.signal,
        });
        await readEvents(response, (name, data) => {
          if (current.signal.aborted) return;
          if (name === "scene") {
            id = data.id;
            onStart();
          } else onTick(data);
        });
      } catch (error) {
        if (signal.aborted) return;
        if (!current.signal.aborted) onError(error);
      } finally {
        signal.removeEventListener("abort", stop);
        id = null;
      }
      if (!current.signal.aborted) await new Promise((later) => setTimeout(later, 1000));
    }
  }

  /** Sends changes. Those made during a request are sent together after it. */
  async function send(more) {
    change = { ...change, ...more, calls: (change?.calls ?? 0) + (more.calls ?? 0) };
    if (changing || id === null) return;
    changing = true;
    while (change !== null && id !== null) {
      const sent = change;
      change = null;
      await api.post(`api/playground/${id}`, sent, { signal }).catch((error) => {
        if (!signal.aborted && error.status !== 404) onError(error);
      });
    }
    changing = false;
  }

  run();
  return {
    send,
    /** Restarts the simulation with unused limits. */
    restart() {
      change = null;
      controller?.abort();
    },
  };
}
