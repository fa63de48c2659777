import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { makeDocuments, seedDocuments, writeSeedDocuments } from './documents.ts';
import { hasSeed, writeSeedFiles } from './files.ts';

const KEY = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGIFp8kYzcPkhAjLZMrgeG3WyGFIcpCSSmFuKNzyOmXd me@desk';
const FACTS = { host: 'rack1-7', cpu: 2, memoryBytes: 2 ** 32, userData: undefined };

function machine(change: Partial<Machine> = {}): Machine {
  return {
    vm: { namespace: 'ci', name: 'desk', uid: 'vm-uid' },
    image: { type: 'registry', reference: 'registry.example/debian:12' },
    displayWidth: 1920,
    displayHeight: 1080,
    displayDPI: 96,
    hardware: { uuid: 'hardware-uuid', serialNumber: 'BERTH00001', macAddress: '02:00:00:00:00:01' },
    guestMetadata: {},
    sshAuthorizedKeys: [],
    ...change,
  } as Machine;
}

function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'berth-seed-'));
  onTestFinished(() => rmSync(path, { recursive: true }));
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
