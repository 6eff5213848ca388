/**
 * Express's "trust proxy", from an environment variable.
 *
 * Clients send X-Forwarded-For too, with whatever they like in it. A proxy appends the address that
 * it sees. So only what our own proxies appended is to be believed, from the right end:
 *
 * - nothing or "false": there is no proxy, and the header is ignored;
 * - "10.0.0.0/8, 192.0.2.7": the addresses of the proxies. The rightmost other one is the client's;
 * - "2": so many proxies, if every request comes through all of them and there is no way past.
 *
 * "true" would believe the leftmost address, which is the client's to choose, and is refused.
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
