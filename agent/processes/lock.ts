/** A lock that allows only one agent per data directory, because two agents would kill each other's machines. */
import { spawnSync } from 'node:child_process';
import { existsSync, linkSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { writeWholeSync } from '../../base/files.ts';
import { codeOf } from '../../base/errors.ts';
import { PS_ENVIRONMENT, parseStartTime } from './process.ts';

interface Holder {
  pid: number;
  /** Start time of the process. It distinguishes the process from a later process with the same pid. */
  startTime: string;
}

/** Time limit in milliseconds of the program `ps`, which usually answers within milliseconds. */
const PS_TIMEOUT_MILLISECONDS = 5_000;

/** Error if another running agent uses the data directory. */
export class LockedError extends Error {}

/** Locks the data directory and returns the function that unlocks it. @throws LockedError when another running process holds the lock. */
export function lockDataDirectory(directory: string): () => void {
  const file = join(directory, 'agent.lock');
  const own = join(directory, `agent.lock.${process.pid}`);
  writeWholeSync(own, JSON.stringify(describe(process.pid)));
  try {
    if (!tryLink(own, file)) {
      const holder = readHolder(file);
      if (holder !== undefined && isAlive(holder)) {
        throw new LockedError(`An agent with pid ${holder.pid} already uses the data directory ${directory}`);
      }
      if (!removeStale(file, `${own}.stale`) || !tryLink(own, file)) {
        throw new LockedError(`Another agent has just started with the data directory ${directory}`);
      }
    }
  } finally {
    rmSync(own, { force: true });
  }
  return () => rmSync(file, { force: true });
}

/**
 * Removes a lock file whose holder has ended. If another agent has replaced the file meanwhile, the function keeps the file of that agent
 * and returns false.
 */
function removeStale(file: string, aside: string): boolean {
  renameSync(file, aside);
  const moved = readHolder(aside);
  const isReplaced = moved !== undefined && isAlive(moved);
  if (isReplaced) {
    tryLink(aside, file);
  }
  rmSync(aside);
  return !isReplaced;
}

function tryLink(from: string, to: string): boolean {
  try {
    linkSync(from, to);
    return true;
  } catch (error) {
    if (codeOf(error) === 'EEXIST') {
      return false;
    }
    throw error;
  }
}

function readHolder(file: string): Holder | undefined {
  if (!existsSync(file)) {
    return undefined;
  }
  const holder: unknown = JSON.parse(readFileSync(file, 'utf8') || '{}');
  return typeof holder === 'object' && holder !== null && 'pid' in holder ? (holder as Holder) : undefined;
}

function isAlive(holder: Holder): boolean {
  try {
    process.kill(holder.pid, 0);
  } catch (error) {
    if (codeOf(error) !== 'EPERM') {
      return false;
    }
    // The process belongs to another user, so /proc may hide it. A hidden process counts as the holder of the lock, because its start time
    // is unknown.
    if (describe(holder.pid).startTime === '') {
      return true;
    }
  }
  return describe(holder.pid).startTime === holder.startTime;
}

function describe(pid: number): Holder {
  if (process.platform !== 'linux') {
    return { pid, startTime: startTimeFromPs(pid) };
  }
  const file = `/proc/${pid}/stat`;
  if (!existsSync(file)) {
    return { pid, startTime: '' };
  }
  // A zombie (an ended process whose parent has not yet waited for it) no longer has the lock.
  return { pid, startTime: parseStartTime(readFileSync(file, 'utf8')) ?? 'ended' };
}

/** Returns the start time that `ps` prints; empty if there is no such process. @throws Error when `ps` cannot run. */
function startTimeFromPs(pid: number): string {
  const { error, stdout } = spawnSync('ps', ['-o', 'lstart=', '-p', String(pid)], {
    encoding: 'utf8',
    env: PS_ENVIRONMENT,
    timeout: PS_TIMEOUT_MILLISECONDS,
  });
  if (error !== undefined) {
    throw error;
  }
  return stdout.trim();
}
