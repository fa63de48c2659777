import { Registry } from 'prom-client';
import { describe, expect, it } from 'vitest';
import { HOST_MARK, HOST_VALUE } from '../../api/v1alpha1/names.ts';
import { nodeVersion, VERSION } from '../../api/v1alpha1/version.ts';
import type { Node, Taint } from '../../kube/core.ts';
import { type OperatorConfig, parseConfig } from '../config/config.ts';
import { exportHostMetrics } from './controller.ts';
import { cordonPatch, statusToApply, taintsToWrite, uncordonPatch } from './plan.ts';

const NODE_VERSION = nodeVersion('v1.36.3');
const hostTaint: Taint = { key: 'berth.dev/host', value: 'true', effect: 'NoSchedule' };

function host(part: {
  arch?: string;
  runtime?: string;
  status?: object;
  taints?: Taint[];
  labels?: Record<string, string>;
}): Node {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'h', labels: part.labels ?? {} },
    spec: { taints: part.taints ?? [hostTaint] },
    status: {
      nodeInfo: { architecture: part.arch ?? 'arm64', containerRuntimeVersion: part.runtime ?? 'qemu://kvm' },
      ...part.status,
    },
  };
}

const NOW = '2030-01-01T00:00:00Z';

/** Returns the resources that are written as capacity and as allocatable. */
function slotsOf(node: Node, config: OperatorConfig): Record<string, string> | undefined {
  const { capacity, allocatable } = statusToApply(node, config, NOW) ?? {};
  expect(allocatable).toEqual(capacity);
  return capacity;
}

const adminTaint: Taint = { key: 'maintenance', value: 'yes', effect: 'NoSchedule' };
const natTaint: Taint = { key: 'berth.dev/nat-unready', value: 'true', effect: 'NoSchedule' };
const broken = { conditions: [{ type: 'berth.dev/NATReady', status: 'False' as const }] };

describe('slots of a host', () => {
  const config = parseConfig({}, 'test');

  it.each([
    [{ arch: 'arm64' }, { 'berth.dev/slot': '4' }],
    [{ arch: 'amd64' }, { 'berth.dev/slot': '16' }],
    [{ arch: 'arm64', runtime: 'qemu://hvf' }, { 'berth.dev/slot': '4' }],
    [
      { arch: 'arm64', runtime: 'tart://vz' },
      { 'berth.dev/slot': '4', 'berth.dev/macos-guest': '2' },
    ],
  ])('%o', (part, expected) => {
    expect(slotsOf(host(part), config)).toEqual(expected);
  });

  it('are written only when capacity or allocatable differ', () => {
    const slots = { 'berth.dev/slot': '4' };
    expect(slotsOf(host({ status: { capacity: slots, allocatable: slots } }), config)).toBeUndefined();
    expect(slotsOf(host({ status: { capacity: slots } }), config)).toEqual(slots);
    expect(slotsOf(host({ status: { allocatable: slots } }), config)).toEqual(slots);
  });

  it('count one shared disk on an ARM host while the shared disk is on, and one for each berth on an x86 host', () => {
    const shared = parseConfig({ vm_shared_disk_enabled: true }, 'test');
    expect(slotsOf(host({}), shared)).toEqual({
      'berth.dev/slot': '4',
      'berth.dev/shared-disk': '1',
    });
    const x86 = host({ arch: 'amd64' });
    expect(slotsOf(x86, shared)).toEqual({
      'berth.dev/slot': '16',
      'berth.dev/shared-disk': '16',
    });
  });
});

