// node build.mjs [FOLDER]   writes there, or into the Python package: limpid.js and the parts that it loads when they are asked
// for (the page of a server), cell.js (of a notebook cell), step.js, primer.js and recording.js (of one file), their styles, and widget.js (a notebook's
// module around the page).
import { build } from "esbuild";
import { mkdir, readdir, rm } from "node:fs/promises";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const folder = process.argv[2] ?? `${here}../src/limpid/view/static`;

const common = {
  absWorkingDir: here,
  outdir: folder,
  bundle: true,
  minify: true,
  metafile: true,
  target: ["chrome110", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "eof",
  logLevel: "warning",
};
const made = await Promise.all([
  build({ ...common, entryPoints: { limpid: "src/main.tsx" }, format: "esm", splitting: true }),
  // classic scripts, in one piece: modules do not load from a file, nor in a frame without an origin
  build({ ...common, entryPoints: { cell: "src/cell.tsx", step: "src/file.tsx", primer: "src/primer.ts", recording: "src/recording/file.tsx" }, format: "iife" }),
  build({ ...common, entryPoints: { widget: "src/widget.ts" }, format: "esm" }), // as anywidget takes it
]);

const written = new Set(made.flatMap(({ metafile }) => Object.keys(metafile.outputs).map((one) => basename(one))));
await mkdir(folder, { recursive: true });
for (const name of await readdir(folder)) {
  if (/\.(js|css)$/.test(name) && !written.has(name)) await rm(`${folder}/${name}`); // parts of an earlier build
}
