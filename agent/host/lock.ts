/** One agent per data directory: two would each kill what the other runs. */
import { existsSync, linkSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { writeWholeSync } from '../../base/files.ts';
import { codeOf } from '../../base/errors.ts';
import { startTimeIn } from '../machines/process.ts';

interface Holder {
  pid: number;
  /** The process's start, so that a pid used again is not mistaken for the holder; '' where the system does not tell. */
  startTime: string;
}

/** The data directory belongs to a live agent. */
export class LockedError extends Error {}

/** Takes the lock and returns how to give it back. @throws LockedError when another live process holds it. */
export function lockDataDirectory(directory: string): () => void {
  const file = join(directory, 'agent.lock');
  const own = join(directory, `agent.lock.${process.pid}`);
  writeWholeSync(own, JSON.stringify(describe(process.pid)));
  try {
    if (!tryLink(own, file)) {
      const holder = readHolder(file);
      if (holder !== undefined && isAlive(holder)) {
        throw new LockedError(`an agent with pid ${holder.pid} already uses ${directory}`);
      }
      renameSync(file, `${own}.stale`);
      rmSync(`${own}.stale`);
      if (!tryLink(own, file)) {
        throw new LockedError(`another agent has just started in ${directory}`);
      }
    }
  } finally {
    rmSync(own, { force: true });
  }
  return () => rmSync(file, { force: true });
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
    return codeOf(error) === 'EPERM';
  }
  return describe(holder.pid).startTime === holder.startTime;
}

function describe(pid: number): Holder {
  const file = `/proc/${pid}/stat`;
  if (!existsSync(file)) {
    return { pid, startTime: '' };
  }
  // One that was killed and whose parent has not yet waited for it holds nothing any more.
  return { pid, startTime: startTimeIn(readFileSync(file, 'utf8')) ?? 'ended' };
}
