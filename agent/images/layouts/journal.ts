/**
 * A journal that records the finished parts of long work. If the agent is killed, a later call does only the parts that are not in the
 * journal.
 */
import { type FileHandle, mkdir, open, rename, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { sync } from '../../../base/files.ts';
import { unlessMissing } from '../../disks/diskio.ts';
import type { PullTarget } from './pull.ts';

/** Size limit of a journal in bytes. Even the manifest with the most layers and the blob with the most parts need a smaller journal. */
const JOURNAL_LIMIT_BYTES = 4 * 1024 * 1024;

/** Opens the journal in `folder` if its first line is `key`. Otherwise empties the folder and begins a new journal. */
export async function openJournal(folder: string, key: string): Promise<Journal> {
  const path = join(folder, 'journal');
  const lines = await readLines(path);
  if (lines?.[0] === key) {
    const file = await open(path, 'a', 0o600);
    // If the agent was killed during a write, the last line can be incomplete. An incomplete line is removed, because otherwise the next
    // entry would be appended to it.
    await file.truncate(lines.reduce((length, line) => length + Buffer.byteLength(line) + 1, 0));
    return new Journal(file, lines.slice(1), false);
  }
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true, mode: 0o700 });
  const file = await open(path, 'a', 0o600);
  await file.appendFile(`${key}\n`);
  await file.datasync();
  return new Journal(file, [], true);
}

/** Returns the complete lines of a journal. Leaves out an incomplete last line. Returns undefined when the file is missing or too large. */
async function readLines(path: string): Promise<string[] | undefined> {
  const file = await unlessMissing(open(path, 'r'));
  if (file === undefined) {
    return undefined;
  }
  try {
    const { size } = await file.stat();
    if (size > JOURNAL_LIMIT_BYTES) {
      return undefined;
    }
    return (await file.readFile('utf8')).split('\n').slice(0, -1);
  } finally {
    await file.close();
  }
}

export class Journal {
  /**
   * True if the work began with the call of {@link openJournal} that returned this journal. If an earlier call began the work, the value is
   * false, and the files might already have content.
   */
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

  /**
   * Adds an entry. The journal first writes the data of `file` to the disk, and then the entry. The promise resolves after both writes.
   * Entries that are added at the same time share one write.
   */
  async add(entry: string, file: FileHandle): Promise<void> {
    this.#waiting.set(entry, file);
    // Entries that are added during a write wait for the next write. Thus only one write runs at a time, for any number of workers.
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

/** Returns the path of the disk under construction. The disk gets its final name only when it is complete and verified. */
export function unfinished(target: PullTarget): string {
  return `${target.disk}.part`;
}

/**
 * Makes the disk `target.disk`, unless an earlier call finished it. `make` gets the journal of the folder, and must write the file whose
 * path {@link unfinished} returns. This file is then synced and renamed to `target.disk`. `key` identifies the work in the journal.
 */
export async function makeDisk(
  target: PullTarget,
  key: string,
  make: (journal: Journal) => Promise<void>,
): Promise<void> {
  const journal = await openJournal(target.folder, key);
  try {
    if ((await unlessMissing(stat(target.disk))) !== undefined) {
      return;
    }
    await make(journal);
    await sync(unfinished(target));
    await rename(unfinished(target), target.disk);
  } finally {
    await journal.close();
  }
}
