// Stream of a simulation: server-sent events, read by fetch because EventSource cannot send the token.

/** Calls `heard(event, data)` for each event until the stream ends or the signal aborts. */
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
      // Keep-alive comments have no data.
      if (data) heard(name, JSON.parse(data));
    }
  }
}

/**
 * Runs a simulation in the console, restarts it when its stream ends, and sends changes one after another, always the
 * latest state. `began` is called at each start, `told` for each tick.
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

  /** Sends changes. Those made during a request are sent together after it. */
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
    /** Restarts the simulation with unused limits. */
    again() {
      change = null;
      turn?.abort();
    },
  };
}
