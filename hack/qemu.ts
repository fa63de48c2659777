/**
 * Unpacks the QEMU of the agent's image beside that of this machine, for tests. Nothing is installed. It runs with its own libraries. Prints
 * the folder of its program, which tests use if it is the first one of PATH:
 *
 *     PATH=$(node hack/qemu.ts):$PATH npx vitest run --project e2e test/e2e/qemu/warm.test.ts
 */
import { chmod, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { runCommand } from './command.ts';
import { cacheFolder, madeOnce, type Recipe } from './guest/made.ts';
import { Packages } from './guest/packages.ts';
import { SUITE } from './images/base.ts';

const PROGRAM = 'qemu-system-x86_64';
/** Packages of the agent's image (agent-packages.sh) with the hypervisor and its display. */
const PACKAGES = ['qemu-system-x86', 'qemu-system-modules-opengl'];
const RECIPE: Recipe = {
  name: 'qemu-amd64',
  file: PROGRAM,
  sources: ['qemu.ts', 'images/base.ts'].map((path) => new URL(path, import.meta.url)),
  tools: { 'apt-get': 'apt', 'dpkg-deb': 'dpkg' },
};

async function main(): Promise<void> {
  const progress = (text: string) => process.stderr.write(`qemu: ${text}\n`);
  const program = await madeOnce(RECIPE, async (_, result) => {
    const folder = join(cacheFolder(), 'packages', `amd64-${SUITE}`);
    const packages = new Packages(folder, { architecture: 'amd64', suites: [SUITE], progress });
    await writeFile(result, wrapper(await packages.unpackWithDependencies(...PACKAGES)));
    await chmod(result, 0o755);
  });
  process.stdout.write(`${dirname(program)}\n`);
}

/** Returns a script that runs the program in `root` with the libraries, modules and firmware in `root`. */
function wrapper(root: string): string {
  const libraries = `${root}/usr/lib/x86_64-linux-gnu`;
  const loader = `${libraries}/ld-linux-x86-64.so.2 --library-path ${libraries} --argv0 ${PROGRAM}`;
  const firmware = `-L ${root}/usr/share/qemu -L ${root}/usr/share/seabios`;
  return `#!/bin/sh\nexport QEMU_MODULE_DIR=${libraries}/qemu\nexec ${loader} ${root}/usr/bin/${PROGRAM} ${firmware} "$@"\n`;
}

await runCommand(main);
