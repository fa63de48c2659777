import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { type SeedDocuments, seedPage, seedPages, writeSeedDocuments } from './documents.ts';

const SEED: SeedDocuments = {
  userData: '#cloud-config\n{}',
  metaData: '{"instance-id":"i-1"}',
  vendorData: '#cloud-config\n{"ssh_authorized_keys":[]}',
  values: { name: 'desk', id: 'i-1', 'team.example_com-x': 'a\nb' },
};

test.each([
  ['/user-data', SEED.userData],
  ['/meta-data', SEED.metaData],
  ['/vendor-data', SEED.vendorData],
  ['/metadata/', 'id\nname\nteam.example_com-x\n'],
  ['/metadata/name', 'desk'],
  ['/metadata/team.example_com-x', 'a\nb'],
])('the page %s has exactly the text of the seed', (path, text) => {
  expect(seedPage(SEED, path)).toBe(text);
});

test.each([
  '/',
  '/metadata',
  '/metadata/other',
  '/metadata/name/',
  '/metadata//name',
  '/metadata/__proto__',
  '/metadata/constructor',
  '/network-config',
  '/seed.json',
  '/user-data/',
])('there is no page %s', (path) => {
  expect(seedPage(SEED, path)).toBeUndefined();
});

test('a guest without user data gets empty files, because cloud-init requires them', () => {
  const { metaData, values } = SEED;
  expect(seedPage({ metaData, values }, '/user-data')).toBe('');
  expect(seedPage({ metaData, values }, '/vendor-data')).toBe('');
});

test('pages are those of the machine with the uid, and a machine without a seed has none', async () => {
  const machines = await mkdtemp(join(tmpdir(), 'berth-seed-'));
  try {
    for (const uid of ['a', 'b']) {
      await mkdir(join(machines, uid));
      await writeSeedDocuments(join(machines, uid), { ...SEED, values: { name: `desk-${uid}` } });
    }
    await mkdir(join(machines, 'c'));
    const page = seedPages(machines);
    expect(await page('a', '/metadata/name')).toBe('desk-a');
    expect(await page('b', '/metadata/name')).toBe('desk-b');
    expect(await page('c', '/user-data')).toBeUndefined();
    expect(await page('unknown', '/user-data')).toBeUndefined();
  } finally {
    await rm(machines, { recursive: true });
  }
});
