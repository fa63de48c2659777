/**
 * Makes the archive of the agent for Apple hosts in `dist/`: the executable for Apple silicon, the file for launchd, and scripts that install
 * and remove both.
 *
 *     node hack/mac.ts
 */
import { chmod, copyFile, mkdir, mkdtemp, rename, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { VERSION } from '../api/v1alpha1/version.ts';
import { makeExecutable } from './cli/executable.ts';
import { runCommand } from './command.ts';
import { run } from './guest/run.ts';

const ROOT = join(import.meta.dirname, '..');
const DIST = join(ROOT, 'dist');
const FILES: Readonly<Record<string, number>> = {
  'dev.berth.agent.plist': 0o644,
  'install.sh': 0o755,
  'remove.sh': 0o755,
};
/** Time limit of the compression of 150 MB on a busy machine. */
const PACK_MILLISECONDS = 120_000;

/** Writes the archive into the folder and returns its path. */
export async function makeMacArchive(folder: string): Promise<string> {
  const name = `berth-agent-${VERSION}-darwin-arm64`;
  const work = await mkdtemp(join(tmpdir(), 'berth-mac-archive-'));
  try {
    const content = join(work, name);
    await mkdir(content);
    await makeExecutable('darwin-arm64', content, 'berth-agent');
    for (const [file, mode] of Object.entries(FILES)) {
      await copyFile(join(import.meta.dirname, 'mac', file), join(content, file));
      await chmod(join(content, file), mode);
    }
    await mkdir(folder, { recursive: true });
    const archive = join(folder, `${name}.tar.gz`);
    const owner = ['--owner=0', '--group=0', '--numeric-owner'];
    // The fastest level: higher ones save a tenth of the size, and need several times as long.
    const packing = [
      '--use-compress-program=gzip -1',
      ...owner,
      '-cf',
      `${archive}.partial`,
      '-C',
      work,
      name,
    ];
    await run('tar', packing, { timeoutMilliseconds: PACK_MILLISECONDS });
    await rename(`${archive}.partial`, archive);
    return archive;
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

if (import.meta.main) {
  await runCommand(async () => {
    const path = await makeMacArchive(DIST);
    const { size } = await stat(path);
    process.stdout.write(`mac: ${relative(ROOT, path)}: ${(size / 1e6).toFixed(1)} MB\n`);
  });
}
