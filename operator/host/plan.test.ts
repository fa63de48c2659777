import { describe, expect, it } from 'vitest';
import type { Node, Taint } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { resourcesToApply, taintsToWrite } from './plan.ts';

function host(part: {
  arch?: string;
  os?: string;
  status?: object;
  taints?: Taint[];
  labels?: Record<string, string>;
}): Node {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'h', labels: part.labels ?? {} },
    spec: { taints: part.taints ?? [] },
    status: {
      nodeInfo: { architecture: part.arch ?? 'arm64', operatingSystem: part.os ?? 'linux' },
      ...part.status,
    },
  };
}

const adminTaint: Taint = { key: 'maintenance', value: 'yes', effect: 'NoSchedule' };
const natTaint: Taint = { key: 'berth.dev/nat-unready', value: 'true', effect: 'NoSchedule' };
const broken = { conditions: [{ type: 'berth.dev/NATReady', status: 'False' as const }] };

describe('slots of a host', () => {
  const config = parseConfig({}, 'test');

  it.each([
    [{ arch: 'arm64' }, { 'berth.dev/slot': '4' }],
    [{ arch: 'amd64' }, { 'berth.dev/slot': '16' }],
    [
      { arch: 'arm64', os: 'darwin' },
      { 'berth.dev/slot': '4', 'berth.dev/macos-guest': '2' },
    ],
  ])('%o', (part, expected) => {
    expect(resourcesToApply(host(part), config)).toEqual(expected);
  });

  it('are written only when capacity or allocatable differ', () => {
    const slots = { 'berth.dev/slot': '4' };
    expect(
      resourcesToApply(host({ status: { capacity: slots, allocatable: slots } }), config),
    ).toBeUndefined();
    expect(resourcesToApply(host({ status: { capacity: slots } }), config)).toEqual(slots);
  });

  it('count one shared disk on an ARM host while the shared disk is on, and one for each berth on an x86 host', () => {
    const shared = parseConfig({ vm_shared_disk_enabled: true }, 'test');
    expect(resourcesToApply(host({}), shared)).toEqual({
      'berth.dev/slot': '4',
      'berth.dev/shared-disk': '1',
    });
    const x86 = host({ arch: 'amd64' });
    expect(resourcesToApply(x86, shared)).toEqual({
      'berth.dev/slot': '16',
      'berth.dev/shared-disk': '16',
    });
  });
});

describe('taints of a host', () => {
  it('follow an explicit NATReady=False only, and leave those of others alone', () => {
    expect(taintsToWrite(host({}))).toBeUndefined();
    expect(taintsToWrite(host({ taints: [adminTaint] }))).toBeUndefined();
    expect(taintsToWrite(host({ taints: [adminTaint], status: broken }))).toEqual([adminTaint, natTaint]);
    expect(taintsToWrite(host({ taints: [adminTaint, natTaint], status: broken }))).toBeUndefined();
    expect(taintsToWrite(host({ taints: [natTaint, adminTaint] }))).toEqual([adminTaint]);
  });

  it('keep a host that was given to a namespace for it', () => {
    const label = { 'berth.node-restriction.kubernetes.io/namespace': 'platform-ci' };
    expect(taintsToWrite(host({ labels: label }))).toEqual([
      { key: 'berth.node-restriction.kubernetes.io/namespace', value: 'platform-ci', effect: 'NoSchedule' },
    ]);
  });
});
