// node build.mjs [FOLDER]   writes limpid.js (the page of a server) and step.js (of one file) with their styles there;
// into the Python package when left out.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const folder = process.argv[2] ?? `${here}../src/limpid/view/static`;

await build({
  absWorkingDir: here,
  entryPoints: { limpid: "src/main.tsx", step: "src/file.tsx" },
  outdir: folder,
  bundle: true,
  minify: true,
  format: "iife", // one classic script: modules do not load from a file
  target: ["chrome110", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  charset: "utf8",
  legalComments: "eof",
  logLevel: "warning",
});
