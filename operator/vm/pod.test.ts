import { describe, expect, it } from 'vitest';
import type { Machine } from '../../api/v1alpha1/machine.ts';
import { MACHINE_ANNOTATION } from '../../api/v1alpha1/names.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import { parseConfig } from '../config/config.ts';
import { buildPod } from './pod.ts';
import { isUnresolved, resolve } from './resolve.ts';

const none = () => undefined;

const config = parseConfig({}, 'test');
let deployments = 0;

interface Deployment {
  cluster?: string;
  namespace?: string;
  name?: string;
  labels?: Record<string, string>;
  spec?: Partial<VMSpec>;
  settings?: Record<string, unknown>;
}

/** Returns the Pod of one deployment. Each VM has its own uid, even when an earlier VM had the same name. */
function podOf({
  cluster = 'one',
  namespace = 'platform-ci',
  name = 'build',
  labels = {},
  spec = {},
  settings = {},
}: Deployment) {
  deployments += 1;
  const vm = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'VM',
    metadata: { name, namespace, labels, uid: `uid-${deployments}` },
    spec: { image: 'registry.example/guest:1', ...spec },
  };
  const resolved = resolve({
    vm,
    lookups: { vmConfig: none, image: none, iso: none, credentials: none },
    config,
  });
  if (isUnresolved(resolved)) {
    throw new Error(resolved.message);
  }
  const random = (): string => String(deployments).repeat(64);
  const used = parseConfig(settings, 'test');
  return buildPod({
    vm,
    resolved,
    attempt: 1,
    avoidedNodes: [],
    isDedicated: false,
    config: used,
    clusterUid: cluster,
    random,
  });
}

function machineOf(deployment: Deployment): Machine {
  const { annotations = {} } = podOf(deployment).metadata;
  return JSON.parse(annotations[MACHINE_ANNOTATION] ?? '') as Machine;
}

function hardwareOf(deployment: Deployment) {
  return machineOf(deployment).hardware;
}

it('tells the host whether a start from memory is allowed', () => {
  expect(machineOf({}).start).toBeUndefined();
  expect(machineOf({ spec: { start: 'Cold' } }).start).toBe('Cold');
});

describe('hardware identity', () => {
  it('is the same on each deployment of a name in its namespace, and differs from all others', () => {
    const hardware = hardwareOf({});
    expect(hardwareOf({})).toEqual(hardware);
    expect(hardware.macAddress).toMatch(/^02(:[0-9a-f]{2}){5}$/);
    for (const other of [{ name: 'other' }, { namespace: 'platform-qa' }, { cluster: 'two' }]) {
      const { uuid, serialNumber, macAddress } = hardwareOf(other);
      expect([uuid, serialNumber, macAddress]).not.toContain(hardware.uuid);
      expect(serialNumber).not.toBe(hardware.serialNumber);
      expect(macAddress).not.toBe(hardware.macAddress);
    }
  });

  it('is new on each deployment when it is Dynamic', () => {
    const spec = { hardwareIdentity: 'Dynamic' } as const;
    const [first, second] = [hardwareOf({ spec }), hardwareOf({ spec })];
    expect(second.uuid).not.toBe(first.uuid);
    expect(second.serialNumber).not.toBe(first.serialNumber);
    expect(second.macAddress).not.toBe(first.macAddress);
  });

  it('has the serial number of the VM', () => {
    expect(hardwareOf({ spec: { serialNumber: 'DESK-0007' } }).serialNumber).toBe('DESK-0007');
  });
});

describe('placement', () => {
  const FAST = { key: 'tag.berth.dev/fast', operator: 'Exists' };
  const isFast = (one: { key: string; operator: string }) =>
    one.key === FAST.key && one.operator === FAST.operator;

  /** Returns the parts of the Pod's affinity that the placement changes. */
  function affinityOf(placement: VMSpec['placement'], settings = {}) {
    const { affinity } = podOf({ spec: { placement }, settings }).spec;
    const nodes = affinity?.nodeAffinity;
    return {
      required: nodes?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms ?? [],
      preferred: nodes?.preferredDuringSchedulingIgnoredDuringExecution ?? [],
      together: affinity?.podAffinity?.preferredDuringSchedulingIgnoredDuringExecution ?? [],
    };
  }

  it('prefers hosts with the tag, and requires them if the policy says so', () => {
    const preferred = affinityOf({ tag: 'fast' });
    expect(JSON.stringify(preferred.preferred)).toContain(JSON.stringify(FAST));
    expect(JSON.stringify(preferred.required)).not.toContain(FAST.key);
    const required = affinityOf({ tag: 'fast', tagPolicy: 'Required' });
    // The terms are alternatives, so each of them must require the tag.
    const requiring = required.required.filter((term) => term.matchExpressions?.some(isFast));
    expect([requiring.length, required.required.length]).toEqual([2, 2]);
    expect(JSON.stringify(required.preferred)).not.toContain(FAST.key);
  });

  it('prefers hosts with running VMs only under MostAllocated, which is the default with power by demand', () => {
    expect(affinityOf(undefined).together).toEqual([]);
    expect(affinityOf({ strategy: 'Default' }).together).toEqual([]);
    const labelSelector = { matchLabels: { 'berth.dev/workload': 'vm' } };
    expect(affinityOf({ strategy: 'MostAllocated' }).together).toMatchObject([
      { podAffinityTerm: { labelSelector, namespaceSelector: {}, topologyKey: 'kubernetes.io/hostname' } },
    ]);
    const byDemand = { powerByDemand: { enabled: true } };
    expect(affinityOf(undefined, byDemand).together).toHaveLength(1);
    expect(affinityOf({ strategy: 'Default' }, byDemand).together).toEqual([]);
  });

  it('allows only the named host', () => {
    const named = { key: 'metadata.name', operator: 'In', values: ['rack1-7'] };
    const { required } = affinityOf({ node: 'rack1-7' });
    // The terms are alternatives, so each of them must name the host.
    expect(required.map(({ matchFields }) => matchFields)).toEqual(required.map(() => [named]));
    expect(required).not.toEqual([]);
    expect(JSON.stringify(affinityOf({}).required)).not.toContain('metadata.name');
  });
});

it('takes one of the macOS guests that a host may run, if the guest is macOS', () => {
  const limitsOf = (spec: Partial<VMSpec>) => podOf({ spec }).spec.containers[0]?.resources?.limits;
  expect(limitsOf({ os: 'MacOS' })).toMatchObject({ 'berth.dev/macos-guest': '1' });
  expect(limitsOf({ os: 'Linux' })).not.toHaveProperty(['berth.dev/macos-guest']);
});

it('the Pod has the labels of its VM, except those of Berth', () => {
  const labels = {
    team: 'ci',
    'kueue.x-k8s.io/queue-name': 'q',
    'berth.dev/workload': 'cache',
    'berth.dev/scale-set': 's',
  };
  expect(podOf({ labels }).metadata.labels).toEqual({
    team: 'ci',
    'kueue.x-k8s.io/queue-name': 'q',
    'berth.dev/workload': 'vm',
    'berth.dev/vm-uid': expect.stringMatching(/^uid-/),
  });
});
