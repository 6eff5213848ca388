/** Which address a request is counted under. */

import { isIP, isIPv4 } from "node:net";

/**
 * One name for each network that somebody controls: an IPv6 user has a whole /64 to come from, and
 * an IPv4 address may be written as an IPv6 one. What is no address is "unknown": all such share one
 * limit.
 */
export function network(address: string | undefined): string {
  const [plain = ""] = (address ?? "").split("%");
  if (isIPv4(plain)) return plain;
  if (isIP(plain) === 0) return "unknown";
  const groups = groupsOf(plain);
  if (groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff) {
    return groups
      .slice(6)
      .flatMap((group) => [group >> 8, group & 0xff])
      .join(".");
  }
  return `${groups
    .slice(0, 4)
    .map((group) => group.toString(16))
    .join(":")}::/64`;
}

/** The eight numbers of an IPv6 address. A URL writes it in one way only, without dots. */
function groupsOf(address: string): number[] {
  const { hostname } = new URL(`http://[${address}]`);
  const [left = "", right] = hostname.slice(1, -1).split("::");
  const numbers = (part: string) =>
    part === "" ? [] : part.split(":").map((group) => Number.parseInt(group, 16));
  const [before, after] = [numbers(left), numbers(right ?? "")];
  return [...before, ...Array<number>(8 - before.length - after.length).fill(0), ...after];
}
