/** Folder for files that take long to make and are made only once for each user. */
import { homedir } from 'node:os';
import { join } from 'node:path';

/** Returns `$XDG_CACHE_HOME/berth`, or `~/.cache/berth` without that variable. */
export function cacheDirectory(
  environment: Readonly<Record<string, string | undefined>> = process.env,
): string {
  return join(environment['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'berth');
}

/**
 * Variables for programs that run from their sources. Node.js keeps the sources without types and compiled, so that later starts take half
 * the time of the processor.
 */
export const FROM_SOURCES = { NODE_COMPILE_CACHE: join(cacheDirectory(), 'compiled') };
