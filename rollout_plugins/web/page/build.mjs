// Bundles the page into ../static: one script, one style sheet, and the licences of what is in them.
// `node build.mjs FOLDER` writes elsewhere, so that a test can compare.
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "static");

const result = await build({
  absWorkingDir: here,
  entryPoints: { page: "src/main.tsx" },
  outdir: out,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022", "chrome123", "firefox121", "safari17.5"],
  charset: "ascii",
  legalComments: "none",
  metafile: true,
});

for (const name of ["page.js", "page.css"]) {
  const text = readFileSync(join(out, name), "utf8");
  if (/<\/(script|style)|<!--/i.test(text)) throw new Error(`${name} would end the element that holds it`);
}

const names = new Set();
for (const input of Object.keys(result.metafile.inputs)) {
  const match = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
  if (match) names.add(match[1]);
}
const licences = [...names].sort().map((name) => {
  const folder = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(out, "LICENSES.txt"), licences.join(`\n${"-".repeat(80)}\n\n`));
