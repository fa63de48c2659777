/** Bundles the programs into one file each, as images and benchmarks run them: `dist/operator.js`, `dist/agent.js`. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';

const ROOT = join(import.meta.dirname, '..');
const PROGRAMS = ['operator', 'agent'];

/** Writes the bundles; takes well under a second. */
export async function bundle(): Promise<void> {
  const present = PROGRAMS.filter((name) => existsSync(join(ROOT, name, 'main.ts')));
  await build({
    entryPoints: Object.fromEntries(present.map((name) => [name, join(ROOT, name, 'main.ts')])),
    outdir: join(ROOT, 'dist'),
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node22',
    sourcemap: 'linked',
    legalComments: 'none',
    logLevel: 'warning',
    // CommonJS packages ask for Node's own modules by require, which ES modules don't have.
    banner: {
      js: "import { createRequire as berthCreateRequire } from 'node:module'; const require = berthCreateRequire(import.meta.url);",
    },
  });
}

if (import.meta.main) await bundle();
