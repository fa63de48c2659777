import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, test, vi } from 'vitest';
import type { Machine } from '../../../api/v1alpha1/machine.ts';
import { segmentName } from '../../console/logwriter.ts';
import type { MachineCgroups } from '../../processes/cgroup.ts';
import type { VmLaunchPlan } from '../driver.ts';
import { launch, startErrorOf } from '../machineprocess.ts';
import { resumedWith, startedWith } from './displaycard.ts';
import { hypervisorLog, launchMachine, START_REASONS } from './launch.ts';
import type { GuestPlatform } from './platform.ts';
import type { MachineFile } from './state.ts';

vi.mock(import('../machineprocess.ts'), { spy: true });

const HARDWARE = { uuid: 'uuid', serialNumber: 'B1', macAddress: '02:00:00:00:00:01' };
const PLAN: VmLaunchPlan = {
  guest: {
    vm: { hardware: HARDWARE, vnc: { enabled: false } } as Machine,
    diskSizeBytes: undefined,
    iso: undefined,
  },
  cpu: 1,
  memoryBytes: 2 ** 28,
  network: {
    kind: 'user',
    macAddress: HARDWARE.macAddress,
    address: undefined,
    hostAddress: '127.0.0.1',
    ports: [],
  },
};

function platform(accelerator: GuestPlatform['accelerator']): GuestPlatform {
  return {
    architecture: 'amd64',
    binary: 'qemu',
    machineType: 'pc',
    accelerator,
    display: {},
  } as GuestPlatform;
}

/** Launches a machine with this content of its state file, and returns the command line and the limit of its memory. */
async function launched(state: Partial<MachineFile>, now: GuestPlatform) {
  vi.mocked(launch)
    .mockReset()
    .mockResolvedValueOnce({} as Awaited<ReturnType<typeof launch>>);
  const file = { version: 1, machineType: 'pc', ...state } as MachineFile;
  const start = { plan: PLAN, state: file, platform: now, incoming: true };
  const context = { cgroups: {} as MachineCgroups, ownRoot: undefined };
  await launchMachine({ uid: 'u', path: '/nowhere' }, start, context);
  const { command, limits } = vi.mocked(launch).mock.calls[0]?.[1] ?? {};
  return { command: command?.join(' ') ?? '', memoryBytes: limits?.memoryBytes };
}

it('a suspended machine resumes with the accelerator of its start, because its memory fits no other', async () => {
  const before = startedWith(PLAN, platform('tcg'));
  const resumed = await launched({ launched: resumedWith(before, PLAN, platform('kvm')) }, platform('kvm'));
  expect(resumed.command).toContain('accel=tcg,dump-guest-core=off -cpu max ');
  const started = await launched({ launched: startedWith(PLAN, platform('kvm')) }, platform('kvm'));
  expect(started.command).toContain('accel=kvm,dump-guest-core=off -cpu host ');
  // Emulation needs 1 GiB more.
  expect((resumed.memoryBytes ?? 0) - (started.memoryBytes ?? 0)).toBe(2 ** 30);
});

let folder: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-log-'));
});

afterEach(async () => {
  await rm(folder, { recursive: true });
});

const UNREADABLE = "Could not open 'disk.qcow2': Permission denied";

test('the last lines of the log of a hypervisor show why it did not start', async () => {
  await writeFile(join(folder, segmentName('hypervisor', 0)), `${UNREADABLE}\n`);
  const message = `The hypervisor ended with code 1: ${UNREADABLE}`;
  const error = startErrorOf('The hypervisor ended with code 1', await hypervisorLog(folder), START_REASONS);
  expect(error).toMatchObject({
    reason: 'DiskInvalid',
    message,
  });
});

test('an answer of a hypervisor to a command does not make a failed start final', async () => {
  const error = startErrorOf(UNREADABLE, await hypervisorLog(folder), START_REASONS);
  expect(error).toMatchObject({
    reason: 'StartFailed',
    message: UNREADABLE,
  });
});
