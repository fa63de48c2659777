import { mkdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it, test } from 'vitest';
import type { Desired, Machine } from '../../api/v1alpha1/machine.ts';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import { seedDocuments } from '../seed/seed.ts';
import type { PodHost } from './host.ts';
import { machinePlan, prepareSeed, prepareVnc } from './launch.ts';
import { newRecord, newRuntime, type MachineOperation, type Runtime } from './machine.ts';
import { userDataConditions } from './status.ts';
import { makeFolder } from '../../test/support/folder.ts';

const IMAGE_BYTES = 100;

/** Returns the planned size of the disk of a VM. `image` is its image. */
function plannedBytes(image: Machine['image'], diskSizeBytes: number | undefined): number | undefined {
  const machine = { image } as Machine;
  const claim = { slots: 0, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = newRecord({ uid: 'u', key: 'ns/vm', driver: 'qemu', machine, claim });
  const operation = { desired: { diskSizeBytes } as Desired } as MachineOperation;
  return machinePlan({} as PodHost, record, operation).guest.diskSizeBytes;
}

test.each([
  ['has the size of the image', undefined, IMAGE_BYTES],
  ['is not smaller than the image, like that of every other image', IMAGE_BYTES - 1, IMAGE_BYTES],
  ['can be larger than the image', IMAGE_BYTES + 1, IMAGE_BYTES + 1],
])('the disk of an empty image %s', (_, wanted, bytes) => {
  expect(plannedBytes({ type: 'empty', sizeBytes: IMAGE_BYTES }, wanted)).toBe(bytes);
});

test('the plan leaves the size of another image to the driver', () => {
  const image = { type: 'registry', reference: 'r' } as const;
  expect(plannedBytes(image, undefined)).toBeUndefined();
  expect(plannedBytes(image, 1)).toBe(1);
});

const SECRET = { name: 'first-boot', key: 'user-data' };
const CLAIM = { slots: 1, cpuMillis: 1000, memoryBytes: 2 ** 30, diskBytes: 0, ports: [] };

function runtimeOf(change: Partial<Machine>): Runtime {
  const directory = makeFolder();
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
  } as unknown as PodHost;
  const desired = { powerState: 'Running', restartPolicy: 'Never', cpu: 1, memoryBytes: 2 ** 28 };
  await prepareSeed(host, runtime, { pod: { spec: {} }, desired } as unknown as MachineOperation);
  expect(asked).toEqual(runtime.record.machine?.userDataSecretRef && [{ namespace: 'ci', ...SECRET }]);
  return (await seedDocuments(runtime.folder.path))?.userData;
}

function gone(): never {
  throw new ReasonedError('SecretNotFound', 'The host is waiting for the Secret');
}

describe('user data', () => {
  it('of a VM is in the documents of its guest', async () => {
    const host = { userData: gone } as unknown as PodHost;
    const runtime = runtimeOf({ userData: '#!/bin/sh\n' });
    const desired = { cpu: 1, memoryBytes: 2 ** 28 };
    const files = await prepareSeed(host, runtime, {
      pod: { spec: {} },
      desired,
    } as unknown as MachineOperation);
    expect(files).toEqual({ files: { disk: 'seed.iso' }, notice: undefined });
    expect((await seedDocuments(runtime.folder.path))?.userData).toBe('#!/bin/sh\n');
  });

  it('with a byte order mark loses it, from the VM and from a Secret, and what the guest may ignore is told', async () => {
    const host = { userData: async () => '\uFEFF\n#cloud-config\n' } as unknown as PodHost;
    for (const given of [{ userData: '\uFEFF\n#cloud-config\n' }, { userDataSecretRef: SECRET }]) {
      const runtime = runtimeOf(given);
      const operation = { pod: { spec: {} }, desired: { cpu: 1, memoryBytes: 2 ** 28 } };
      const { notice } = await prepareSeed(host, runtime, operation as unknown as MachineOperation);
      expect(notice).toMatch(/byte order mark .* removed\. Its first line is none .* empty lines/);
      expect((await seedDocuments(runtime.folder.path))?.userData).toBe('\n#cloud-config\n');
    }
  });

  it('from a Secret is read at each start; without the Secret the first start fails, and later ones use what was read', async () => {
    const runtime = runtimeOf({ userDataSecretRef: SECRET });
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
    ['is absent for a VM without user data', {}, running, undefined, []],
    ['is absent before the first try', { userData: 'x' }, {}, undefined, []],
    [
      'is False while the Secret is missing',
      { userDataSecretRef: SECRET },
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
    ['is True once the guest has it', { userData: 'x' }, running, undefined, ['True Delivered']],
    [
      'tells that the guest may ignore it',
      { userData: 'x' },
      { ...running, seedNotice: 'why' },
      undefined,
      ['True DeliveredWithNotice'],
    ],
  ])('%s', (_, machine, record, trouble, expected) => {
    const { record: made } = runtimeOf(machine);
    const conditions = userDataConditions({ record: { ...made, ...record }, trouble });
    expect(conditions.map(({ status, reason }) => `${status} ${reason}`)).toEqual(expected);
  });
});

test('the password stays in a file of the agent, so that the next start needs no Secret', async () => {
  const path = makeFolder();
  const machine = { vm: { namespace: 'platform-ci', name: 'desk', uid: 'vm-2' } } as Machine;
  const claim = { slots: 1, cpuMillis: 0, memoryBytes: 0, diskBytes: 0, ports: [] };
  const record = newRecord({ uid: 'pod', key: 'platform-ci/desk', driver: 'qemu', machine, claim });
  const folder = { uid: 'pod', path };
  const password = 'aB3-_x9z';
  const passwords = [password];
  const host = {
    forwardAddress: '192.0.2.1',
    vncPassword: async () => passwords.pop(),
  } as unknown as PodHost;
  expect(await prepareVnc(host, { record, folder })).toBeUndefined();
  record.automaticPorts = [{ protocol: 'TCP', hostPort: 6299, guestPort: 0, automatic: true }];
  const vnc = { address: '192.0.2.1', port: 6299, passwordFile: 'vnc.password' };
  expect(await prepareVnc(host, { record, folder })).toEqual(vnc);
  expect(await prepareVnc(host, { record, folder })).toEqual(vnc);
  const file = join(path, vnc.passwordFile);
  expect([readFileSync(file, 'utf8'), statSync(file).mode & 0o777]).toEqual([password, 0o600]);
});
