import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { mkdir } from 'node:fs/promises';
import { describe, expect, it, test } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { displayFields } from '../../test/fixtures/display.ts';
import {
  hasSeed,
  isIgnition,
  makeDocuments,
  seedDocuments,
  type SeedDocuments,
  seedPage,
  seedPages,
  userDataNotice,
  withoutByteOrderMark,
  writeSeedDocuments,
  writeSeedFiles,
} from './seed.ts';
import { makeFolder } from '../../test/support/folder.ts';

const KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGIFp8kYzcPkhAjLZMrgeG3WyGFIcpCSSmFuKNzyOmXd me@desk';
const FACTS = { host: 'rack1-7', cpu: 2, memoryBytes: 2 ** 32, userData: undefined };

function machine(change: Partial<Machine> = {}): Machine {
  return {
    vm: { namespace: 'ci', name: 'desk', uid: 'vm-uid' },
    image: { type: 'registry', reference: 'registry.example/debian:12' },
    ...displayFields(1920, 1080, 96),
    hardware: { uuid: 'hardware-uuid', serialNumber: 'BERTH00001', macAddress: '02:00:00:00:00:01' },
    guestMetadata: {},
    sshAuthorizedKeys: [],
    ...change,
  } as Machine;
}

function folder(): string {
  const path = makeFolder();
  return path;
}

describe('the documents of a guest', () => {
  it('name the machine by its hardware, and have the values of the start and of the VM', () => {
    const { metaData, userData, vendorData, values } = makeDocuments(
      machine({ guestMetadata: { team: 'a', name: 'forged' } }),
      FACTS,
    );
    expect(values).toEqual({
      team: 'a',
      id: 'vm-uid',
      name: 'desk',
      namespace: 'ci',
      host: 'rack1-7',
      image: 'registry.example/debian:12',
      cpu: '2',
      memory: '4Gi',
      display: '1920x1080@96',
    });
    const meta = { 'instance-id': 'hardware-uuid', 'local-hostname': 'desk', berth: values };
    expect(JSON.parse(metaData)).toEqual(meta);
    expect([userData, vendorData]).toEqual([undefined, undefined]);
  });

  it('allow keys for root too, unless user data says otherwise', () => {
    const { metaData, vendorData } = makeDocuments(machine({ sshAuthorizedKeys: [KEY] }), FACTS);
    expect(JSON.parse(metaData)).toMatchObject({ 'public-keys': [KEY] });
    expect(vendorData).toBe('#cloud-config\n{"disable_root":false}\n');
  });

  it('have no character that YAML refuses, and keep all values', () => {
    const value = '\u007f\u0085é😀\u2028\ufeff\uffff"\n\t';
    const { metaData } = makeDocuments(machine({ guestMetadata: { value } }), FACTS);
    expect(JSON.parse(metaData)).toMatchObject({ berth: { value } });
    // The characters of the rule c-printable of YAML 1.2, without the byte order mark, which begins a document.
    expect(metaData).toMatch(
      /^[\t\n\r -~\u0085\u00a0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\u{10000}-\u{10ffff}]*$/u,
    );
  });

  it('are read unchanged, and a damaged file counts as none', async () => {
    const path = folder();
    expect(await seedDocuments(path)).toBeUndefined();
    const documents = makeDocuments(machine(), { ...FACTS, userData: '#!/bin/sh\n' });
    await writeSeedDocuments(path, documents);
    expect(await seedDocuments(path)).toEqual(documents);
    writeFileSync(join(path, 'seed.json'), '{"userData": "secret');
    expect(await seedDocuments(path)).toBeUndefined();
  });
});

describe('the files of a seed', () => {
  it('can be read only by their owner', async () => {
    const path = folder();
    const documents = makeDocuments(machine(), { ...FACTS, userData: '{"ignition":{"version":"3.4.0"}}' });
    await writeSeedDocuments(path, documents);
    await writeSeedFiles(path, documents);
    const modes = readdirSync(path).map((name) => [
      name,
      (statSync(join(path, name)).mode & 0o777).toString(8),
    ]);
    expect(Object.fromEntries(modes)).toEqual({
      'seed.json': '600',
      'seed.iso': '600',
      'ignition.json': '600',
    });
  });

  it('have a file for Ignition while the user data is an Ignition config', async () => {
    const path = folder();
    const files = async (userData: string) =>
      await writeSeedFiles(path, makeDocuments(machine(), { ...FACTS, userData }));
    const config = '{"ignition":{"version":"3.4.0"}}';
    expect(await files(config)).toEqual({ disk: 'seed.iso', ignition: 'ignition.json' });
    expect(readFileSync(join(path, 'ignition.json'), 'utf8')).toBe(config);
    for (const other of ['#cloud-config\n{}\n', '{"ignition":{}}', '{"ignition":', 'null']) {
      expect(await files(other)).toEqual({ disk: 'seed.iso' });
      expect(readdirSync(path)).toEqual(['seed.iso']);
    }
  });

  it.each([
    ['a disk from an image', {}, true],
    ['an ISO alone', { image: undefined }, false],
    ['an ISO alone, and a key', { image: undefined, sshAuthorizedKeys: [KEY] }, true],
    ['an ISO alone, and a value', { image: undefined, guestMetadata: { a: '' } }, true],
    ['an ISO alone, and user data', { image: undefined, userData: 'x' }, true],
  ])('for a machine with %s', (_, change, expected) => {
    expect(hasSeed(machine(change as Partial<Machine>))).toBe(expected);
  });
});

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
  const machines = makeFolder();
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
});

