import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import {
  classOf,
  isOfHost,
  isReason,
  isSeen,
  REASONS,
  type Reason,
  reasonIn,
  ReasonedError,
  type ReasonEntry,
  saidReason,
  textsFor,
} from './reasons.ts';

const CATALOGUE = Object.entries(REASONS) as [Reason, ReasonEntry][];
const ROOT = join(import.meta.dirname, '..', '..');
const CONDITION_REASON = /^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$/;
/** Largest number of words in a sentence. Readers have to read longer sentences twice. */
const SENTENCE_LENGTH = 25;

describe('the catalogue of reasons', () => {
  it('has each word once', () => {
    const files = globSync('api/v1alpha1/reasons/*.ts', { cwd: ROOT });
    const written = files.flatMap(
      (file) => readFileSync(join(ROOT, file), 'utf8').match(/^ {2}\w+: \{/gm) ?? [],
    );
    expect(written.toSorted()).toEqual(CATALOGUE.map(([word]) => `  ${word}: {`).toSorted());
  });

  it('has only words that a condition may have', () => {
    expect(CATALOGUE.filter(([word]) => !CONDITION_REASON.test(word))).toEqual([]);
  });

  it('has no word that is not used', () => {
    const files = globSync('{operator,agent,runners,kube,api}/**/*.ts', { cwd: ROOT }).filter(
      (file) => !file.endsWith('.test.ts') && !file.includes('v1alpha1/reasons'),
    );
    const source = files.map((file) => readFileSync(join(ROOT, file), 'utf8')).join('\n');
    const own = CATALOGUE.filter(([, { by }]) => by !== 'Kubernetes');
    const unsaid = own.filter(
      ([word]) => !source.includes(`'${word}'`) && !new RegExp(`\\b${word}: `).test(source),
    );
    expect(unsaid.map(([word]) => word)).toEqual([]);
  });

  it('has the places of each word, and its meaning there', () => {
    const silent = CATALOGUE.filter(([word, { seen }]) => {
      const kinds = Object.keys(seen) as (keyof typeof seen)[];
      const judged = kinds.filter((kind) => kind !== 'Pod' && kind !== 'ImageCacheEntry');
      const isEmpty = kinds.length === 0 || kinds.some((kind) => seen[kind]?.length === 0);
      return isEmpty || judged.some((kind) => classOf(word, kind) === undefined);
    });
    expect(silent).toEqual([]);
  });

  it('has no sentence of Emulators for VMs, and none of VMs that names both kinds', () => {
    const texts = CATALOGUE.filter(([, { seen }]) => seen.VM !== undefined).map(([word]) =>
      textsFor(word, 'VM'),
    );
    const all = texts.flatMap(({ says, todo = '' }) => [says, todo]);
    expect(all.filter((text) => /\b(?:an|the|The|or) Emulators?\b|emulator:|\bADB\b/.test(text))).toEqual([]);
  });

  it.each(CATALOGUE)('%s has short sentences', (_, { says, todo, class: known }) => {
    for (const sentence of [says, todo].filter((one) => one !== undefined)) {
      expect(sentence).toMatch(/^[A-Z].*[^.!]$/);
      expect(sentence.split(/\s+/).length).toBeLessThanOrEqual(SENTENCE_LENGTH);
    }
    expect(todo !== undefined || known === 'state' || known === 'passing').toBe(true);
  });
});

describe('the meaning of a reason', () => {
  it('depends on the kind at which it is seen', () => {
    expect([classOf('ImageNotFound', 'VM'), classOf('ImageNotFound', 'Image')]).toEqual(['final', 'passing']);
    expect(classOf('ImageInvalid', 'Image')).toBe('final');
    // A VMSnapshot shows one moment. Work for an Image is done again.
    for (const word of ['DiskFull', 'MemoryNotSaved'] as const) {
      expect([classOf(word, 'VMSnapshot'), classOf(word, 'Image')]).toEqual(['final', 'passing']);
    }
    expect(classOf('Unheard', 'VM')).toBeUndefined();
    expect([classOf('DiskLost', 'VM'), classOf('DiskLost', 'Image')]).toEqual(['final', undefined]);
  });

  it('distinguishes faults of a host from faults of a machine', () => {
    expect((['PortTaken', 'OutOfMemory', 'NATSelfHealFailed'] as const).map(isOfHost)).toEqual([
      true,
      true,
      true,
    ]);
    expect((['DiskInvalid', 'ImageFetchFailed'] as const).map(isOfHost)).toEqual([false, false]);
  });

  it('includes the places where a word is seen', () => {
    expect([isSeen('DiskFull', 'VM', 'ImageReady'), isSeen('StartFailed', 'VM', 'ImageReady')]).toEqual([
      true,
      false,
    ]);
    expect(isSeen('Unheard', 'VM', 'ImageReady')).toBe(false);
  });
});

describe('a word of another version', () => {
  it('is used unchanged', () => {
    expect([isReason('FromTheFuture'), saidReason('FromTheFuture', 'MachineFailed')]).toEqual([
      false,
      'FromTheFuture',
    ]);
  });

  it.each([undefined, '', 'not one word', 'Ends-with-', '9', 'ä', 'A'.repeat(129), 'constructor '])(
    '"%s" gives way, because no condition may have it',
    (word) => expect(saidReason(word, 'MachineFailed')).toBe('MachineFailed'),
  );

  it('in an error is not one of ours', () => {
    expect(reasonIn(Object.assign(new Error('away'), { reason: 'ServiceUnavailable' }))).toBeUndefined();
    expect(reasonIn(Object.assign(new Error('odd'), { reason: 'constructor' }))).toBeUndefined();
    expect(reasonIn(new ReasonedError('DiskFull', 'no room'))).toBe('DiskFull');
  });
});
