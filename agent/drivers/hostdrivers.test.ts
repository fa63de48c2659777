import { describe, expect, it } from 'vitest';
import type { Accelerator, DriverOfVMs } from './driver.ts';
import {
  acceleratorOf,
  chooseDriver,
  driverOf,
  type DriverOfEmulators,
  driverOfVM,
  type HostDriver,
} from './hostdrivers.ts';

describe('a host with several drivers', () => {
  function named(name: string, ...architectures: Accelerator['architecture'][]): [string, HostDriver] {
    const accelerators = architectures.map((architecture) => ({ architecture, accelerator: `by ${name}` }));
    return [name, { driver: { name } as DriverOfVMs, accelerators }];
  }

  const drivers = new Map([named('broken'), named('one', 'amd64'), named('other', 'amd64', 'arm64')]);
  const emulators = { name: 'emulator' } as DriverOfEmulators;
  const host = { drivers, emulators, architecture: 'amd64' } as const;

  it('makes a machine with the first driver that runs its architecture', () => {
    expect(chooseDriver(host, { machine: undefined })).toBe('one');
    expect(chooseDriver({ ...host, architecture: 'arm64' }, { machine: undefined })).toBe('other');
    const none = new Map([...drivers].slice(0, 1));
    expect(chooseDriver({ ...host, drivers: none }, { machine: undefined })).toBe('broken');
  });

  it('leaves a machine with the driver that made it', () => {
    expect(driverOf(host, { driver: 'broken' }).name).toBe('broken');
    expect(
      acceleratorOf(host, { driver: 'broken', machine: undefined }, { kind: 'stopped' }),
    ).toBeUndefined();
    const other = { driver: 'other', machine: undefined };
    expect(acceleratorOf(host, other, { kind: 'stopped' })).toBe('by other');
    expect(acceleratorOf(host, other, { kind: 'running', accelerator: 'as started' })).toBe('as started');
    expect(() => driverOf(host, { driver: 'gone' })).toThrow('This agent has no driver "gone"');
  });

  it('leaves an emulator with its driver, which does nothing that only VMs support', () => {
    expect(driverOf(host, { driver: 'emulator' })).toBe(emulators);
    expect(() => driverOfVM(host, { driver: 'emulator' })).toThrow('no driver "emulator" for VMs');
  });
});
