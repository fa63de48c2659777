import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setImmediate as immediate } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { parseReference, type Reference } from '../../../api/v1alpha1/reference.ts';
import { CHUNK_TABLE, writeChunkTable } from '../layouts/chunks.ts';
import { planPull } from '../layouts/index.ts';
import type { ContentLookup, PullPlan } from '../layouts/pull.ts';
import type { ImageRequest, CatalogEntry } from '../local/catalog.ts';
import type { Import } from '../local/importing.ts';
import { manifestId } from '../local/layout.ts';
import { RegistryImage, type RegistryParts } from './registry.ts';
import { makeFolder } from '../../../test/support/folder.ts';

vi.mock('../layouts/index.ts');

const ORIGINS = 64;
const DIGEST = `sha256:${'1'.repeat(64)}`;
const { signal } = new AbortController();

describe('the search for content in images of this host', () => {
  let folder: string;
  /** Answers to the question whether everybody has the right to use the image, by registry. */
  let asked: Map<string, PromiseWithResolvers<boolean>>;
  let found: () => ReturnType<ContentLookup>;
  let pulling: Promise<unknown>;
  const warn = vi.fn<(fields: object, text: string) => void>();
  const onResolved = vi.fn<(digest: string) => void>();

  beforeEach(async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    folder = makeFolder();
    const chunk = { offset: 0, length: 512, rawDigest: 'sha256:raw', digest: 'sha256:packed', size: 9 };
    await writeChunkTable({ folder, disk: join(folder, 'disk') }, [chunk]);
    asked = new Map();
    warn.mockReset();
    onResolved.mockReset();
    pulling = pull();
    await immediate();
    expect(asked.size).toBe(ORIGINS);
  });

  afterEach(async () => {
    vi.useRealTimers();
  });

  function stored(registries: readonly string[]): CatalogEntry {
    const repositories = registries.map((host) => ({ name: `${host}/team/image`, open: true, digests: [] }));
    const metadata = { digest: DIGEST, architecture: 'amd64', repositories };
    return { id: 'sha256/1', metadata, usedAt: 0 } as unknown as CatalogEntry;
  }

  async function pull(): Promise<void> {
    const plan = { downloadBytes: 0, run: vi.fn<PullPlan['run']>() };
    vi.mocked(planPull).mockResolvedValue(plan as unknown as PullPlan);
    const target = { folder, disk: join(folder, 'disk') };
    const here = stored(Array.from({ length: ORIGINS }, (_, index) => `r${index}.example`));
    const parts = {
      holders: {
        during: async (_holder: string, _id: string, work: () => Promise<CatalogEntry>) => await work(),
      },
      catalog: {
        get: () => undefined,
        all: () => [here],
        baseOf: () => ({ path: target.disk }),
        byPath: () => here,
        save: () => Promise.resolve(),
      },
      importing: {
        ensure: async (_key: string, _: unknown, planned: (signal: AbortSignal) => Promise<Import>) => {
          await (await planned(signal)).run(target, { signal, need: () => Promise.resolve() });
          return stored([]);
        },
      },
      access: {
        ask: async () => ({
          answer: { digest: 'sha256:2', tagDigest: 'sha256:index' },
          credential: undefined,
        }),
        isStillOpen: async ({ registry }: Reference) => {
          const answer = Promise.withResolvers<boolean>();
          asked.set(registry, answer);
          return await answer.promise;
        },
      },
      logger: { warn },
    } as unknown as RegistryParts;
    const request = { refresh: true, architecture: 'amd64', signal, onResolved } as unknown as ImageRequest;
    await new RegistryImage(parts, parseReference('own.example/team/other:1'), request, false).ensure();
    found = () => plan.run.mock.calls[0]?.[1].lookup?.({ rawDigest: 'sha256:raw', length: 512 });
  }

  it('asks all origins of an image at the same time, and ends with the first open one', async () => {
    asked.get('r7.example')?.resolve(false);
    asked.get(`r${ORIGINS - 1}.example`)?.resolve(true);
    await pulling;
    expect(found()).toEqual({ path: join(folder, 'disk'), offset: 0 });
  });

  it('does not delay the digest that the tag names', async () => {
    expect(onResolved.mock.calls).toEqual([['own.example/team/other@sha256:index']]);
    for (const answer of asked.values()) {
      answer.resolve(false);
    }
    await pulling;
  });

  it('ends with the last answer when no origin is open', async () => {
    for (const answer of asked.values()) {
      answer.resolve(false);
    }
    await pulling;
    expect(found()).toBeUndefined();
  });

  it('pulls without the content of an image that is removed during the check', async () => {
    await rm(join(folder, CHUNK_TABLE));
    asked.get('r7.example')?.resolve(true);
    await pulling;
    expect(found()).toBeUndefined();
    expect(warn).not.toHaveBeenCalled();
  });

  it('pulls without the content of an image whose chunk table cannot be read, and logs its folder', async () => {
    await writeFile(join(folder, CHUNK_TABLE), '{"chunks":[{}]}');
    asked.get('r7.example')?.resolve(true);
    await pulling;
    expect(found()).toBeUndefined();
    expect(warn.mock.calls).toEqual([[expect.objectContaining({ folder }), expect.any(String)]]);
  });

  it('waits 5 s for answers; later answers and failures have no effect', async () => {
    let isDone = false;
    const waiting = (async () => {
      await pulling;
      isDone = true;
    })();
    await vi.advanceTimersByTimeAsync(4_500);
    expect(isDone).toBe(false);
    await vi.advanceTimersByTimeAsync(500);
    await waiting;
    for (const [registry, answer] of asked) {
      if (registry === 'r0.example') {
        answer.resolve(true);
      } else {
        answer.reject(new Error('no longer wanted'));
      }
    }
    await immediate();
    expect(found()).toBeUndefined();
  });
});

