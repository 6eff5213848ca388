/** What the log is told of an outage: that it begins and that it is over, not each request. */

export class Outage {
  readonly #begun: string;
  readonly #over: string;
  readonly #pauseMs: number;
  readonly #log: (line: string) => void;
  #failedAt: number | undefined;

  constructor(begun: string, over: string, pauseMs: number, log: (line: string) => void) {
    this.#begun = begun;
    this.#over = over;
    this.#pauseMs = pauseMs;
    this.#log = log;
  }

  failed(why: string): void {
    if (this.#failedAt === undefined) this.#log(`${this.#begun}: ${why}`);
    this.#failedAt = performance.now();
  }

  /** Over only if for a pause none has failed: a server of which every other call fails would fill the log. */
  succeeded(): void {
    if (this.#failedAt === undefined || performance.now() < this.#failedAt + this.#pauseMs) return;
    this.#log(this.#over);
    this.#failedAt = undefined;
  }
}
