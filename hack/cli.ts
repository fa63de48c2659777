/**
 * Makes the command `berth`: executables in `dist/cli/PLATFORM/`, the one for this machine also as `dist/berth`, and the npm package.
 *
 *     node hack/cli.ts [--platforms linux-amd64,darwin-arm64|all]
 */
import { copyFile, mkdir, rename } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { parseArgs } from 'node:util';
import { makeExecutable, makePackage } from './cli/executable.ts';
import { ownPlatform, PLATFORMS, type Platform } from './cli/nodes.ts';
import { runCommand } from './command.ts';

const ROOT = join(import.meta.dirname, '..');
const DIST = join(ROOT, 'dist');

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { platforms: { type: 'string', default: ownPlatform() } } });
  for (const platform of parsePlatforms(values.platforms)) {
    const folder = join(DIST, 'cli', platform);
    await mkdir(folder, { recursive: true });
    const { path, bytes, nodeVersion } = await makeExecutable(platform, folder);
    say(`${relative(ROOT, path)}: ${(bytes / 1e6).toFixed(1)} MB, with Node.js ${nodeVersion}`);
    if (platform === ownPlatform()) {
      const own = join(DIST, 'berth');
      await copyFile(path, `${own}.partial`);
      await rename(`${own}.partial`, own);
      say('dist/berth: the same, for this machine');
    }
  }
  say(`${relative(ROOT, await makePackage(DIST))}: the npm package`);
}

function parsePlatforms(text: string): readonly Platform[] {
  const names = text.split(',');
  const unknown = names.filter((name) => name !== 'all' && !PLATFORMS.some((platform) => platform === name));
  if (unknown.length > 0) {
    throw new Error(`--platforms: there is no ${unknown.join()}, but ${PLATFORMS.join(', ')} and all`);
  }
  return PLATFORMS.filter((platform) => names.includes(platform) || names.includes('all'));
}

function say(text: string): void {
  process.stdout.write(`cli: ${text}\n`);
}

await runCommand(main);
