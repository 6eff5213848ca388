// Client of the console's API. Failures are an ApiError with the status, or 0 if the console did not reply.

export class ApiError extends Error {
  constructor(status, body) {
    super(body.error ?? "The console does not answer.");
    this.status = status;
    this.body = body;
  }
}

const TOKEN = "token";
const events = new EventTarget();
let stored = "";
try {
  stored = sessionStorage.getItem(TOKEN) ?? "";
} catch {
  // The browser forbids storage: the token is kept only until the page is reloaded.
}

/** Token of requests. It is stored for this tab only. */
export const token = {
  get: () => stored,
  set(value) {
    stored = value;
    try {
      if (value) sessionStorage.setItem(TOKEN, value);
      else sessionStorage.removeItem(TOKEN);
    } catch {
      // The browser forbids storage.
    }
  },
};

/** Events: "token" if a token is missing or rejected; "reached" with detail true or false after each request. */
export const on = (name, listener, options) => events.addEventListener(name, (event) => listener(event.detail), options);
const emit = (name, detail) => events.dispatchEvent(new CustomEvent(name, { detail }));

/** Sends a request with the token and returns the response of fetch. Meant for streams; otherwise use get, put, post and remove. */
export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  if (stored) headers.set("Authorization", `Bearer ${stored}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    emit("reached", false);
    throw new ApiError(0, {});
  }
  emit("reached", true);
  if (response.status === 401) emit("token");
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

/** Encodes a name for a path. Names that consist of dots are escaped, because browsers would resolve them as folders. */
export const segment = (name) => encodeURIComponent(/^\.+$/.test(name) ? name.replaceAll(".", "\\x2e") : name);
