/** Bundles the command `berth` into one file for Node.js. The executables and the npm package are made from it. */
import { chmod, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { build } from 'esbuild';
import { replacing } from '../bundle.ts';

const ROOT = join(import.meta.dirname, '..', '..');
/** Libraries that take too long to load. For each library, the part that the command uses. */
const LIGHT: Readonly<Record<string, string>> = {
  undici: `export * from './hack/cli/light/undici.ts';`,
  'prom-client': `export * from './hack/cli/light/prom-client.ts';`,
};

export interface CommandBundle {
  readonly path: string;
  /** Paths of the files in the bundle, relative to the folder of the project. */
  readonly inputs: readonly string[];
}

/**
 * Writes the command as `berth` into the folder. It is a script of type CommonJS, because an executable of Node.js takes no other. Each
 * lazy import stays lazy in it.
 */
export async function bundleCommand(folder: string): Promise<CommandBundle> {
  const path = join(folder, 'berth');
  const { metafile } = await build({
    entryPoints: [join(ROOT, 'cli', 'main.ts')],
    outfile: `${path}.cjs`,
    absWorkingDir: ROOT,
    bundle: true,
    platform: 'node',
    format: 'cjs',
    target: 'node22',
    // Names stay the same, because people read stack traces.
    minifyWhitespace: true,
    minifySyntax: true,
    legalComments: 'none',
    logLevel: 'warning',
    metafile: true,
    plugins: [replacing(LIGHT)],
  });
  await rename(`${path}.cjs`, path);
  await chmod(path, 0o755);
  return { path, inputs: Object.keys(metafile.inputs) };
}
