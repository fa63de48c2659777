/** The processor of the host in the key of a machine's memory: guests of hardware acceleration use it as it is. */
import type * as files from 'node:fs/promises';
import { expect, it, vi } from 'vitest';
import { machineDocument } from '../../../test/fixtures/machines.ts';
import { memoryKey } from './memorykey.ts';
import type { GuestPlatform } from './platform.ts';

const { host } = vi.hoisted(() => ({ host: { cpuinfo: '' } }));

vi.mock('node:fs/promises', async (importOriginal) => {
  const original = await importOriginal<typeof files>();
  const readFile = async (path: string): Promise<string | Buffer> =>
    path === '/proc/cpuinfo' ? host.cpuinfo : await original.readFile(path);
  return { ...original, readFile };
});

const AMD64 = `processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: EPYC
stepping\t: 1
microcode\t: 0xa0011d1
cpu MHz\t\t: 2450.112
flags\t\t: fpu vme avx2 rdrand
bogomips\t: 4900.22
`;
const ARM64 = `processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes
CPU implementer\t: 0x41
CPU variant\t: 0x3
CPU part\t: 0xd0c
`;

/** Returns the part of the key that stands for the processor. */
async function processorKey(cpuinfo: string, accelerator: 'kvm' | 'tcg' = 'kvm'): Promise<string> {
  host.cpuinfo = cpuinfo;
  const platform: GuestPlatform = {
    architecture: 'amd64',
    binary: 'qemu',
    machineType: 'pc-q35-10.0',
    accelerator,
    firmware: undefined,
    display: { virtioVga: true, dbus: false, vncMaximum: { width: 1, height: 1 } },
    runWith: false,
    version: '10.0.13',
    readOnlyMemory: true,
  };
  const macAddress = '02:00:00:00:00:01';
  const key = await memoryKey({
    uid: 'u',
    plan: {
      guest: { vm: machineDocument({ namespace: 'team', name: 'guest', uid: 'u' }, {}), iso: undefined },
      network: { kind: 'tap', macAddress, address: undefined, device: 'tap0' },
    },
    state: {
      version: 1,
      architecture: 'amd64',
      machineType: 'pc-q35-10.0',
      intent: 'stop',
      live: false,
      suspended: false,
    },
    platform,
    cpu: 1,
    memoryBytes: 2 ** 28,
    runAs: undefined,
    incoming: false,
  });
  return key.slice(24, 32);
}

it.each([
  ['without an instruction that the guest may use', AMD64, AMD64.replace(' rdrand', '')],
  ['of another model', AMD64, AMD64.replace('model\t\t: 1', 'model\t\t: 2')],
  ['of another vendor', AMD64, AMD64.replace('AuthenticAMD', 'GenuineIntel')],
  ['for ARM without an instruction', ARM64, ARM64.replace(' aes', '')],
  ['for ARM of another part', ARM64, ARM64.replace('0xd0c', '0xd40')],
])('a host with a processor %s does not continue the memory', async (_, one, other) => {
  expect(other).not.toBe(one);
  expect(await processorKey(one)).not.toBe(await processorKey(other));
});

it.each([
  ['of another speed', AMD64.replace('2450.112', '3199.001')],
  ['with newer microcode', AMD64.replace('0xa0011d1', '0xa0011d5')],
  ['with more processors', `${AMD64}\n${AMD64.replace('processor\t: 0', 'processor\t: 1')}`],
])('a host with a processor %s continues the memory', async (_, other) => {
  expect(await processorKey(AMD64)).toBe(await processorKey(other));
});

it('an emulated processor is the same on all hosts', async () => {
  expect(await processorKey(AMD64, 'tcg')).toBe(await processorKey(ARM64, 'tcg'));
});
