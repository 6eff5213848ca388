/**
 * Imports the package, as it would be published, in small projects: CommonJS and ES modules, Jest,
 * a bundle, and TypeScript with each of its module resolutions.
 *
 * `--short` runs only projects that need no more than the package's own development dependencies.
 */

import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const MODULES = join(HERE, "node_modules");
const PACKED = join(MODULES, "redis-ratelimit-client");
const OUT = join(HERE, "out");
const IS_SHORT = process.argv.includes("--short");

function run(command, words, cwd = HERE, environment = {}) {
  const env = { ...process.env, ...environment };
  const { status, stdout, stderr, error } = spawnSync(command, words, {
    cwd,
    env,
    encoding: "utf8",
  });
  return { isGood: status === 0, output: `${stdout}${stderr}${error ?? ""}` };
}

/** Installs the package as npm would pack it, in the matrix's own node_modules. */
function installPacked() {
  rmSync(PACKED, { recursive: true, force: true });
  rmSync(OUT, { recursive: true, force: true });
  mkdirSync(PACKED, { recursive: true });
  mkdirSync(OUT);
  const words = ["pack", "--silent", "--ignore-scripts", "--pack-destination", OUT];
  const packed = run("npm", words, dirname(HERE));
  const archive = readdirSync(OUT).find((name) => name.endsWith(".tgz"));
  if (!archive) throw new Error(packed.output);
  run("tar", ["xzf", join(OUT, archive), "-C", PACKED, "--strip-components=1"]);
}

/** Compiles a project of TypeScript, in a folder of its own, whose package.json matters, too. */
function typescript(name, compiler, type, options) {
  const folder = join(OUT, name.replaceAll(" ", "-"));
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, "package.json"), JSON.stringify({ private: true, type }));
  const compilerOptions = {
    target: "es2022",
    lib: ["es2023"],
    types: ["node"],
    strict: true,
    exactOptionalPropertyTypes: true,
    rootDir: "../..",
    outDir: "compiled",
    ...options,
  };
  const settings = { compilerOptions, files: ["uses.ts"] };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify(settings));
  const copied = run("cp", [join(HERE, "types", "uses.ts"), folder]);
  if (!copied.isGood) return copied;
  const found = [MODULES, join(HERE, "..", "node_modules")]
    .map((modules) => join(modules, compiler, "bin", "tsc"))
    .find(existsSync);
  return run(process.execPath, [found, "--project", folder], folder);
}

const SHORT = {
  require: () => run(process.execPath, ["commonjs/main.cjs"]),
  import: () => run(process.execPath, ["esm/main.mjs"]),
  "TypeScript 7, nodenext": () =>
    typescript("ts7 nodenext", "typescript", "module", { module: "nodenext" }),
  "TypeScript 7, node16 in CommonJS": () =>
    typescript("ts7 node16", "typescript", "commonjs", { module: "node16" }),
  "TypeScript 7, bundler": () =>
    typescript("ts7 bundler", "typescript", "module", {
      module: "esnext",
      moduleResolution: "bundler",
    }),
};

const oldest = (file) => {
  const binary = readdirSync(MODULES).find((name) => /^node-(linux|darwin)-/.test(name));
  return binary
    ? run(join(MODULES, binary, "bin", "node"), [file])
    : { isGood: true, output: "no Node.js 20.0 for this machine" };
};
const jest = (file) =>
  run(
    process.execPath,
    [
      "--experimental-vm-modules",
      join(MODULES, "jest", "bin", "jest.js"),
      "--config",
      "jest.config.json",
      file,
    ],
    join(HERE, "jest"),
  );
const bundle = (format, file) => {
  const out = join(OUT, `bundle.${format === "cjs" ? "cjs" : "mjs"}`);
  const words = [file, "--bundle", "--platform=node", `--format=${format}`, `--outfile=${out}`];
  const externals = ["express", "fastify", "ioredis", "redis"].map((name) => `--external:${name}`);
  const made = run(join(MODULES, "esbuild", "bin", "esbuild"), [...words, ...externals]);
  return made.isGood ? run(process.execPath, [out]) : made;
};
const LONG = {
  "Node.js 20.0, require": () => oldest("commonjs/main.cjs"),
  "Node.js 20.0, import": () => oldest("esm/main.mjs"),
  "Jest, require": () => jest("limits.test.js"),
  "Jest, import": () => jest("imports.test.mjs"),
  "esbuild, CommonJS": () => bundle("cjs", "esm/bundled.mjs"),
  "esbuild, ES modules": () => bundle("esm", "esm/bundled.mjs"),
  "TypeScript 5, node10": () =>
    typescript("ts5 node10", "typescript5", "commonjs", {
      module: "commonjs",
      moduleResolution: "node10",
      esModuleInterop: true,
    }),
  "TypeScript 5, node16 in CommonJS": () =>
    typescript("ts5 node16", "typescript5", "commonjs", { module: "node16" }),
  "TypeScript 5, nodenext": () =>
    typescript("ts5 nodenext", "typescript5", "module", { module: "nodenext" }),
  "TypeScript 5, bundler": () =>
    typescript("ts5 bundler", "typescript5", "module", {
      module: "esnext",
      moduleResolution: "bundler",
    }),
};

installPacked();
const cells = Object.entries(IS_SHORT ? SHORT : { ...SHORT, ...LONG });
let failures = 0;
for (const [name, check] of cells) {
  const { isGood, output } = check();
  if (!isGood) failures++;
  console.log(`${isGood ? "good" : "FAILED"}  ${name}${isGood ? "" : `\n${output}`}`);
}
console.log(`${cells.length - failures} of ${cells.length}`);
process.exitCode = failures > 0 ? 1 : 0;
