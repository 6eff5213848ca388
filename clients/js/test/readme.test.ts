/** Every block of the README is run, except those for a shell. */

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { text } from "node:stream/consumers";
import { after, test } from "node:test";

import { lookInto, serverFor } from "./support/server.js";

const PACKAGE = resolve(import.meta.dirname, "..");
const server = await serverFor({ after });

interface Block {
  readonly line: number;
  readonly language: string;
  readonly code: string;
  /** Text after the block: its output. */
  readonly printed: string;
}

function blocks(): Block[] {
  const readme = readFileSync(join(PACKAGE, "README.md"), "utf8");
  const found = [...readme.matchAll(/^```(\w*)\n(.*?)^```$/gms)].map((match) => ({
    line: readme.slice(0, match.index).split("\n").length,
    language: match[1]!,
    code: match[2]!,
  }));
  return found
    .map((block, index) => {
      const next = found[index + 1];
      return { ...block, printed: next?.language === "text" ? next.code : "" };
    })
    .filter(({ language }) => language !== "text");
}

/**
 * Creates a folder with the package's settings, in which a block is compiled and finds the
 * packages.
 */
function folderFor(scope: { after: (end: () => void) => void }): string {
  const folder = mkdtempSync(join(PACKAGE, "build", "readme-"));
  scope.after(() => rmSync(folder, { recursive: true }));
  const settings = { extends: "../../tsconfig.json", include: ["*.ts"] };
  const compilerOptions = { rootDir: ".", outDir: "out", noUnusedLocals: false, sourceMap: false };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ ...settings, compilerOptions }));
  return folder;
}

test("every block of TypeScript compiles, runs and prints the shown output", async (test) => {
  const folder = folderFor(test);
  const scripts = blocks().filter(({ language }) => language === "ts");
  assert.ok(scripts.length >= 10, `${scripts.length} blocks`);
  for (const { line, code } of scripts) {
    const local = code.replaceAll("localhost:6379", `127.0.0.1:${server.port}`);
    writeFileSync(join(folder, `line${line}.ts`), local);
  }
  const tsc = join(PACKAGE, "node_modules/.bin/tsc");
  const compiled = spawnSync(tsc, ["--project", folder], { encoding: "utf8" });
  assert.equal(compiled.status, 0, compiled.stdout);

  const redis = lookInto(test, server);
  await redis.call("RL.POLICYSET", "default", "FIXED", "100", "1m");
  for (const { line, printed } of scripts) {
    await redis.flushall();
    // Clients keep a script running, so it ends after its last line of output.
    const file = join(folder, "out", `line${line}.js`);
    const script = `await import(${JSON.stringify(file)}); process.exit(0);`;
    const child = spawn(process.execPath, ["--input-type=module", "--eval", script]);
    const [out, errors, [code]] = await Promise.all([
      text(child.stdout),
      text(child.stderr),
      once(child, "exit"),
    ]);
    assert.deepEqual([code, errors, out], [0, "", printed], `README.md:${line}`);
  }
});

test("blocks are TypeScript, output, or for a shell", () => {
  const others = blocks().filter(({ language }) => language !== "ts");
  assert.deepEqual(
    others.map(({ language, code }) => [language, code]),
    [["sh", "npm install ../redis-ratelimit/clients/js ioredis\n"]],
  );
});

test("links work outside the repository", () => {
  for (const file of ["README.md", "CHANGELOG.md"]) {
    const page = readFileSync(join(PACKAGE, file), "utf8");
    const anchors = [...page.matchAll(/^#+ (.*)$/gm)].map(
      ([, title]) =>
        `#${title!
          .toLowerCase()
          .replace(/[^\w -]/g, "")
          .replaceAll(" ", "-")}`,
    );
    for (const [, target] of page.matchAll(/\]\(([^)]+)\)/g)) {
      assert.ok(anchors.includes(target!) || target!.startsWith("https://"), `${file}: ${target}`);
    }
  }
});