const IGNITION = '{"ignition":{"version":"3.4.0"}}';

test.each([
  '#cloud-config\npackages: [git]\n',
  '#cloud-config\r\npackages: [git]\r\n',
  '#Cloud-Config\n',
  '#cloud-config-archive\n- content: x\n',
  '#cloud-config-jsonp\n[]',
  '#!/bin/sh\necho\n',
  '#!/bin/sh',
  '#include\nhttps://example.com\n',
  '#include-once https://example.com',
  '#cloud-boothook\n',
  '#part-handler\n',
  '## template: jinja\n#cloud-config\n',
  'Content-Type: multipart/mixed; boundary="x"\nMIME-Version: 1.0\n',
  'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="x"\n',
  'From nobody Mon Jan  1 00:00:00 2024\nContent-Type: multipart/mixed\nMIME-Version: 1.0\n',
  '#ps1_sysnative\r\nWrite-Host\r\n',
  '#ps1\n',
  'rem cmd\r\ndir\r\n',
  '<powershell>x</powershell>',
  IGNITION,
  ` \n${IGNITION}`,
])('the user data %j is read by guests', (userData) => {
  expect(userDataNotice(userData)).toBeUndefined();
});

test.each([
  ['\n#cloud-config\n', 'because it is empty: remove the empty lines before it'],
  ['\r\n\r\n#!/bin/sh\n', 'because it is empty: remove the empty lines before it'],
  ['  \n#cloud-config\n', 'because it is empty: remove the empty lines before it'],
  [' #cloud-config\n', 'because it begins with a space: remove it'],
  ['\t#!/bin/sh\n', 'because it begins with a space: remove it'],
  ['\u00A0#cloud-config\n', 'because it begins with a space: remove it'],
  ['\u200B#cloud-config\n', 'because it begins with a space: remove it'],
  ['\uFEFF\uFEFF#cloud-config\n', 'because it begins with a space: remove it'],
  ['# cloud-config\n', 'because there is a space after #: remove it'],
  ['#\0c\0l\0o\0u\0d\0-\0c\0o\0n\0f\0i\0g\0', 'because it is UTF-16: write it as UTF-8'],
  ['   \n \n', 'because it is empty'],
  [
    Buffer.from('#cloud-config\npackages: [git]\n').toString('base64'),
    'because it is base64: write the decoded text',
  ],
  ['packages: [git]\n', 'reads. cloud-init reads'],
  ['---\n#cloud-config\n', 'reads. cloud-init reads'],
  ['#cloudconfig\n', 'reads. cloud-init reads'],
  ['variant: fcos\nversion: 1.5.0\n', 'reads. cloud-init reads'],
  ['{"ignition":{}}', 'reads. cloud-init reads'],
  ['{"ignition":{"version":"3.4.0"}', 'reads. cloud-init reads'],
])('the user data %j may be ignored', (userData, message) => {
  const notice = userDataNotice(userData);
  expect(notice).toContain('Its first line is none that cloud-init or Ignition reads');
  expect(notice).toContain(message);
  expect(notice).not.toContain('packages');
});

test('a script whose first line ends with a carriage return is told', () => {
  expect(userDataNotice('#!/bin/sh\r\necho\r\n')).toContain('ends with a carriage return');
});

test('a byte order mark is removed, and its removal is told', () => {
  for (const text of ['#cloud-config\r\n', IGNITION]) {
    expect(withoutByteOrderMark(`\uFEFF${text}`)).toBe(text);
    expect(userDataNotice(`\uFEFF${text}`)).toBe('The byte order mark at its beginning was removed');
    expect(isIgnition(withoutByteOrderMark(`\uFEFF${text}`))).toBe(text === IGNITION);
  }
  expect(userDataNotice('\uFEFFpackages: [git]\n')).toMatch(
    /^The byte order mark .*removed\. Its first line is none/,
  );
});
