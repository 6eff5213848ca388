/**
 * Proxy that loses replies: a call is executed, and then its connection is closed instead of a
 * reply, as when a network fails between the two.
 */

import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import type { Scope, Server } from "./server.js";

export interface Lossy {
  readonly port: number;
  /** Number of the module's commands that were sent, and of replies that were lost. */
  readonly count: { sent: number; lost: number };
}

/** Starts a proxy that loses every n-th reply to the module's commands. */
export async function lossyProxyFor(test: Scope, server: Server, every: number): Promise<Lossy> {
  const count = { sent: 0, lost: 0 };
  const port = await proxyFor(test, server, () => {
    if (++count.sent % every !== 0) return undefined;
    count.lost++;
    return null;
  });
  return { port, count };
}

export interface Refusing {
  readonly port: number;
  /** Error reply to the module's commands, if any. */
  error: string | undefined;
  /** `true` to pass on commands without an id. */
  sparesUnnamed: boolean;
}

/** Starts a proxy that answers the module's commands with an error. */
export async function refusingProxyFor(test: Scope, server: Server): Promise<Refusing> {
  const state = { port: 0, error: undefined as string | undefined, sparesUnnamed: false };
  state.port = await proxyFor(test, server, (command) =>
    state.sparesUnnamed && !command.includes("ONCE") ? undefined : state.error,
  );
  return state;
}

/**
 * Starts a proxy before a server. `answer` returns the error reply to a command of the module;
 * null: its reply is lost; undefined: the server's reply is passed on.
 */
async function proxyFor(
  test: Scope,
  server: Server,
  answer: (command: Buffer) => string | null | undefined,
): Promise<number> {
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
    let current: Buffer | undefined;
    // Sends one command after another, so that exactly the replies before a lost one arrive.
    const next = () => {
      const end = current === undefined ? endOfValue(commands, 0) : undefined;
      if (end === undefined) return;
      const command = commands.subarray(0, end);
      commands = commands.subarray(end);
      current = command;
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
      const isModules = /^\*\d+\r\n\$\d+\r\nRL\./i.test(`${current?.subarray(0, 40)}`);
      const error = isModules ? answer(current!) : undefined;
      if (error === null) {
        client.destroy();
        return;
      }
      client.write(error === undefined ? replies.subarray(0, end) : `-${error}\r\n`);
      replies = replies.subarray(end);
      current = undefined;
      next();
    });
  }).listen(0, "127.0.0.1");
  await once(proxy, "listening");
  test.after(() => {
    for (const socket of sockets) socket.destroy();
    proxy.close();
  });
  return (proxy.address() as AddressInfo).port;
}

/**
 * Returns the end of a value of the protocol, a command or a reply; undefined if it is incomplete.
 */
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