describe('taints of a host', () => {
  it('follow only an explicit NATReady=False, and do not touch taints of others', () => {
    expect(taintsToWrite(host({}), Date.parse(NOW))).toBeUndefined();
    for (const status of ['True', 'Unknown'] as const) {
      const conditions = [{ type: 'berth.dev/NATReady', status }];
      expect(taintsToWrite(host({ status: { conditions } }), Date.parse(NOW))).toBeUndefined();
    }
    const tainted = (...taints: Taint[]) => ({ taints: [hostTaint, ...taints] });
    expect(taintsToWrite(host(tainted(adminTaint)), Date.parse(NOW))).toBeUndefined();
    const written = [adminTaint, hostTaint, natTaint];
    expect(taintsToWrite(host({ ...tainted(adminTaint), status: broken }), Date.parse(NOW))).toEqual(written);
    expect(taintsToWrite(host({ taints: written, status: broken }), Date.parse(NOW))).toBeUndefined();
    expect(taintsToWrite(host(tainted(natTaint, adminTaint)), Date.parse(NOW))).toEqual([
      adminTaint,
      hostTaint,
    ]);
  });

  /** The API server refuses two taints with the same key and effect. */
  it('keep the Pods of others away, also from a Node that was created without the taint or lost it', () => {
    expect(taintsToWrite(host({ taints: [] }), Date.parse(NOW))).toEqual([hostTaint]);
    expect(taintsToWrite(host({ taints: [{ ...hostTaint, value: 'no' }] }), Date.parse(NOW))).toEqual([
      hostTaint,
    ]);
    const evicting: Taint = { ...hostTaint, effect: 'NoExecute' };
    expect(taintsToWrite(host({ taints: [evicting] }), Date.parse(NOW))).toEqual([evicting, hostTaint]);
    expect(taintsToWrite(host({ taints: [evicting, hostTaint] }), Date.parse(NOW))).toBeUndefined();
  });

  it('keep a host that belongs to a namespace for it', () => {
    const label = { 'berth.node-restriction.kubernetes.io/namespace': 'platform-ci' };
    expect(taintsToWrite(host({ labels: label }), Date.parse(NOW))).toEqual([
      hostTaint,
      { key: 'berth.node-restriction.kubernetes.io/namespace', value: 'platform-ci', effect: 'NoSchedule' },
    ]);
  });
});

describe('a cordon', () => {
  const cordon: Taint = { key: 'node.kubernetes.io/unschedulable', effect: 'NoSchedule' };
  const silence = (['NoSchedule', 'NoExecute'] as const).map((effect) => ({
    key: 'node.kubernetes.io/unreachable',
    effect,
  }));
  const ready = { conditions: [{ type: 'Ready', status: 'True' as const }] };

  it('comes with its taint, once, and leaves all others', () => {
    const taints = [hostTaint, adminTaint];
    const cordoned = { unschedulable: true, taints: [...taints, cordon] };
    expect(cordonPatch(host({ taints }))).toEqual(cordoned);
    expect(cordonPatch(host({ taints: [...taints, cordon] }))).toEqual(cordoned);
  });

  it('ends with its taint and, if the host reports, with those of its silence', () => {
    const taints = [hostTaint, cordon, ...silence, adminTaint];
    expect(uncordonPatch(host({ taints, status: ready }))).toEqual({
      unschedulable: null,
      taints: [hostTaint, adminTaint],
    });
    expect(uncordonPatch(host({ taints }))).toEqual({
      unschedulable: null,
      taints: [hostTaint, ...silence, adminTaint],
    });
  });
});

describe('a host whose agent is too many releases apart', () => {
  const config = parseConfig({}, 'test');
  const slots = { 'berth.dev/slot': '4' };
  const present = (kubeletVersion: string, conditions: object[] = []): Node =>
    host({
      status: {
        capacity: slots,
        allocatable: slots,
        conditions,
        nodeInfo: { architecture: 'arm64', kubeletVersion },
      },
    });
  const far = present('v1.40.0-berth.9.4.0');

  it('has one condition with both versions', () => {
    const condition = {
      type: 'berth.dev/VersionSkew',
      status: 'True',
      reason: 'AgentVersionUnsupported',
      message: `The agent has version 9.4.0 and the operator has version ${VERSION}. The difference must be at most one minor release`,
      lastTransitionTime: NOW,
    };
    const status = { capacity: slots, allocatable: slots, conditions: [condition] };
    expect(statusToApply(far, config, NOW)).toEqual(status);
    const later = present('v1.40.0-berth.9.4.0', [condition]);
    expect(statusToApply(later, config, '2030-01-01T01:00:00Z')).toBeUndefined();
    expect(statusToApply(present(NODE_VERSION, [condition]), config, NOW)).toEqual({
      capacity: slots,
      allocatable: slots,
    });
  });

  it.each(['kwok', NODE_VERSION])('has none with version %s', (version) => {
    expect(statusToApply(present(version), config, NOW)).toBeUndefined();
  });

  it('is counted only by the leader', async () => {
    const mark = { labels: { [HOST_MARK]: HOST_VALUE } };
    const nodes = [far, far, present(NODE_VERSION)].map((node) => ({
      ...node,
      metadata: { name: 'h', ...mark },
    }));
    const counted = async (isLeader: boolean): Promise<string> => {
      const registry = new Registry();
      exportHostMetrics(registry, { isLeader: () => isLeader, nodes: () => [...nodes, far] });
      return await registry.metrics();
    };
    expect(await counted(true)).toContain('berth_hosts_version_skew 2');
    expect(await counted(false)).toContain('berth_hosts_version_skew 0');
  });
});
