/**
 * Parses an environment variable to Express's "trust proxy".
 *
 * Clients can send any X-Forwarded-For, and each proxy appends the address of its client. So only
 * the entries at the right end, which your own proxies appended, are trusted:
 *
 * - unset, empty or "false": there is no proxy, and the header is ignored;
 * - "10.0.0.0/8, 192.0.2.7": the addresses of the proxies. The rightmost other address is that of
 *   the client;
 * - "2": the number of proxies, if every request passes all of them.
 *
 * "true" is refused: it would trust the leftmost address, which the client chooses.
 */
export function trustProxy(setting = "false"): false | number | string[] {
  if (setting === "" || setting === "false") return false;
  if (/^\d+$/.test(setting)) return Number(setting);
  const proxies = setting.split(",").map((proxy) => proxy.trim());
  if (proxies.includes("true")) {
    throw new Error("trust proxy: name the proxies' addresses or their number, not true");
  }
  return proxies;
}
