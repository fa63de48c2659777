import { expect, it } from 'vitest';
import type { Machine } from '../../../api/v1alpha1/machine.ts';
import type { GuestNetwork } from '../../network/network.ts';
import type { VmLaunchPlan } from '../driver.ts';
import { commandLine } from './arguments.ts';
import { resumedWith, startedWith } from './displaycard.ts';
import type { GuestPlatform } from './platform.ts';
import type { MachineFile } from './state.ts';

const SEED = { disk: 'seed.iso', ignition: 'ignition.json' };
const DEVICE = ['-device', 'virtio-blk-pci,drive=seed'];

const PLATFORM = {
  architecture: 'amd64',
  binary: 'qemu',
  machineType: 'pc-q35-7.2',
  accelerator: 'tcg',
  display: {},
} as GuestPlatform;

function plan(seed: VmLaunchPlan['seed']): VmLaunchPlan {
  const hardware = { uuid: 'uuid', serialNumber: 'B1', macAddress: '02:00:00:00:00:01' };
  const vm = { hardware, vnc: { enabled: false } } as Machine;
  const { macAddress } = hardware;
  const network: GuestNetwork = {
    kind: 'user',
    macAddress,
    address: undefined,
    hostAddress: '127.0.0.1',
    ports: [],
  };
  return {
    guest: { vm, diskSizeBytes: undefined, iso: undefined },
    cpu: 1,
    memoryBytes: 2 ** 28,
    network,
    seed,
  };
}

/** Returns the arguments of QEMU for a machine whose last start has these values. */
function argumentsOf(
  launched: MachineFile['launched'],
  seed: VmLaunchPlan['seed'],
  incoming = false,
): string[] {
  const state: MachineFile = {
    version: 1,
    architecture: 'amd64',
    machineType: PLATFORM.machineType,
    diskBytes: 1,
    launched,
    intent: 'run',
    live: true,
    suspended: incoming,
  };
  const sizes = { cpu: 1, memoryBytes: 2 ** 28, runAs: undefined };
  return commandLine({ uid: 'u', plan: plan(seed), state, platform: PLATFORM, incoming, ...sizes });
}

it('a guest cannot sleep, because no user could wake it', () => {
  const started = argumentsOf(startedWith(plan(undefined), PLATFORM), undefined);
  expect(started.join(' ')).toContain('-global ICH9-LPC.disable_s3=1');
});

it.each([
  ['BIOS boots as it does by default', undefined, 'strict=on'],
  [
    'UEFI waits for no key',
    { code: 'code.fd', variables: 'variables.fd' },
    'strict=on,menu=on,splash-time=0',
  ],
])('%s', (_, firmware, expected) => {
  const state = { version: 1, intent: 'run', live: true, suspended: false } as MachineFile;
  const platform = { ...PLATFORM, firmware };
  const sizes = { cpu: 1, memoryBytes: 2 ** 28, runAs: undefined };
  const started = commandLine({
    uid: 'u',
    plan: plan(undefined),
    state,
    platform,
    incoming: false,
    ...sizes,
  });
  expect(started[started.indexOf('-boot') + 1]).toBe(expected);
});

it('a core dump of QEMU does not contain the memory of the guest', () => {
  const started = argumentsOf(startedWith(plan(undefined), PLATFORM), undefined);
  expect(started[started.indexOf('-machine') + 1]).toBe('pc-q35-7.2,accel=tcg,dump-guest-core=off');
});

it.each([
  [false, '-runas 7:8'],
  [true, '-run-with user=7:8'],
])('QEMU leaves the rights of root by the option that it has: %s', (runWith, expected) => {
  const state = { version: 1, intent: 'run', live: true, suspended: false } as MachineFile;
  const platform = { ...PLATFORM, runWith };
  const command = { uid: 'u', plan: plan(undefined), state, platform, incoming: false };
  const sizes = { cpu: 1, memoryBytes: 2 ** 28 };
  const started = commandLine({ ...command, ...sizes, runAs: { uid: 7, gid: 8 } }).join(' ');
  expect(started).toContain(`elevateprivileges=allow,spawn=deny,resourcecontrol=deny ${expected} `);
  const asAgent = commandLine({ ...command, ...sizes, runAs: undefined }).join(' ');
  expect(asAgent).not.toMatch(/-runas|-run-with/);
});

