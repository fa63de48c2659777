/** Collects the licences of the packages in a bundle. Each copy of the bundle must include them. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

const ROOT = join(import.meta.dirname, '..', '..');
const PACKAGE = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//;
const LICENSE_FILE = /^(licen[cs]e|notice)/i;

/**
 * Returns the licence of Berth and the licences of the packages. `inputs` are paths of bundled files. `others` are paths of more licences.
 */
export async function licenses(inputs: readonly string[], ...others: readonly string[]): Promise<string> {
  const packages = inputs.map((input) => PACKAGE.exec(input)?.[1]).filter((path) => path !== undefined);
  const texts = await Promise.all([...new Set(packages)].sort().map(licenseOf));
  const own = await Promise.all(
    [join(ROOT, 'LICENSE'), ...others].map(async (path) => await readFile(path, 'utf8')),
  );
  return [...own, ...texts].join(`\n${'-'.repeat(80)}\n\n`);
}

/** Returns the licence of the package in the folder. @throws Error when it has none. */
async function licenseOf(folder: string): Promise<string> {
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
