import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Descriptor } from '../oci/manifests.ts';
import type { Repository } from '../oci/repository.ts';
import { fetchBlob, PART_BYTES } from './blob.ts';
import { type Journal, openJournal } from './journal.ts';
import { makeFolder } from '../../../test/support/folder.ts';

const CONTENT = Buffer.alloc(PART_BYTES + 1000, 'content');
const DIGEST = `sha256:${createHash('sha256').update(CONTENT).digest('hex')}`;
const OPTIONS = { signal: new AbortController().signal, onBytes: () => undefined };

let folder: string;
let journal: Journal;
let asked: number[];

beforeEach(async () => {
  asked = [];
  folder = makeFolder();
  journal = await openJournal(join(folder, 'work'), 'key');
});

afterEach(async () => {
  await journal.close();
});

interface Answers {
  /** The second part comes after this promise resolves. */
  gate?: Promise<void>;
  servesRanges?: boolean;
}

/** Returns a repository that gives the content. Adds the first position of each request to `asked`. */
function repository({ gate, servesRanges = true }: Answers): Repository {
  async function* stream(_: Descriptor, { start, end }: { start: number; end: number }) {
    asked.push(start);
    if (start > 0) {
      await gate;
    }
    yield CONTENT.subarray(start, end);
  }
  const answer = async () => servesRanges;
  return { name: 'registry.example/one', stream, servesRanges: answer } as unknown as Repository;
}

function fetch<T>(
  read: (content: AsyncIterable<Buffer>) => Promise<T>,
  { digest = DIGEST, ...answers }: Answers & { digest?: string } = {},
): Promise<T> {
  const descriptor = { mediaType: 'any', digest, size: CONTENT.length };
  const work = { path: join(folder, 'blob'), journal, name: 'blob' };
  return fetchBlob({ repository: repository(answers), blob: descriptor }, work, OPTIONS, read);
}

async function all(content: AsyncIterable<Buffer>): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of content) {
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

async function giveUp(content: AsyncIterable<Buffer>): Promise<never> {
  for await (const _ of content) {
    break;
  }
  throw new Error('no archive');
}

describe('a blob', () => {
  test('is read in order before all of it has come', async () => {
    const gate = Promise.withResolvers<void>();
    const read = async (content: AsyncIterable<Buffer>): Promise<Buffer> => {
      const pieces: Buffer[] = [];
      for await (const piece of content) {
        pieces.push(piece);
        if (pieces.length === 1) {
          gate.resolve();
        }
      }
      return Buffer.concat(pieces);
    };
    expect((await fetch(read, { gate: gate.promise })).equals(CONTENT)).toBe(true);
  });

  test('comes in one piece from a registry that ignores ranges, because each part would begin at byte 0', async () => {
    expect((await fetch(all, { servesRanges: false })).equals(CONTENT)).toBe(true);
    expect(asked).toEqual([0]);
  });

  test('that a registry sent in parts before is fetched anew if the registry ignores ranges now', async () => {
    const gate = Promise.reject(new Error('registry gone'));
    gate.catch(() => undefined);
    await expect(fetch(all, { gate })).rejects.toThrow('registry gone');
    expect(journal.has('blob 0')).toBe(true);
    asked = [];
    expect((await fetch(all, { servesRanges: false })).equals(CONTENT)).toBe(true);
    expect(asked).toEqual([0]);
  });

  test('with a wrong digest is reported as such, whatever its reader reported', async () => {
    const other = { digest: `sha256:${'0'.repeat(64)}` };
    await expect(fetch(all, other)).rejects.toMatchObject({ reason: 'DigestMismatch' });
    await expect(fetch(giveUp, other)).rejects.toMatchObject({ reason: 'DigestMismatch' });
  });

  test('with the right digest lets its reader report a fault, once all of it has come', async () => {
    const gate = Promise.withResolvers<void>();
    const early = async (content: AsyncIterable<Buffer>): Promise<never> =>
      await giveUp(content).finally(() => gate.resolve());
    await expect(fetch(early, { gate: gate.promise })).rejects.toThrow('no archive');
    expect(['blob 0', 'blob 1'].map((part) => journal.has(part))).toEqual([true, true]);
    expect((await readFile(join(folder, 'blob'))).equals(CONTENT)).toBe(true);
  });

  test('that does not come to its end fails with the error of the registry', async () => {
    const gate = Promise.reject(new Error('registry gone'));
    gate.catch(() => undefined);
    await expect(fetch(all, { gate })).rejects.toThrow('registry gone');
  });
});
