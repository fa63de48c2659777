import { describe, expect, it } from 'vitest';
import { configSchema } from '../config.ts';
import type { HostFacts } from './facts.ts';
import { allocatable, nodeStatus } from './node.ts';

const GIB = 2 ** 30;
const config = configSchema.parse({
  nodeName: 'host',
  dataDirectory: '/data',
  kubeconfig: '/kubeconfig',
  address: '192.0.2.1',
  network: { driver: 'user' },
  images: { minimumFree: '10Gi' },
});
const facts: HostFacts = {
  architecture: 'amd64',
  operatingSystem: 'linux',
  osImage: '',
  kernelVersion: '',
  machineId: '',
  bootId: '',
  cpus: 4,
  memoryBytes: 16 * GIB,
  diskBytes: 100 * GIB,
  hypervisor: 'qemu',
};

describe('the disk of a host', () => {
  it('is offered without what is to stay free and the images that somebody holds', () => {
    expect(allocatable(config, facts, 30 * GIB).diskBytes).toBe(60 * GIB);
    const state = {
      kubeletPort: 1,
      images: [],
      nat: undefined,
      diskPressure: false,
      heldImageBytes: 30 * GIB,
    };
    const status = nodeStatus({ config, facts, state, current: undefined, now: '2030-01-01T00:00:00Z' });
    expect(status.capacity).toMatchObject({ 'ephemeral-storage': '100Gi' });
    expect(status.allocatable).toMatchObject({ 'ephemeral-storage': '60Gi' });
  });

  it('is never less than nothing', () => {
    expect(allocatable(config, facts, 95 * GIB).diskBytes).toBe(0);
  });
});
