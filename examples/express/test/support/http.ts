/** Requests over real connections, from any address of this machine. */

import { once } from "node:events";
import { Agent, createServer, request, type IncomingHttpHeaders, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import type { TestContext } from "node:test";

import type { Express } from "express";

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

export interface RequestOptions {
  readonly headers?: Record<string, string>;
  /** Source address of the connection: on Linux, all of 127.0.0.0/8 is this machine. */
  readonly from?: string;
}

export class Site {
  readonly port: number;
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 50 });

  private constructor(port: number) {
    this.port = port;
  }

  /** Serves until the end of the test. */
  static async serve(test: TestContext, app: Express | Server): Promise<Site> {
    const server = (app instanceof Function ? createServer(app) : app).listen(0, "127.0.0.1");
    await once(server, "listening");
    const site = new Site((server.address() as AddressInfo).port);
    test.after(async () => {
      site.#agent.destroy();
      server.closeAllConnections();
      await once(server.close(), "close");
    });
    return site;
  }

  async get(
    path: string,
    { headers = {}, from = "127.0.0.1" }: RequestOptions = {},
  ): Promise<Answer> {
    const outgoing = request({
      port: this.port,
      host: "127.0.0.1",
      path,
      headers,
      localAddress: from,
      agent: this.#agent,
    }).end();
    const [answer] = await once(outgoing, "response");
    return { status: answer.statusCode, headers: answer.headers, body: await text(answer) };
  }

  /** Sends requests from parallel clients, each with several requests in sequence. */
  async burst(clients: number, requests: number, send: () => Promise<Answer>): Promise<Answer[]> {
    const answers = await Promise.all(
      Array.from({ length: clients }, async () => {
        const own: Answer[] = [];
        for (let i = 0; i < requests; i++) own.push(await send());
        return own;
      }),
    );
    return answers.flat();
  }
}

/** Counts the responses by status. */
export function statuses(answers: readonly Answer[]): Record<number, number> {
  const counts: Record<number, number> = {};
  for (const { status } of answers) counts[status] = (counts[status] ?? 0) + 1;
  return counts;
}

/** Reverse proxy that appends the client's address to X-Forwarded-For. */
export async function proxyOf(test: TestContext, upstream: Site): Promise<Site> {
  return Site.serve(
    test,
    createServer((incoming, outgoing) => {
      const before = incoming.headers["x-forwarded-for"];
      const address = incoming.socket.remoteAddress!;
      const headers = {
        ...incoming.headers,
        "x-forwarded-for": before ? `${before}, ${address}` : address,
      };
      const { method, url } = incoming;
      const forwarded = request({
        host: "127.0.0.1",
        port: upstream.port,
        method,
        path: url,
        headers,
      });
      forwarded.on("response", (answer) => {
        outgoing.writeHead(answer.statusCode!, answer.headers);
        answer.pipe(outgoing);
      });
      incoming.pipe(forwarded);
    }),
  );
}
