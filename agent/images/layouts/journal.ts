/** A record of the parts of a long piece of work that are done, so that it can be taken up after a kill. */
import { type FileHandle, mkdir, open, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { isMissing } from '../../../base/errors.ts';
import type { PullTarget } from './pull.ts';

/** Enough for the manifest with the most layers, and for the parts of the largest blob. */
const JOURNAL_LIMIT_BYTES = 4 * 1024 * 1024;

export interface Journal {
  /** False when the work was begun by an earlier call, so that the files may have content. */
  readonly fresh: boolean;
  has(entry: string): boolean;
  /** Returns once the data of `file`, and then the entry, are on the disk. Several entries share one round. */
  add(entry: string, file: FileHandle): Promise<void>;
  close(): Promise<void>;
}

/** The folder's journal if it belongs to `key`; otherwise the folder is emptied and a new one begun. */
export async function openJournal(folder: string, key: string): Promise<Journal> {
  const path = join(folder, 'journal');
  const lines = await linesOf(path);
  if (lines?.[0] === key) {
    const file = await open(path, 'a', 0o600);
    // The rest of a line that was cut would become the beginning of the next one.
    await file.truncate(lines.reduce((length, line) => length + Buffer.byteLength(line) + 1, 0));
    return new FileJournal(file, lines.slice(1), false);
  }
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const file = await open(path, 'a', 0o600);
  await file.appendFile(`${key}\n`);
  await file.datasync();
  return new FileJournal(file, [], true);
}

/** Whole lines only: the last one may have been cut. */
async function linesOf(path: string): Promise<string[] | undefined> {
  try {
    const file = await open(path, 'r');
    try {
      const { size } = await file.stat();
      if (size > JOURNAL_LIMIT_BYTES) {
        return undefined;
      }
      return (await file.readFile('utf8')).split('\n').slice(0, -1);
    } finally {
      await file.close();
    }
  } catch (error) {
    if (isMissing(error)) {
      return undefined;
    }
    throw error;
  }
}

class FileJournal implements Journal {
  readonly fresh: boolean;
  readonly #file: FileHandle;
  readonly #done: Set<string>;
  #waiting = new Map<string, FileHandle>();
  #nextRound: Promise<void> | undefined;
  #round: Promise<void> = Promise.resolve();

  constructor(file: FileHandle, done: readonly string[], fresh: boolean) {
    this.#file = file;
    this.#done = new Set(done);
    this.fresh = fresh;
  }

  has(entry: string): boolean {
    return this.#done.has(entry);
  }

  async add(entry: string, file: FileHandle): Promise<void> {
    this.#waiting.set(entry, file);
    // Entries that come while a round is under way go with the next one: one write to the disk at a time for any number of workers.
    this.#nextRound ??= this.#round.then(() => this.#write());
    await this.#nextRound;
  }

  async close(): Promise<void> {
    await this.#file.close();
  }

  async #write(): Promise<void> {
    const entries = this.#waiting;
    this.#waiting = new Map();
    this.#round = this.#nextRound ?? Promise.resolve();
    this.#nextRound = undefined;
    for (const file of new Set(entries.values())) {
      await file.datasync();
    }
    await this.#file.appendFile([...entries.keys()].map((entry) => `${entry}\n`).join(''));
    await this.#file.datasync();
    for (const entry of entries.keys()) {
      this.#done.add(entry);
    }
  }
}

/** The disk while it is being made: it has its name only when it is whole and verified. */
export function unfinished(target: PullTarget): string {
  return `${target.disk}.part`;
}

/** Whether an earlier call of the same work came to its end. */
export async function isFinished(target: PullTarget): Promise<boolean> {
  try {
    await stat(target.disk);
    return true;
  } catch (error) {
    if (isMissing(error)) {
      return false;
    }
    throw error;
  }
}

/** Gives the disk its name, once its content is on the disk. */
export async function finish(target: PullTarget): Promise<void> {
  const file = await open(unfinished(target), 'r+');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(unfinished(target), target.disk);
}
