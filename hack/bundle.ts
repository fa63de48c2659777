/**
 * Bundles each program into one file, for example `dist/operator.js`, and each thread of a program into one file beside it. The files of the
 * console are in `dist/console/`.
 */
import { existsSync } from 'node:fs';
import { copyFile, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { build, type Plugin } from 'esbuild';
import { kinds } from '../api/v1alpha1/kinds.ts';
import type { KindTable } from '../console/model/columns.ts';
import { runCommand } from './command.ts';

const ROOT = join(import.meta.dirname, '..');
/** Modules that the bundles begin with, by the name of the bundle. */
export const ENTRY_POINTS = {
  operator: join(ROOT, 'operator', 'main.ts'),
  agent: join(ROOT, 'agent', 'main.ts'),
  server: join(ROOT, 'server', 'main.ts'),
  runners: join(ROOT, 'runners', 'main.ts'),
  // A thread of the server. The server finds it by the name of its module.
  passwordworker: join(ROOT, 'server', 'power', 'passwordworker.ts'),
} as const;
/**
 * The parts of undici that the programs use. The whole library also has fetch, WebSockets, caches and mocks. Without them, a program needs
 * 10 MB less memory.
 */
export const UNDICI = `
  import api from 'undici/lib/api/index.js';
  import Dispatcher from 'undici/lib/dispatcher/dispatcher.js';
  Object.assign(Dispatcher.prototype, api);
  export { default as buildConnector } from 'undici/lib/core/connect.js';
  export { default as Agent } from 'undici/lib/dispatcher/agent.js';
  export { default as Client } from 'undici/lib/dispatcher/client.js';
  export { default as Pool } from 'undici/lib/dispatcher/pool.js';
`;

/** Browsers of the last two years. */
const BROWSERS = ['chrome131', 'firefox133', 'safari18'];

/** Writes the bundles. This takes well under a second. */
export async function bundle(): Promise<void> {
  const present = Object.entries(ENTRY_POINTS).filter(([, path]) => existsSync(path));
  await bundleInto(join(ROOT, 'dist'), Object.fromEntries(present));
  await bundleConsole();
}

/** Writes the files of the console into the folder: `console.js`, `style.css`, and noVNC with its licence. */
export async function bundleConsole(folder = join(ROOT, 'dist', 'console')): Promise<void> {
  const source = (file: string) => join(ROOT, 'console', file);
  await build({
    entryPoints: { console: source('main.tsx'), style: source('style.css') },
    outdir: folder,
    bundle: true,
    platform: 'browser',
    format: 'esm',
    target: BROWSERS,
    minify: true,
    legalComments: 'none',
    logLevel: 'warning',
    tsconfig: source('tsconfig.json'),
    define: { BERTH_KINDS: JSON.stringify(kindTables()) },
  });
  await bundleScreens(folder);
}

/** Writes noVNC into a file of its own, without a change of its code. The page loads it when somebody opens the screen of a VM. */
async function bundleScreens(folder: string): Promise<void> {
  const library = join(ROOT, 'node_modules', '@novnc', 'novnc');
  const { version } = JSON.parse(await readFile(join(library, 'package.json'), 'utf8')) as {
    version: string;
  };
  await build({
    entryPoints: { novnc: '@novnc/novnc' },
    absWorkingDir: ROOT,
    outdir: folder,
    bundle: true,
    platform: 'browser',
    format: 'esm',
    target: BROWSERS,
    minify: true,
    legalComments: 'inline',
    logLevel: 'warning',
    banner: {
      js: `/*! noVNC ${version}, Mozilla Public License 2.0: novnc.LICENSE.txt. Source: https://www.npmjs.com/package/@novnc/novnc/v/${version} */`,
    },
  });
  await copyFile(join(library, 'LICENSE.txt'), join(folder, 'novnc.LICENSE.txt'));
}

/** Returns the kinds with the columns of `kubectl get`, for the lists of the console. The limit of the DPI is in no column. */
function kindTables(): KindTable[] {
  return kinds(240).map(({ kind, plural, namespaced, columns }) => ({ kind, plural, namespaced, columns }));
}

export interface BundleFormat {
  /** Extension of the bundles; `.js` when absent. Outside a package of type `module`, Node needs `.mjs` to recognize an ES module. */
  extension?: '.js' | '.mjs';
  /** Whether to write source maps. The default is true. */
  sourcemap?: boolean;
}

/** Writes `NAME.js` into the folder for each entry `NAME: PATH`. */
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
    // V8 keeps the source text in memory, and removing whitespace saves 8 MB. Names stay the same, because people read stack traces.
    minifyWhitespace: true,
    minifySyntax: true,
    sourcemap: sourcemap && 'linked',
    outExtension: { '.js': extension },
    legalComments: 'none',
    logLevel: 'warning',
    plugins: [replacing({ undici: UNDICI })],
    // CommonJS packages load Node's own modules with `require`, which ES modules don't have.
    banner: {
      js: "import { createRequire as berthCreateRequire } from 'node:module'; const require = berthCreateRequire(import.meta.url);",
    },
  });
}

/**
 * Replaces libraries in a bundle by small parts of them. The keys are the names of the libraries, and the values are modules. If a program
 * uses something that a part lacks, the build fails.
 */
export function replacing(libraries: Readonly<Record<string, string>>): Plugin {
  return {
    name: 'replacing',
    setup(bundling) {
      const filter = new RegExp(`^(${Object.keys(libraries).join('|')})$`);
      bundling.onResolve({ filter }, ({ path }) => ({ path, namespace: 'replacing' }));
      bundling.onLoad({ filter, namespace: 'replacing' }, ({ path }) => ({
        contents: libraries[path] ?? '',
        resolveDir: ROOT,
      }));
    },
  };
}

if (import.meta.main) {
  await runCommand(async () => await bundle());
}
