/** Start of the application, as by `make` and a deployment. */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { test, type TestContext } from "node:test";
import { promisify } from "node:util";

import { serverFor } from "./support/redis.js";

const run = promisify(execFile);

/** Starts the application. Returns its process, and its output and exit status. */
function start(environment: NodeJS.ProcessEnv) {
  const child = spawn(process.execPath, ["dist/src/main.js"], {
    env: { ...process.env, REDIS_URL: undefined, ...environment },
  });
  const result = Promise.all([text(child.stdout), text(child.stderr), once(child, "exit")]);
  return { child, result };
}

async function takenPort(test: TestContext): Promise<string> {
  const taken = createServer().listen(0);
  await once(taken, "listening");
  test.after(() => taken.close());
  return `${(taken.address() as AddressInfo).port}`;
}

test("an occupied port is an error", async (test) => {
  const PORT = await takenPort(test);
  const { url } = await serverFor(test);
  // With and without REDIS_URL.
  for (const REDIS_URL of [url, undefined]) {
    const [out, errors, [status]] = await start({ PORT, REDIS_URL }).result;
    assert.equal(out, "");
    assert.match(errors, new RegExp(`^cannot listen on port ${PORT}: .*EADDRINUSE.*\\n$`));
    assert.equal(status, 1);
  }
});

test("a server without the module is logged once", async (test) => {
  const { url } = await serverFor(test, { loadmodule: undefined });
  const { child, result } = start({ PORT: "0", REDIS_URL: url });
  await once(child.stderr, "data");
  child.kill();
  const [, errors] = await result;
  assert.equal(
    errors,
    `rate limits: ${url.replace("redis://", "")} refuses a call for "rl:{check}": the redis-ratelimit module is not loaded: ` +
      "start the server with --loadmodule /path/to/libredis_ratelimit.so policies yes\n",
  );
});

/**
 * Runs this directory's Makefile with only these servers on the PATH, and returns the one it chose.
 */
async function server(
  test: TestContext,
  versions: Record<string, string>,
  SERVER = "",
): Promise<string> {
  const directory = mkdtempSync(join(tmpdir(), "ratelimit-"));
  test.after(() => rmSync(directory, { recursive: true }));
  for (const [name, version] of Object.entries(versions)) {
    const script = `#!/bin/sh\necho "${version} sha=00000000:0 bits=64"\n`;
    writeFileSync(join(directory, name), script, { mode: 0o755 });
  }
  const { stdout: make } = await run("sh", ["-c", "command -v make"]);
  const { stdout } = await run(
    make.trim(),
    ["--silent", "--no-print-directory", "--eval=show: ; @echo $(SERVER);", "show"],
    { env: { PATH: directory, SERVER } },
  );
  return stdout.trim().replace(`${directory}/`, "");
}

test("make finds a server as the repository's make run does", async (test) => {
  const valkey = { "valkey-server": "Valkey server v=8.1.4" };
  const both = (version: string) => ({ ...valkey, "redis-server": `Redis server v=${version}` });
  for (const version of ["6.2.0", "7.0.15", "10.0.0"]) {
    assert.equal(await server(test, both(version)), "redis-server");
  }
  for (const version of ["6.0.16", "5.0.14"]) {
    assert.equal(await server(test, both(version)), "valkey-server");
  }
  assert.equal(await server(test, valkey), "valkey-server");
  assert.equal(await server(test, valkey, "/its/own"), "/its/own");
  // Without a server on the PATH, that of PyPI is used.
  const { stdout } = await run(await server(test, {}), ["--version"]);
  assert.match(stdout, /^Valkey server/);
});
