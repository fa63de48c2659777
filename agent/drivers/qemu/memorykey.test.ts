import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { machineDocument } from '../../../test/fixtures/machines.ts';
import type { VmLaunchPlan } from '../driver.ts';
import { memoryKey, requireSafe, requireSame } from './memorykey.ts';
import type { GuestPlatform } from './platform.ts';
import type { MachineFile } from './state.ts';
import { startedWith } from './displaycard.ts';

const VM = { namespace: 'team', name: 'guest', uid: 'b5c8f1de-0000-4000-8000-000000000001' };
const MEMORY = { ram: 'ram', state: 'state', cpu: 1, memoryBytes: 2 ** 28, savedAt: '2026-11-30T00:00:00Z' };

let folder: string;
let platform: GuestPlatform;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-key-'));
  await writeFile(join(folder, 'code.fd'), 'firmware');
  await writeFile(join(folder, 'other.fd'), 'newer firmware');
  platform = {
    architecture: 'amd64',
    binary: 'qemu',
    machineType: 'pc-q35-7.2',
    accelerator: 'tcg',
    firmware: { code: join(folder, 'code.fd'), variables: '' },
    display: { virtioVga: true, dbus: false, vncMaximum: { width: 1, height: 1 } },
    runWith: false,
    version: '7.2.22',
    readOnlyMemory: false,
  };
});

afterAll(async () => await rm(folder, { recursive: true }));

function planOf(change: Partial<VmLaunchPlan> = {}): VmLaunchPlan {
  const macAddress = '02:00:00:00:00:01';
  return {
    guest: { vm: machineDocument(VM, {}), diskSizeBytes: undefined, iso: undefined },
    cpu: 1,
    memoryBytes: 2 ** 28,
    network: { kind: 'user', macAddress, address: undefined, hostAddress: '127.0.0.1', ports: [] },
    seed: { disk: 'seed.iso' },
    ...change,
  };
}

const STATE = {
  version: 1,
  architecture: 'amd64',
  machineType: 'pc-q35-7.2',
  diskBytes: 2 ** 30,
  generation: '7e57ab1e-0000-4000-8000-000000000001',
  intent: 'stop',
  live: false,
  suspended: false,
} satisfies MachineFile;

async function keyOf(): Promise<string> {
  const plan = planOf();
  const state = { ...STATE, launched: startedWith(plan, platform) };
  const sizes = { cpu: plan.cpu, memoryBytes: plan.memoryBytes };
  return await memoryKey({ uid: 'u', plan, state, platform, runAs: undefined, incoming: false, ...sizes });
}

interface Change {
  plan?: Partial<VmLaunchPlan>;
  state?: Partial<MachineFile>;
  on?: Partial<GuestPlatform>;
}

/** Compares a machine with a change with the memory of the machine without it. Returns the message of the refusal, if any. */
async function refusal({ plan, state, on }: Change): Promise<string | undefined> {
  const memory = { ...MEMORY, key: await keyOf() };
  const start = {
    uid: 'other',
    plan: planOf(plan),
    state: { ...STATE, ...state },
    platform: { ...platform, ...on },
    source: 'image' as const,
  };
  return await requireSame(start, memory).then(
    () => undefined,
    (error: unknown) => (error as Error).message,
  );
}

it.each<[string, () => Change]>([
  ['version of the hypervisor', () => ({ on: { version: '10.0.2' } })],
  ['machine type', () => ({ state: { machineType: 'pc-q35-8.2' } })],
  ['accelerator', () => ({ on: { accelerator: 'kvm' } })],
  ['processor', () => ({ on: { architecture: 'arm64' } })],
  ['firmware', () => ({ on: { firmware: { code: join(folder, 'other.fd'), variables: '' } } })],
  ['size of the disk', () => ({ state: { diskBytes: 2 ** 31 } })],
  ['list of devices', () => ({ plan: { seed: undefined } })],
  ['list of devices', () => ({ state: { generation: undefined } })],
  [
    'list of devices',
    () => {
      const { guest } = planOf();
      return { plan: { guest: { ...guest, vm: { ...guest.vm, vnc: { enabled: true } } } } };
    },
  ],
  [
    'kind of the network',
    () => {
      const { network } = planOf();
      return { plan: { network: { ...network, kind: 'tap', device: 'tap0' } } };
    },
  ],
])('a machine that differs in its %s does not start from the memory', async (part, change) => {
  expect(await refusal(change())).toContain(`The ${part} differs`);
});

it('a machine with another name, address, seed and generation ID starts from the memory', async () => {
  const { guest, network } = planOf();
  const vm = machineDocument({ ...VM, name: 'other' }, {});
  const change: Change = {
    plan: {
      guest: { ...guest, vm: { ...vm, hardware: { ...vm.hardware, macAddress: '02:00:00:00:00:02' } } },
      network: { ...network, macAddress: '02:00:00:00:00:02' },
      seed: { disk: 'other.iso' },
    },
    state: { generation: '7e57ab1e-0000-4000-8000-000000000002' },
  };
  expect(await refusal(change)).toBeUndefined();
});

it.each([
  [
    { cpu: 2 },
    'The image was saved with 1 CPUs and 256Mi of memory, but the VM has 2 CPUs and 256Mi of memory',
  ],
  [{ memoryBytes: 2 ** 29 }, 'but the VM has 1 CPUs and 512Mi of memory'],
])('a machine of another size does not start from the memory: %o', async (plan, message) => {
  expect(await refusal({ plan })).toContain(message);
});

it('an old QEMU, which can write to the memory, gets no memory of several namespaces', () => {
  const memory = { ...MEMORY, key: '', isShared: true };
  expect(() => requireSafe(platform, memory, false)).toThrow('VMs of several namespaces use the image');
  expect(() => requireSafe(platform, { ...memory, isShared: false }, true)).toThrow('runs in a container');
  expect(() => requireSafe({ ...platform, readOnlyMemory: true }, memory, true)).not.toThrow();
  expect(() => requireSafe(platform, { ...memory, isShared: false }, false)).not.toThrow();
});
