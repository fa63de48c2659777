/** What the operator tells of VMs on hosts with the hypervisor of macOS, and of VMs that need one. */
import { expect, it } from 'vitest';
import { machineDocument } from '../../test/fixtures/machines.ts';
import { MACHINE_ANNOTATION, MACHINE_CONDITION, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import type { Node, Pod, PodStatus } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { reachOfNode } from '../host/observe.ts';
import { gatherFacts } from './facts.ts';
import type { ObservedVM } from './observe.ts';
import { summarize } from './status.ts';

const RAN = '2030-01-01T00:00:00Z';

/** Returns the conditions of a VM whose Pod has this status. */
function conditionsOf(status: PodStatus, known: Partial<ObservedVM> = {}) {
  const observed = {
    vm: { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata: { name: 'x', namespace: 'ci' }, spec: {} },
    pod: {
      apiVersion: 'v1',
      kind: 'Pod',
      metadata: { name: 'x', namespace: 'ci' },
      spec: { nodeName: 'host', containers: [] },
      status,
    },
    ...reachOfNode({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' } }),
    successor: undefined,
    hosts: () => [],
    startingHosts: () => [],
    portHolder: () => undefined,
    config: parseConfig({}, 'test'),
    now: 0,
    ...known,
  } as unknown as ObservedVM;
  const { conditions = [] } = summarize(observed, gatherFacts(observed), {});
  return new Map(conditions.map((condition) => [condition.type, condition]));
}

/** Returns the conditions of a VM that runs, and whose host reports this. */
function whileRunning(report: object, spec: VMSpec = {}) {
  const running = { startedAt: RAN };
  const container = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: true, restartCount: 0 };
  const message = JSON.stringify(report);
  const conditions = [
    { type: MACHINE_CONDITION, status: 'True', reason: 'Running', message } as const,
    { type: 'Ready', status: 'True' } as const,
  ];
  const containerStatuses = [{ ...container, state: { running } }];
  const metadata = { name: 'x', namespace: 'ci' };
  const vm = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata, spec };
  return conditionsOf({ phase: 'Running', containerStatuses, conditions }, { vm });
}

it('a VM that its hypervisor cannot suspend is Stalled, not Reconciling, and is Ready once it is to run again', () => {
  const why = { reason: 'SuspendUnsupported', message: 'only guests with macOS' };
  const found = (spec: VMSpec) => whileRunning({ cannotSuspend: why.message }, spec);
  const refused = found({ powerState: 'Suspended' });
  expect(refused.get('Ready')).toMatchObject({ status: 'False', ...why });
  expect(refused.get('Stalled')).toMatchObject({ status: 'True', ...why });
  expect(refused.has('Reconciling')).toBe(false);
  expect(found({}).get('Ready')).toMatchObject({ status: 'True' });
  for (const spec of [{}, { powerState: 'Suspended', restartRequestedAt: RAN } as const]) {
    expect(found(spec).has('Stalled')).toBe(false);
  }
});

it('IdentityReady has the words of the host, and Ready does not depend on it', () => {
  const identity = { ready: false, reason: 'IdentityOfImage', message: 'as the host says' };
  const found = whileRunning({ identity });
  const { reason, message } = identity;
  expect(found.get('IdentityReady')).toMatchObject({ status: 'False', reason, message });
  expect(found.get('Ready')).toMatchObject({ status: 'True' });
});

it('KeysReady has the words of the host, and Ready does not depend on it', () => {
  const keys = { ready: false, reason: 'KeysNotGiven', message: 'no guest agent' };
  const found = whileRunning({ keys });
  expect(found.get('KeysReady')).toMatchObject({
    status: 'False',
    reason: keys.reason,
    message: keys.message,
  });
  expect(found.get('Ready')).toMatchObject({ status: 'True' });
  expect(whileRunning({}).has('KeysReady')).toBe(false);
});

it('ImageReady says that an IPSW needs a host with macOS, until there is one', () => {
  const image = { type: 'ipsw', url: 'https://images.example/restore.ipsw', sha256: 'a'.repeat(64) } as const;
  const document = machineDocument({ namespace: 'ci', name: 'x', uid: 'x' }, { os: 'MacOS', image });
  const pod = {
    metadata: { name: 'x', annotations: { [MACHINE_ANNOTATION]: JSON.stringify(document) } },
    spec: { containers: [] },
    status: { phase: 'Pending' },
  } as unknown as Pod;
  const among = (allocatable: Record<string, string>) => {
    const hosts = () => [{ metadata: { name: 'host' }, status: { allocatable } } as unknown as Node];
    return conditionsOf({}, { pod, hosts });
  };
  expect(among({ 'berth.dev/slot': '4' }).get('ImageReady')).toMatchObject({
    status: 'False',
    reason: 'NoAppleHost',
  });
  expect(among({ 'berth.dev/macos-guest': '2' }).has('ImageReady')).toBe(false);
});
