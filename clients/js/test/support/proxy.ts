/**
 * A proxy that loses replies: a call is carried out, and its connection closed instead of an answer,
 * as when a network fails between the two.
 */

import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import type { Scope, Server } from "./server.js";

export interface Lossy {
  readonly port: number;
  /** How many of the module's commands were sent, and how many of the replies were lost. */
  readonly count: { sent: number; lost: number };
}

/** Of the replies to the module's commands every n-th is lost. */
export async function lossyProxyFor(test: Scope, server: Server, every: number): Promise<Lossy> {
  const count = { sent: 0, lost: 0 };
  const sockets = new Set<Socket>();
  const proxy = createServer((client) => {
    const upstream = connect(server.port, "127.0.0.1");
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("close", () => {
        client.destroy();
        upstream.destroy();
        sockets.delete(socket);
      });
      socket.on("error", () => {});
    }
    let [commands, replies] = [Buffer.alloc(0), Buffer.alloc(0)];
    let isModules: boolean | undefined;
    // One command after another, so that exactly the replies before a lost one arrive.
    const next = () => {
      const end = isModules === undefined ? endOfValue(commands, 0) : undefined;
      if (end === undefined) return;
      const command = commands.subarray(0, end);
      commands = commands.subarray(end);
      isModules = /^\*\d+\r\n\$\d+\r\nRL\./i.test(`${command.subarray(0, 40)}`);
      upstream.write(command);
    };
    client.on("data", (bytes) => {
      commands = Buffer.concat([commands, bytes]);
      next();
    });
    upstream.on("data", (bytes) => {
      replies = Buffer.concat([replies, bytes]);
      const end = endOfValue(replies, 0);
      if (end === undefined) return;
      if (isModules && ++count.sent % every === 0) {
        count.lost++;
        client.destroy();
        return;
      }
      client.write(replies.subarray(0, end));
      replies = replies.subarray(end);
      isModules = undefined;
      next();
    });
  }).listen(0, "127.0.0.1");
  await once(proxy, "listening");
  test.after(() => {
    for (const socket of sockets) socket.destroy();
    proxy.close();
  });
  return { port: (proxy.address() as AddressInfo).port, count };
}

/** Where a value of the protocol ends, a command or a reply; undefined if it is not all there. */
function endOfValue(bytes: Buffer, at: number): number | undefined {
  const line = bytes.indexOf("\r\n", at);
  if (line < 0) return undefined;
  const sign = bytes.toString("latin1", at, at + 1);
  const count = Number(bytes.toString("latin1", at + 1, line));
  if ("$=!".includes(sign)) {
    const end = line + 2 + (count < 0 ? 0 : count + 2);
    return end <= bytes.length ? end : undefined;
  }
  let end: number | undefined = line + 2;
  const values = "*~>%".includes(sign) ? Math.max(0, count) * (sign === "%" ? 2 : 1) : 0;
  for (let i = 0; i < values && end !== undefined; i++) end = endOfValue(bytes, end);
  return end;
}