it('the seed disk is the last device and only for reading, so all others have the same addresses with and without it', () => {
  const without = argumentsOf(startedWith(plan(undefined), PLATFORM), undefined);
  const seeded = argumentsOf(startedWith(plan(SEED), PLATFORM), SEED);
  expect(seeded.slice(0, without.length)).toEqual(without);
  const [, node = '', ...rest] = seeded.slice(without.length);
  expect(JSON.parse(node)).toMatchObject({ 'read-only': true, file: { filename: 'seed.iso' } });
  expect(rest).toEqual([...DEVICE, '-fw_cfg', 'name=opt/com.coreos/config,file=ignition.json']);
});

it('a resumed machine has the seed of its start, or none if it was started without one', () => {
  const resumed = (started: VmLaunchPlan['seed'], now: VmLaunchPlan['seed']): string[] => {
    const launched = resumedWith(startedWith(plan(started), PLATFORM), plan(now), PLATFORM);
    return argumentsOf(launched, now, true);
  };
  expect(resumed({ disk: 'seed.iso' }, undefined)).toEqual(expect.arrayContaining(DEVICE));
  expect(resumed(undefined, SEED).join(' ')).not.toContain('seed');
});

it.each([
  ['raw', { driver: 'raw' }],
  ['qcow2', { driver: 'qcow2', backing: null }],
] as const)('an ISO is read in its format, and names no other file: %s', (format, node) => {
  const { guest, ...rest } = plan(undefined);
  const withIso = { ...rest, guest: { ...guest, iso: { path: '/store/iso', format } } };
  const state = { version: 1, intent: 'run', live: true, suspended: false } as MachineFile;
  const sizes = { cpu: 1, memoryBytes: 2 ** 28, runAs: undefined };
  const all = commandLine({ uid: 'u', plan: withIso, state, platform: PLATFORM, incoming: false, ...sizes });
  const found = all.find((one) => one.includes('"iso"')) ?? '{}';
  const read = { 'read-only': true, file: { driver: 'file', filename: '/store/iso' } };
  expect(JSON.parse(found)).toMatchObject({ 'node-name': 'iso', ...read, ...node });
  expect(all.find((one) => one.includes('drive=iso'))).toMatch(/,bootindex=1$/);
});

it('a disk and its layers keep no space for what the guest frees, also when layers are merged', () => {
  const layers = [
    { id: 'a', file: 'a.qcow2', diskBytes: 1 },
    { id: 'b', file: 'b.qcow2', diskBytes: 1, parent: 'a' },
  ];
  const node = { driver: 'qcow2', discard: 'unmap', 'detect-zeroes': 'unmap' };
  const layer = (id: string, backing: unknown): object => ({
    ...node,
    'node-name': `layer-${id}`,
    'read-only': true,
    file: { driver: 'file', filename: `${id}.qcow2` },
    backing,
  });
  const state = { version: 1, diskBytes: 1, parent: 'b', layers } as unknown as MachineFile;
  const sizes = { cpu: 1, memoryBytes: 2 ** 28, runAs: undefined };
  const command = { plan: plan(undefined), state, platform: PLATFORM, incoming: false, ...sizes };
  const found = commandLine({ uid: 'u', ...command }).find((one) => one.includes('"node-name":"disk"'));
  expect(JSON.parse(found ?? '{}')).toMatchObject({ ...node, backing: layer('b', layer('a', null)) });
});

it.each([true, false])(
  'a machine from memory has nothing that could give back parts of the file: %s',
  (isShared) => {
    const state = { version: 1, intent: 'run', live: true, suspended: false } as MachineFile;
    const sizes = { cpu: 1, memoryBytes: 2 ** 28, runAs: undefined };
    const memory = { path: '/images/ram', isShared };
    const all = { plan: plan(undefined), state, platform: PLATFORM, incoming: true, memory, ...sizes };
    const text = commandLine({ uid: 'u', ...all }).join(' ');
    expect(text).toContain(`mem-path=/images/ram,share=${isShared ? 'on' : 'off'}`);
    expect(text).not.toMatch(/balloon|virtio-mem|virtio-pmem|free-page/);
  },
);
