/**
 * Compiles the package into dist: CommonJS with its types, and for each entry point a module that
 * exports the same names to `import`. So a process that uses both has one copy of each class.
 * Bundlers find ES modules in dist/esm.
 */

import { execFileSync } from "node:child_process";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = dirname(fileURLToPath(import.meta.url));
const dist = join(root, "dist");
const require = createRequire(import.meta.url);

rmSync(dist, { recursive: true, force: true });
const tsc = join(dirname(require.resolve("typescript/package.json")), "bin", "tsc");
const compile = (...options) =>
  execFileSync(process.execPath, [tsc, "--project", "tsconfig.build.json", ...options], {
    cwd: root,
    stdio: "inherit",
  });
compile();
compile(
  "--module",
  "nodenext",
  "--moduleResolution",
  "nodenext",
  "--declaration",
  "false",
  "--outDir",
  "dist/esm",
);
// The nearest package.json determines the type of .js files.
writeFileSync(join(dist, "package.json"), '{ "type": "commonjs" }\n');
writeFileSync(join(dist, "esm", "package.json"), '{ "type": "module" }\n');

const { exports } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
for (const entry of Object.values(exports)) {
  if (typeof entry === "string") continue;
  const file = entry.require.default;
  const names = Object.keys(require(join(root, file))).sort();
  const from = `"./${file.replace(/^.*\//, "")}"`;
  writeFileSync(join(root, entry.import.default), `export { ${names.join(", ")} } from ${from};\n`);
  writeFileSync(join(root, entry.import.types), `export * from ${from};\n`);
}
