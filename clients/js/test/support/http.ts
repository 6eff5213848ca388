/** Requests over real connections, from any address of this machine. */

import { once } from "node:events";
import {
  Agent,
  createServer,
  request,
  type IncomingHttpHeaders,
  type RequestListener,
} from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";

import type { Scope } from "./server.js";

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

export class Site {
  readonly #port: number;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 50 });

  constructor(test: Scope, port: number) {
    this.#port = port;
    test.after(() => this.#agent.destroy());
  }

  /** Serves an application until the end of the test. */
  static async serve(test: Scope, app: RequestListener): Promise<Site> {
    const server = createServer(app).listen(0, "127.0.0.1");
    await once(server, "listening");
    test.after(async () => {
      server.closeAllConnections();
      await once(server.close(), "close");
    });
    return new Site(test, (server.address() as AddressInfo).port);
  }

  /** Sends a request from the address `from`. On Linux, all of 127.0.0.0/8 is this machine. */
  async get(path: string, headers: Record<string, string> = {}, from?: string): Promise<Answer> {
    const outgoing = request({
      port: this.#port,
      host: "127.0.0.1",
      path,
      headers,
      agent: this.#agent,
      ...(from === undefined ? {} : { localAddress: from }),
    }).end();
    const [answer] = await once(outgoing, "response");
    return { status: answer.statusCode, headers: answer.headers, body: await text(answer) };
  }

  /** Sends `count` requests, 50 at a time, and counts their statuses. */
  async statuses(count: number, one: (next: number) => Promise<Answer>) {
    const counts: Record<number, number> = {};
    let next = 0;
    const client = async () => {
      while (next < count) {
        const { status } = await one(next++);
        counts[status] = (counts[status] ?? 0) + 1;
      }
    };
    await Promise.all(Array.from({ length: 50 }, client));
    return counts;
  }
}