test("package installs from a checkout by one command", async (test) => {
  const folder = mkdtempSync(join(tmpdir(), "ratelimit-install-"));
  test.after(() => rmSync(folder, { recursive: true }));
  // The files of a clone.
  const made = ["node_modules", "dist", "build", "matrix"].map((name) => join(PACKAGE, name));
  const copied = join(folder, "redis-ratelimit", "clients", "js");
  cpSync(PACKAGE, copied, { recursive: true, filter: (path) => !made.includes(path) });
  // Installing the build tools takes npm 15 CPU seconds. In .ci/run the Express example, which is
  // installed before, makes npm fetch them for this very folder.
  if (process.env["CI"] === "true" && process.env["NPM_INSTALL"] !== "whole") {
    symlinkSync(join(PACKAGE, "node_modules"), join(copied, "node_modules"));
  }
  const project = join(folder, "project");
  mkdirSync(project);
  writeFileSync(join(project, "package.json"), JSON.stringify({ type: "module" }));
  const [install] = blocks().filter(({ language }) => language === "sh");
  // npm sets variables for its scripts, which would name this package.
  const environment = Object.entries(process.env).filter(([name]) => !name.startsWith("npm_"));
  const options = {
    cwd: project,
    encoding: "utf8",
    env: Object.fromEntries(environment),
  } as const;
  const installed = spawnSync("sh", ["-c", install!.code], options);
  assert.equal(installed.status, 0, installed.stderr);
  const [first] = blocks().filter(({ language }) => language === "ts");
  // Its types are only for the compiler.
  const plain = first!.code.replace("wait!", "wait");
  const program = plain.replaceAll("localhost:6379", `127.0.0.1:${server.port}`);
  writeFileSync(join(project, "first.js"), `${program}process.exit(0);\n`);
  await lookInto(test, server).flushall();
  const ran = spawnSync(process.execPath, ["first.js"], options);
  assert.deepEqual([ran.status, ran.stdout], [0, first!.printed], ran.stderr);
});

test("package contains only the compiled files and their types", (test) => {
  const folder = mkdtempSync(join(tmpdir(), "ratelimit-pack-"));
  test.after(() => rmSync(folder, { recursive: true }));
  const words = ["pack", "--json", "--ignore-scripts", "--pack-destination", folder];
  const packed = spawnSync("npm", words, { cwd: PACKAGE, encoding: "utf8" });
  assert.equal(packed.status, 0, packed.stderr);
  const reported = JSON.parse(packed.stdout) as { files: { path: string }[] }[] | object;
  const [{ files }] = Object.values(reported) as [{ files: { path: string }[] }];
  const sources = readdirSync(join(PACKAGE, "src"), { encoding: "utf8", recursive: true })
    .filter((name) => name.endsWith(".ts"))
    .map((name) => name.replace(/\.ts$/, ""));
  const about = readFileSync(join(PACKAGE, "package.json"), "utf8");
  const paths = Object.keys((JSON.parse(about) as { exports: object }).exports);
  const entries = paths.filter((path) => !path.endsWith(".json"));
  const names = entries.map((path) => (path === "." ? "index" : path.slice(2)));
  const expected = [
    ...sources.flatMap((name) => [`${name}.js`, `${name}.d.ts`, `esm/${name}.js`]),
    ...names.flatMap((name) => [`${name}.mjs`, `${name}.d.mts`]),
    ...["package.json", "esm/package.json"],
  ].map((path) => `dist/${path}`);
  assert.deepEqual(
    files.map(({ path }) => path).sort(),
    [...expected, "CHANGELOG.md", "LICENSE", "README.md", "package.json"].sort(),
  );

  // Unpacked in an empty folder, it needs no other package, and says what to install.
  const [archive] = readdirSync(folder);
  const installed = join(folder, "node_modules", "redis-ratelimit-client");
  mkdirSync(installed, { recursive: true });
  spawnSync("tar", ["xf", join(folder, archive!), "-C", folder]);
  cpSync(join(folder, "package"), installed, { recursive: true });
  const program = `
    const paths = ${JSON.stringify(entries)};
    for (const path of paths) await import("redis-ratelimit-client" + path.slice(1));
    console.log(paths.length);
  `;
  const ran = spawnSync(process.execPath, ["--input-type=module", "--eval", program], {
    cwd: folder,
    encoding: "utf8",
  });
  assert.deepEqual([ran.status, ran.stdout], [0, "13\n"], ran.stderr);
});
