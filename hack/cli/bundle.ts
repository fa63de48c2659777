/**
 * Bundles the command `berth` into one file for Node.js, and collects the licences of the packages in it. Each copy of the bundle must
 * include them. The executables and the npm package are made from it.
 */
import { chmod, readdir, readFile, rename } from 'node:fs/promises';
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

const PACKAGE = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//;
const LICENSE_FILE = /^(licen[cs]e|notice)/i;

/**
 * Returns the licence of Berth and the licences of the packages. `inputs` are paths of bundled files. `others` are paths of more licences.
 */
export async function licenses(inputs: readonly string[], ...others: readonly string[]): Promise<string> {
  const packages = inputs.map((input) => PACKAGE.exec(input)?.[1]).filter((path) => path !== undefined);
  const texts = await Promise.all([...new Set(packages)].sort().map(readLicense));
  const own = await Promise.all(
    [join(ROOT, 'LICENSE'), ...others].map(async (path) => await readFile(path, 'utf8')),
  );
  return [...own, ...texts].join(`\n${'-'.repeat(80)}\n\n`);
}

/** Returns the licence of the package in the folder. @throws Error when it has none. */
async function readLicense(folder: string): Promise<string> {
  const path = join(ROOT, folder);
  const files = (await readdir(path)).filter((file) => LICENSE_FILE.test(file));
  const manifest = JSON.parse(await readFile(join(path, 'package.json'), 'utf8')) as PackageManifest;
  const { name, version, license } = manifest;
  if (files.length === 0 && license === undefined) {
    throw new Error(`${folder} has no licence`);
  }
  const texts = await Promise.all(files.map(async (file) => await readFile(join(path, file), 'utf8')));
  return [`${name} ${version} (${license})\n`, ...texts].join('\n');
}

interface PackageManifest {
  readonly name: string;
  readonly version: string;
  readonly license?: string;
}
