import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { seedDocuments } from '../seed/documents.ts';
import type { Host } from './host.ts';
import { newRecord, newRuntime, type Operation, type Runtime } from './machine.ts';
import { prepareSeed, userDataConditions } from './seed.ts';

const SECRET = { name: 'first-boot', key: 'user-data' };
const CLAIM = { slots: 1, cpuMillis: 1000, memoryBytes: 2 ** 30, diskBytes: 0, ports: [] };

function runtimeOf(change: Partial<Machine>): Runtime {
  const directory = mkdtempSync(join(tmpdir(), 'berth-seed-'));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  const machine = {
    vm: { namespace: 'ci', name: 'desk', uid: 'vm' },
    image: { type: 'registry', reference: 'registry.example/debian:12' },
    hardware: { uuid: 'uuid' },
    guestMetadata: {},
    sshAuthorizedKeys: [],
    ...change,
  } as unknown as Machine;
  mkdirSync(join(directory, 'pod'));
  return newRuntime(
    newRecord({ uid: 'pod', key: 'ci/desk', driver: 'qemu', machine, claim: CLAIM }),
    directory,
  );
}

/** Prepares one start, for which the Secret has this value, and returns the user data of the guest. */
async function start(runtime: Runtime, secret: () => string): Promise<string | undefined> {
  const asked: unknown[] = [];
  const host = {
    userData: async (ref: unknown) => {
      asked.push(ref);
      return secret();
    },
  } as unknown as Host;
  const desired = { power: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 2 ** 28 };
  await prepareSeed(host, runtime, { pod: { spec: {} }, desired } as unknown as Operation);
  expect(asked).toEqual(runtime.record.machine?.userDataSecret && [{ namespace: 'ci', ...SECRET }]);
  return (await seedDocuments(runtime.folder.path))?.userData;
}

function gone(): never {
  throw new ReasonedError('SecretNotFound', 'The host is waiting for the Secret');
}

describe('user data', () => {
  it('of a VM is in the documents of its guest', async () => {
    const host = { userData: gone } as unknown as Host;
    const runtime = runtimeOf({ userData: '#!/bin/sh\n' });
    const desired = { cpu: 1, memoryBytes: 2 ** 28 };
    const files = await prepareSeed(host, runtime, { pod: { spec: {} }, desired } as unknown as Operation);
    expect(files).toEqual({ files: { disk: 'seed.iso' }, notice: undefined });
    expect((await seedDocuments(runtime.folder.path))?.userData).toBe('#!/bin/sh\n');
  });

  it('with a byte order mark loses it, from the VM and from a Secret, and what the guest may ignore is told', async () => {
    const host = { userData: async () => '\uFEFF\n#cloud-config\n' } as unknown as Host;
    for (const given of [{ userData: '\uFEFF\n#cloud-config\n' }, { userDataSecret: SECRET }]) {
      const runtime = runtimeOf(given);
      const operation = { pod: { spec: {} }, desired: { cpu: 1, memoryBytes: 2 ** 28 } };
      const { notice } = await prepareSeed(host, runtime, operation as unknown as Operation);
      expect(notice).toMatch(/byte order mark .* removed\. Its first line is none .* empty lines/);
      expect((await seedDocuments(runtime.folder.path))?.userData).toBe('\n#cloud-config\n');
    }
  });

  it('from a Secret is read at each start; without the Secret the first start fails, and later ones use what was read', async () => {
    const runtime = runtimeOf({ userDataSecret: SECRET });
    await expect(start(runtime, gone)).rejects.toMatchObject({ reason: 'SecretNotFound' });
    expect(await seedDocuments(runtime.folder.path)).toBeUndefined();
    expect(await start(runtime, () => 'first')).toBe('first');
    expect(await start(runtime, () => 'second')).toBe('second');
    expect(await start(runtime, gone)).toBe('second');
  });
});

describe('the condition of user data', () => {
  const trouble = { reason: 'SecretNotFound', message: 'The host waits' } as const;
  const running = { startedWith: { cpu: 1, memoryBytes: 1 } };

  it.each([
    ['is absent for a VM without user data', {}, { ...running, seeded: true }, undefined, []],
    ['is absent before the first try', { userData: 'x' }, {}, undefined, []],
    [
      'is False while the Secret is missing',
      { userDataSecret: SECRET },
      { created: true },
      trouble,
      ['False SecretNotFound'],
    ],
    [
      'is absent while another Secret cannot be read, before the machine has a disk',
      { userData: 'x' },
      {},
      { ...trouble, reason: 'SecretNotRead' as const },
      [],
    ],
    [
      'is absent for another trouble',
      { userData: 'x' },
      { created: true },
      { ...trouble, reason: 'PortTaken' as const },
      [],
    ],
    [
      'is True once the guest has it',
      { userData: 'x' },
      { ...running, seeded: true },
      undefined,
      ['True Delivered'],
    ],
    [
      'tells that the guest may ignore it',
      { userData: 'x' },
      { ...running, seeded: true, seedNotice: 'why' },
      undefined,
      ['True DeliveredWithNotice'],
    ],
    ['is absent if an earlier agent started the machine', { userData: 'x' }, running, undefined, []],
  ])('%s', (_, machine, record, trouble, expected) => {
    const { record: made } = runtimeOf(machine);
    const conditions = userDataConditions({ record: { ...made, ...record }, trouble });
    expect(conditions.map(({ status, reason }) => `${status} ${reason}`)).toEqual(expected);
  });
});