describe('the memory of an image', () => {
  const memory = { cpu: 2, memoryBytes: 4096, key: 'b'.repeat(64), savedAt: '2026-11-30T06:00:00Z' };
  const PINNED = `own.example/team/image@${DIGEST}`;

  /** Asks for the image. `here` is the image of that name on this host. Returns the import, or undefined if `here` was given. */
  async function asked(reference: string, trusted: boolean, here?: object): Promise<Import | undefined> {
    vi.mocked(planPull)
      .mockReset()
      .mockResolvedValue({ memory } as unknown as PullPlan);
    let begun: Import | undefined;
    const repositories = [{ name: 'own.example/team/image', open: false, digests: [DIGEST] }];
    const entry = (own: object): CatalogEntry =>
      ({
        id: 'sha256/1',
        metadata: { architecture: 'amd64', repositories, ...own },
      }) as unknown as CatalogEntry;
    const present = here === undefined ? [] : [entry(here)];
    const parts = {
      holders: {
        during: async (_holder: string, _id: string, work: () => Promise<CatalogEntry>) => await work(),
      },
      catalog: {
        get: () => undefined,
        all: () => present,
        byName: () => present[0],
        baseOf: () => ({ path: '/none/disk' }),
        save: async () => undefined,
      },
      importing: {
        ensure: async (_key: string, _: unknown, planned: (signal: AbortSignal) => Promise<Import>) => {
          begun = await planned(signal);
          return entry({});
        },
      },
      access: {
        isKnown: () => true,
        ask: async () => ({ answer: { digest: DIGEST, tagDigest: DIGEST }, credential: {} }),
      },
    } as unknown as RegistryParts;
    const request = { architecture: 'amd64', signal } as unknown as ImageRequest;
    await new RegistryImage(parts, parseReference(reference), request, trusted).ensure();
    return begun;
  }

  it.each([
    ['is fetched from the image storage', PINNED, true, { memory }],
    [
      'is not fetched if the image storage could give any content',
      'own.example/team/image:1',
      true,
      undefined,
    ],
    ['is not fetched from another registry', PINNED, false, undefined],
  ])('%s', async (_, reference, trusted, fetched) => {
    const begun = await asked(reference, trusted);
    expect(begun?.metadata).toMatchObject(fetched ?? { untrustedMemory: true });
    const withMemory = fetched !== undefined;
    expect(vi.mocked(planPull).mock.calls[0]?.[3]).toEqual({ withMemory });
    expect(begun?.id === manifestId(DIGEST)).toBe(!withMemory);
  });

  it('is not missing because an earlier request got only the disk, and is no gift to a request for the disk', async () => {
    expect(await asked(PINNED, true, { untrustedMemory: true })).toBeDefined();
    expect(await asked(PINNED, true, { memory })).toBeUndefined();
    expect(await asked(PINNED, false, { memory })).toBeDefined();
    expect(await asked(PINNED, false, { untrustedMemory: true })).toBeUndefined();
  });
});
