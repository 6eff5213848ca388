/** Proxy with a bad network: slow, silent, or cut. Bytes pass unchanged. */

import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";

import type { Scope, Server } from "./server.js";

export interface Network {
  readonly port: number;
  /** Delay in milliseconds for each direction. */
  delayMs: number;
  /** `true` if nothing from the server arrives. */
  isSilent: boolean;
  /** Closes all connections. */
  cut(): void;
}

export async function networkFor(test: Scope, server: Pick<Server, "port">): Promise<Network> {
  const sockets = new Set<Socket>();
  const cut = () => {
    for (const socket of sockets) socket.destroy();
  };
  const network = { port: 0, delayMs: 0, isSilent: false, cut };
  const proxy = createServer((client) => {
    const upstream = connect(server.port, "127.0.0.1");
    const pass = (from: Socket, to: Socket) =>
      from.on("data", (bytes) => {
        if (from === upstream && network.isSilent) return;
        const write = () => to.writable && to.write(bytes);
        // Keeps the order: a timer with the same delay fires after earlier ones.
        if (network.delayMs > 0) setTimeout(write, network.delayMs);
        else write();
      });
    pass(client, upstream);
    pass(upstream, client);
    for (const socket of [client, upstream]) {
      sockets.add(socket.setNoDelay(true));
      socket.on("error", () => {});
      socket.on("close", () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
  }).listen(0, "127.0.0.1");
  await once(proxy, "listening");
  network.port = (proxy.address() as AddressInfo).port;
  test.after(() => {
    cut();
    proxy.close();
  });
  return network;
}

/** Blocks the event loop, as in a process that is busy. */
export function block(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}
