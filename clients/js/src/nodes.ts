/**
 * Addresses of servers: of the cluster's node that a call goes to, as the client knows it, and of
 * the client's server for the log. Each node of a cluster has its own circuit breaker.
 */

import type { Call } from "./calls.js";
import type { Client } from "./clients.js";

const SLOTS = 16384;

/** Table of the cluster specification's CRC16, by byte. */
const CRC = Uint16Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 8;
  for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
  return crc & 0xffff;
});

/** Returns the slot of a key, or of its hash tag if it has one. */
export function slotOf(key: string): number {
  const open = key.indexOf("{");
  const close = open < 0 ? -1 : key.indexOf("}", open + 1);
  const tag = close > open + 1 ? key.slice(open + 1, close) : key;
  let crc = 0;
  for (const byte of Buffer.from(tag)) crc = ((crc << 8) & 0xffff) ^ CRC[(crc >> 8) ^ byte]!;
  return crc % SLOTS;
}

/**
 * Part of a client of a cluster that is used here. ioredis lists the nodes of a slot, primary
 * first.
 */
interface Slots {
  readonly slots?: readonly (
    readonly string[] | { readonly master?: { readonly address?: string } } | undefined
  )[];
}

/**
 * Returns `host:port` of the primary that a call goes to; "" if it is unknown, or the client is not
 * one of a cluster.
 */
export function nodeOf(client: Client, { keys: [key], route = key }: Call<unknown>): string {
  const { slots } = client as Slots;
  if (!slots || route === undefined) return "";
  const slot = slots[slotOf(route)];
  return (
    (Array.isArray(slot)
      ? slot[0]
      : (slot as { master?: { address?: string } })?.master?.address) ?? ""
  );
}

/** Returns the configured address of a client, for the log. */
export function addressOf(client: Client): string {
  const cluster = client as {
    options?: Options;
    _options?: Options;
    startupNodes?: readonly unknown[];
  };
  const options = cluster.options ?? cluster._options ?? {};
  const [root] = (cluster.startupNodes ?? options.rootNodes ?? []) as readonly (
    Options | string | number
  )[];
  return addressIn(root === undefined ? options : root);
}

interface Options {
  readonly host?: string;
  readonly port?: number;
  readonly path?: string;
  readonly url?: string;
  readonly socket?: { readonly host?: string; readonly port?: number; readonly path?: string };
  readonly sentinels?: readonly Options[] | null;
  readonly name?: string;
  readonly rootNodes?: readonly Options[];
}

function addressIn(options: Options | string | number): string {
  if (typeof options === "number") return `localhost:${options}`;
  // The log must not contain the password of a URL.
  const hostOf = (url: string) => url.replace(/^.*:\/\/(.*@)?/, "").replace(/[/?].*$/, "");
  if (typeof options === "string") return hostOf(options);
  if (options.sentinels?.length) return `${options.name ?? "the primary"} of the sentinels`;
  const { host = "localhost", port = 6379, path } = { ...options, ...options.socket };
  if (path) return path;
  if (options.url && !options.socket?.host) return hostOf(options.url);
  return `${host}:${port}`;
}
