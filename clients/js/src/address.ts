/** Canonical form of client addresses. `clients/addresses.json` has test cases. */

import { isIPv4, isIPv6 } from "node:net";

export interface NetworkOptions {
  /** Length of the network of an IPv6 address, 1 to 128. 64 by default. */
  readonly ipv6Prefix?: number;
}

/** Port with its colon. */
const PORT = /^:\d{1,5}$/;
const LAST_PORT = 65_535;

/**
 * Returns the name under which a client is counted by its address: an IPv4 address, or the network
 * of an IPv6 address, since an IPv6 client usually has an entire /64. Ports, brackets, scopes and
 * quotes are removed. IPv4-mapped and NAT64 addresses count as IPv4 addresses. Returns undefined if
 * the text is not an address. If a `key` function returns undefined, the framework's address
 * counts.
 */
export function network(
  address: string | null | undefined,
  { ipv6Prefix = 64 }: NetworkOptions = {},
): string | undefined {
  if (!Number.isInteger(ipv6Prefix) || ipv6Prefix < 1 || ipv6Prefix > 128) {
    throw new RangeError(`ipv6Prefix must be a whole number from 1 to 128: ${ipv6Prefix}`);
  }
  const host = hostOf(address ?? "");
  if (isIPv4(host)) return host;
  const [ipv6 = "", scope] = host.split("%");
  if (!isIPv6(ipv6) || scope === "") return undefined;
  const groups = groupsOf(ipv6);
  return isIPv4InIPv6(groups) ? ipv4Of(groups) : networkOf(groups, ipv6Prefix);
}

/**
 * Removes spaces, quotes, brackets and a port. Returns "" if brackets or the port are malformed.
 */
function hostOf(text: string): string {
  const trimmed = text.replace(/^[ \t]+|[ \t]+$/g, "");
  const unquoted = /^"(.*)"$/s.exec(trimmed)?.[1] ?? trimmed;
  const [, bracketed, suffix] = /^\[([^\]]*)\](.*)$/s.exec(unquoted) ?? [];
  if (bracketed !== undefined) {
    const isValid = bracketed.includes(":") && (suffix === "" || isPort(suffix!));
    return isValid ? bracketed : "";
  }
  const colon = unquoted.indexOf(":");
  if (colon < 0 || colon !== unquoted.lastIndexOf(":")) return unquoted;
  return isPort(unquoted.slice(colon)) ? unquoted.slice(0, colon) : "";
}

function isPort(text: string): boolean {
  return PORT.test(text) && Number(text.slice(1)) <= LAST_PORT;
}

/** Returns the eight groups of an IPv6 address. */
function groupsOf(address: string): number[] {
  const [left = "", right] = canonical(address).split("::");
  const numbers = (part: string) =>
    part === "" ? [] : part.split(":").map((group) => Number.parseInt(group, 16));
  const [before, after] = [numbers(left), numbers(right ?? "")];
  return [...before, ...Array<number>(8 - before.length - after.length).fill(0), ...after];
}

/** Formats an IPv6 address as in RFC 5952, and an IPv4 suffix as groups. */
function canonical(address: string): string {
  return new URL(`http://[${address}]`).hostname.slice(1, -1);
}

/** Prefixes of IPv4-mapped addresses and of NAT64. */
const IPV4_IN_IPV6 = ["0:0:0:0:0:ffff", "64:ff9b:0:0:0:0"];

function isIPv4InIPv6(groups: readonly number[]): boolean {
  return IPV4_IN_IPV6.includes(inHex(groups.slice(0, 6)));
}

function ipv4Of(groups: readonly number[]): string {
  return groups
    .slice(6)
    .flatMap((group) => [group >> 8, group & 0xff])
    .join(".");
}

function networkOf(groups: readonly number[], length: number): string {
  const masked = groups.map((group, index) => {
    const bits = Math.min(16, Math.max(0, length - 16 * index));
    return group & (0xffff << (16 - bits)) & 0xffff;
  });
  const address = canonical(inHex(masked));
  return length === 128 ? address : `${address}/${length}`;
}

function inHex(groups: readonly number[]): string {
  return groups.map((group) => group.toString(16)).join(":");
}
