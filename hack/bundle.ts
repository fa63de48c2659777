/** Bundles the programs into one file each, as images and benchmarks run them: `dist/operator.js`, `dist/agent.js`. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';
import { runCommand } from './command.ts';

const ROOT = join(import.meta.dirname, '..');
const PROGRAMS = ['operator', 'agent'];

/** Writes the bundles; takes well under a second. */
export async function bundle(): Promise<void> {
  const present = PROGRAMS.filter((name) => existsSync(join(ROOT, name, 'main.ts')));
  await bundleInto(
    join(ROOT, 'dist'),
    Object.fromEntries(present.map((name) => [name, join(ROOT, name, 'main.ts')])),
  );
}

export interface BundleFormat {
  /** `.js` when absent. Outside a package of type `module`, `.mjs` tells Node what it is. */
  extension?: '.js' | '.mjs';
  /** Write maps too, as by default. */
  sourcemap?: boolean;
}

/** Writes `NAME.js` into the folder for each `NAME: path of its entry`. */
export async function bundleInto(
  folder: string,
  entryPoints: Record<string, string>,
  { extension = '.js', sourcemap = true }: BundleFormat = {},
): Promise<void> {
  await build({
    entryPoints,
    outdir: folder,
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node22',
    // V8 keeps the text in memory, 8 MB more of it without this. Names stay, for stack traces that people read.
    minifyWhitespace: true,
    minifySyntax: true,
    sourcemap: sourcemap && 'linked',
    outExtension: { '.js': extension },
    legalComments: 'none',
    logLevel: 'warning',
    // CommonJS packages ask for Node's own modules by require, which ES modules don't have.
    banner: {
      js: "import { createRequire as berthCreateRequire } from 'node:module'; const require = berthCreateRequire(import.meta.url);",
    },
  });
}

if (import.meta.main) {
  await runCommand(async () => await bundle());
}
