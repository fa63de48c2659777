/** Makes the npm package of the command, for machines that have Node.js. */
import { chmod, cp, mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import packageJson from '../../package.json' with { type: 'json' };
import { run } from '../guest/run.ts';
import { bundleCommand } from './bundle.ts';
import { licenses } from './licenses.ts';

const ROOT = join(import.meta.dirname, '..', '..');
const PACK_MILLISECONDS = 60_000;
const README = `# berth

${packageJson.description}. This package is the command, and needs Node.js 22 or newer. \`kubectl berth\` is the same command.

    npm install --global berth
    berth --help
`;
/** Keeps the compiled code for the next start, which is then almost twice as fast. */
const START = `#!/usr/bin/env node
require('node:module').enableCompileCache();
require('./berth.cjs');
`;

/** Writes the package into the folder and returns its path. */
export async function makePackage(folder: string): Promise<string> {
  const { version, description, license, engines } = packageJson;
  const work = await mkdtemp(join(tmpdir(), 'berth-package-'));
  try {
    const { path, inputs } = await bundleCommand(work);
    await rename(path, join(work, 'berth.cjs'));
    await writeFile(join(work, 'start.cjs'), START);
    await chmod(join(work, 'start.cjs'), 0o755);
    await cp(join(ROOT, 'LICENSE'), join(work, 'LICENSE'));
    await writeFile(join(work, 'LICENSES.txt'), await licenses(inputs));
    await writeFile(join(work, 'README.md'), README);
    const bin = { berth: 'start.cjs', 'kubectl-berth': 'start.cjs' };
    const files = ['start.cjs', 'berth.cjs', 'LICENSES.txt'];
    const manifest = { name: 'berth', version, description, license, engines, bin, files };
    await writeFile(join(work, 'package.json'), JSON.stringify(manifest, undefined, 2));
    await run('npm', ['pack', '--silent', '--pack-destination', folder], {
      cwd: work,
      timeoutMilliseconds: PACK_MILLISECONDS,
    });
    return join(folder, `berth-${version}.tgz`);
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}
