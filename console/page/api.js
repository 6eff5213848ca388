// The console's API. Each failure is an ApiError with the status, or 0 where the console did not answer.

export class ApiError extends Error {
  constructor(status, body) {
    super(body.error ?? "The console does not answer.");
    this.status = status;
    this.body = body;
  }
}

const TOKEN = "token";
const events = new EventTarget();
let remembered = "";
try {
  remembered = sessionStorage.getItem(TOKEN) ?? "";
} catch {
  // A browser that keeps nothing: the token is for this page alone.
}

/** The token that is sent. It is kept for this tab only. */
export const token = {
  get: () => remembered,
  set(value) {
    remembered = value;
    try {
      if (value) sessionStorage.setItem(TOKEN, value);
      else sessionStorage.removeItem(TOKEN);
    } catch {
      // As above.
    }
  },
};

/** "token": one is needed, or another. "reached": the console answered (detail: true) or did not (false). */
export const on = (name, heard, options) => events.addEventListener(name, (event) => heard(event.detail), options);
const tell = (name, detail) => events.dispatchEvent(new CustomEvent(name, { detail }));

/** A request to the console as fetch makes it, with the token. For streams; else use get, put, post and remove. */
export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  if (remembered) headers.set("Authorization", `Bearer ${remembered}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    tell("reached", false);
    throw new ApiError(0, {});
  }
  tell("reached", true);
  if (response.status === 401) tell("token");
  if (response.ok) return response;
  const body = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
  throw new ApiError(response.status, body);
}

const json = async (method, path, body, options) => {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const sent = body === undefined ? undefined : JSON.stringify(body);
  return (await request(path, { ...options, method, headers, body: sent })).json();
};

export const get = (path, options) => json("GET", path, undefined, options);
export const put = (path, body, options) => json("PUT", path, body, options);
export const post = (path, body, options) => json("POST", path, body ?? {}, options);
export const remove = (path, options) => json("DELETE", path, undefined, options);

/** A name as it stands in JSON, for a path. Browsers would take a name of dots alone for a folder. */
export const segment = (name) => encodeURIComponent(/^\.+$/.test(name) ? name.replaceAll(".", "\\x2e") : name);
