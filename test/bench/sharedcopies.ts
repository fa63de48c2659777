/** Measures the copy of a large file of a shared folder into the store of a host, compared with `cp` and a sync of the same file. */
import { execFile } from 'node:child_process';
import { rm, statfs } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { randomFillSync } from 'node:crypto';
import { closeSync, fsyncSync, openSync, writeSync } from 'node:fs';
import { pino } from 'pino';
import { Registry } from 'prom-client';
import { HostImageStore } from '../../agent/images/store.ts';
import { withFolder } from './folder.ts';

const execute = promisify(execFile);

const GIB = 1024 ** 3;
/** The file has no holes, so that both contestants copy each of its bytes. */
const FILE_BYTES = 8 * GIB;
/** Space for the file, one copy and the reserve of the store. */
const ROOM_BYTES = 18 * GIB;
const PIECE_BYTES = 4 * 1024 * 1024;
const NAME = 'disk.raw';

export interface SharedCopies {
  bytes: number;
  /** Seconds of each round. The contestants take turns, so that other load of the machine affects both. */
  rounds: { cp: number; store: number }[];
}

/** Measures in a new folder below `parent`. @throws Error when there is not enough space, or the page cache cannot be emptied. */
export async function measureSharedCopies(parent: string, rounds: number): Promise<SharedCopies> {
  const { bavail, bsize } = await statfs(parent);
  if (bavail * bsize < ROOM_BYTES) {
    throw new Error(`the benchmark of shared files needs ${ROOM_BYTES} free bytes in ${parent}`);
  }
  return await withFolder(parent, async (folder) => {
    const file = join(folder, NAME);
    writeRandom(file);
    const results: SharedCopies['rounds'] = [];
    for (let round = 0; round < rounds; round += 1) {
      results.push({
        cp: await timed(file, async () => await copyByHand(file)),
        store: await timed(file, async () => await copyByStore(file)),
      });
    }
    return { bytes: FILE_BYTES, rounds: results };
  });
}

function writeRandom(path: string): void {
  const piece = randomFillSync(Buffer.alloc(PIECE_BYTES));
  const file = openSync(path, 'wx', 0o600);
  try {
    for (let written = 0; written < FILE_BYTES; written += PIECE_BYTES) {
      // Each piece differs, so that no file system shares its blocks.
      piece.writeDoubleLE(written);
      writeSync(file, piece);
    }
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

/** Returns the seconds that `work` takes when no byte of `file` is in the page cache. */
async function timed(file: string, work: () => Promise<void>): Promise<number> {
  await execute('sync');
  await execute('dd', [`if=${file}`, 'iflag=nocache', 'count=0']);
  const begin = performance.now();
  await work();
  return (performance.now() - begin) / 1000;
}

async function copyByHand(file: string): Promise<void> {
  const copy = `${file}.copy`;
  await execute('cp', ['--reflink=never', '--sparse=never', file, copy]);
  await execute('sync', [copy]);
  await rm(copy);
}

async function copyByStore(file: string): Promise<void> {
  const dataDirectory = join(dirname(file), 'data');
  const store = await HostImageStore.open({
    dataDirectory,
    architecture: 'amd64',
    sharedRoots: [dirname(file)],
    allowLoopbackHttp: false,
    registries: [],
    minimumFree: 0,
    metrics: new Registry(),
    logger: pino({ level: 'silent' }),
  });
  const { signal } = new AbortController();
  const options = {
    holder: 'machine/bench',
    tenant: 'team',
    signal,
    onProgress: () => undefined,
    onWait: () => undefined,
  } as const;
  await store.ensure({ type: 'sharedFile', path: NAME }, options);
  await store.registries.close();
  await rm(dataDirectory, { recursive: true });
}
