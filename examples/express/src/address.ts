/** Which address a request is counted under. */

import ipaddr from "ipaddr.js";

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

/**
 * One name for each network that somebody controls: an IPv6 user has a whole /64 to come from, and
 * an IPv4 address may be written as an IPv6 one.
 */
export function network(address: string | undefined): string {
  // Not from a proxy of ours, then: whoever sends it shares one limit with all who do.
  if (address === undefined || !ipaddr.isValid(address)) return "unknown";
  const parsed = ipaddr.process(address);
  if (parsed instanceof ipaddr.IPv4) return parsed.toString();
  return `${ipaddr.IPv6.networkAddressFromCIDR(`${parsed.toNormalizedString()}/64`)}/64`;
}
