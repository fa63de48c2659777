/**
 * Lets the agents of one machine share what one of them has found out about QEMU. It takes seconds to try the accelerators. Each agent checks
 * by a key in the file whether the machine is still the same.
 */
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { isMissing, undefinedIfSync } from '../../base/errors.ts';
import { cacheDirectory } from '../cache.ts';

const FILE = 'platforms.json';
/** Mode with which an agent makes its data directory. */
const DATA_MODE = 0o711;

/** Gives a new agent what an earlier agent has found out. */
export function lendPlatforms(dataDirectory: string): void {
  copyIfThere(cacheDirectory(), dataDirectory);
}

/** Keeps for later agents what this agent has found out. */
export function keepPlatforms(dataDirectory: string): void {
  copyIfThere(dataDirectory, cacheDirectory());
}

function copyIfThere(from: string, to: string): void {
  const text = undefinedIfSync(isMissing, () => readFileSync(join(from, FILE), 'utf8'));
  if (text !== undefined) {
    mkdirSync(to, { recursive: true, mode: DATA_MODE });
    // Several processes may write the file at the same time.
    const temporary = join(to, `${FILE}.${process.pid}`);
    writeFileSync(temporary, text, { mode: 0o600 });
    renameSync(temporary, join(to, FILE));
  }
}
