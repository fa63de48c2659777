/** Saves the platforms that were tried on this host, so that a restarted agent does not spend seconds on trying them again. */
import { createHash } from 'node:crypto';
import { mkdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing, undefinedIf } from '../../../base/errors.ts';
import { writeWhole } from '../../../base/files.ts';
import { hostBootId } from '../../processes/process.ts';
import { findArmFirmware, type Platform } from './platform.ts';

/** Number of the format of the saved results. An agent with another number ignores these results, and tries the platforms again. */
const CACHE_FORMAT = 4;
/**
 * If an accelerator did not work, the agent uses the saved results only for this time. After that, a starting agent tries the accelerators
 * again. The cause of the failure can be temporary, for example an overloaded host after its boot.
 */
const REFUSAL_MILLISECONDS = 3_600_000;

interface Saved {
  key: string;
  platforms: Platform[];
  /** Time of the trial, in milliseconds since the epoch. Absent if no accelerator failed. */
  refusedAt?: number;
}

/**
 * Returns the key under which results are saved. Results with another key are no longer used. The key changes when the host boots again,
 * and when the agent gets another user or other groups. The key also changes when a QEMU program of `binaries`, the firmware or /dev/kvm is
 * replaced or gets other rights.
 */
export async function cacheKey(binaries: readonly string[]): Promise<string> {
  const firmware = await findArmFirmware();
  const stamps = await Promise.all([...binaries, '/dev/kvm', firmware?.code ?? ''].map(fileStamp));
  const user = [process.getuid?.(), process.getgid?.(), process.getgroups?.().toSorted((a, b) => a - b)];
  const text = JSON.stringify([CACHE_FORMAT, await hostBootId(), user, ...stamps]);
  return createHash('sha256').update(text).digest('hex');
}

/** Returns a text that changes when the file at `path`, its owner or its mode changes. Returns undefined if there is no file. */
async function fileStamp(path: string): Promise<string | undefined> {
  const found = await undefinedIf(isMissing, stat(path));
  return found && `${path}:${found.size}:${found.mtimeMs}:${found.ctimeMs}`;
}

export async function readPlatforms(dataDirectory: string, key: string): Promise<Platform[] | undefined> {
  const text = (await undefinedIf(isMissing, readFile(fileIn(dataDirectory), 'utf8'))) ?? '{}';
  const saved = JSON.parse(text) as Partial<Saved>;
  return saved.key === key && isCurrent(saved.refusedAt) ? saved.platforms : undefined;
}

/** Saves the results of a trial. `isRefused` tells whether an accelerator did not work. */
export async function savePlatforms(
  dataDirectory: string,
  { isRefused, ...trial }: { key: string; platforms: Platform[]; isRefused: boolean },
): Promise<void> {
  const saved: Saved = isRefused ? { ...trial, refusedAt: Date.now() } : trial;
  await mkdir(dataDirectory, { recursive: true });
  await writeWhole(fileIn(dataDirectory), JSON.stringify(saved));
}

function isCurrent(refusedAt: number | undefined): boolean {
  return refusedAt === undefined || Math.abs(Date.now() - refusedAt) < REFUSAL_MILLISECONDS;
}

function fileIn(dataDirectory: string): string {
  return join(dataDirectory, 'platforms.json');
}
