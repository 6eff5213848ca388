/**
 * Node of a cluster that a call goes to, as the client knows it. Each node has outages of its own.
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
 * Part of the clients of clusters that is used here. ioredis lists the nodes of a slot, primary
 * first.
 */
interface Slots {
  readonly slots?: readonly (
    readonly string[] | { readonly master?: { readonly address?: string } } | undefined
  )[];
}

/**
 * Returns `host:port` of the call's primary; "" if it is unknown, or the client is not a cluster's.
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

/** Returns the address that a client connects to, for the log. */
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
  return place(root === undefined ? options : root);
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

function place(options: Options | string | number): string {
  if (typeof options === "number") return `localhost:${options}`;
  // A URL may contain a password.
  const plain = (url: string) => url.replace(/^.*:\/\/(.*@)?/, "").replace(/[/?].*$/, "");
  if (typeof options === "string") return plain(options);
  if (options.sentinels?.length) return `${options.name ?? "the primary"} of the sentinels`;
  const { host = "localhost", port = 6379, path } = { ...options, ...options.socket };
  if (path) return path;
  if (options.url && !options.socket?.host) return plain(options.url);
  return `${host}:${port}`;
}
