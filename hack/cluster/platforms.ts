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
  const text = textIn(cacheDirectory());
  if (text !== undefined) {
    write(dataDirectory, text);
  }
}

/** Keeps for later agents what this agent has found out, if both architectures work. Otherwise a later agent tries them again. */
export function keepPlatforms(dataDirectory: string): void {
  const text = textIn(dataDirectory);
  if (text !== undefined && ['amd64', 'arm64'].every((name) => text.includes(`"architecture":"${name}"`))) {
    write(cacheDirectory(), text);
  }
}

function textIn(folder: string): string | undefined {
  return undefinedIfSync(isMissing, () => readFileSync(join(folder, FILE), 'utf8'));
}

/** Replaces the file. Several processes can do this at the same time, so each needs a temporary file of its own. */
function write(folder: string, text: string): void {
  mkdirSync(folder, { recursive: true, mode: DATA_MODE });
  const temporary = join(folder, `${FILE}.${process.pid}`);
  writeFileSync(temporary, text, { mode: 0o600 });
  renameSync(temporary, join(folder, FILE));
}
