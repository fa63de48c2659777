import { describe, expect, it } from 'vitest';
import { MACHINE_CONDITION, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { Node, Pod, PodStatus } from '../../kube/core.ts';
import type { Condition } from '../../kube/objects.ts';
import { reachOfNode } from '../host/observe.ts';
import { parseConfig } from '../config/config.ts';
import { gatherFacts } from './facts.ts';
import type { Observed } from './observe.ts';
import { summarize } from './status.ts';

const RAN = '2030-01-01T00:00:00Z';
const CONTAINER = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0 };

/**
 * Returns the conditions of a VM whose Pod has this status, by their types. `known` contains other observations, for example about its
 * host.
 */
function conditionsOf(status: PodStatus, known: Partial<Observed> = {}) {
  const pod: Pod = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'x', namespace: 'ci' },
    spec: { nodeName: 'host', containers: [] },
    status,
  };
  const observed = {
    vm: { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata: { name: 'x', namespace: 'ci' }, spec: {} },
    pod,
    ...reachOfNode({ apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' } }),
    successor: undefined,
    hosts: () => [],
    config: parseConfig({}, 'test'),
    now: 0,
    ...known,
  } as unknown as Observed;
  const { conditions = [] } = summarize(observed, gatherFacts(observed), {});
  return new Map(conditions.map((condition) => [condition.type, condition]));
}

/** Returns the conditions of a VM that has run, on a host with this Node. */
function onHost(node: Node | undefined, isGivenUp = false) {
  const containerStatuses = [{ ...CONTAINER, ready: true, state: { running: { startedAt: RAN } } }];
  const reach = node === undefined ? { node, silentSince: Date.parse(RAN), isGivenUp } : reachOfNode(node);
  return conditionsOf(
    { phase: 'Running', containerStatuses },
    { ...reach, now: Date.parse(RAN) + 3_600_000 },
  );
}

/** Returns the condition ImageReady of a VM whose machine waits on its host for this reason. */
function imageReady(reason: string) {
  const waiting = { reason, message: 'as the host says' };
  const containerStatuses = [{ ...CONTAINER, state: { waiting } }];
  return conditionsOf({ phase: 'Pending', containerStatuses }).get('ImageReady');
}

/** Returns the conditions of a running VM whose host reports this about its display. */
function withDisplay(display: unknown) {
  const running = { startedAt: '2030-01-01T00:00:00Z' };
  const containerStatuses = [{ ...CONTAINER, ready: true, state: { running } }];
  const message = JSON.stringify({ display });
  const conditions = [
    { type: MACHINE_CONDITION, status: 'True', reason: 'Running', message } as const,
    { type: 'Ready', status: 'True' } as const,
  ];
  return conditionsOf({ phase: 'Running', containerStatuses, conditions });
}

describe('a VM is Ready, Reconciling or Stalled', () => {
  const again = '2030-01-02T00:00:00Z';
  type Spec = Observed['vm']['spec'];
  const cases: readonly [phase: string, Spec, expected: string][] = [
    ['Running', {}, 'Ready: Running'],
    ['Running', { powerState: 'Stopped' }, 'Reconciling: Stopping'],
    ['Running', { powerState: 'Suspended' }, 'Reconciling: Suspending'],
    ['Running', { restartRequestedAt: again }, 'Reconciling: Restarting'],
    ['Running', { revertRequestedAt: again }, 'Reconciling: Reverting'],
    ['Running', { restartRequestedAt: RAN }, 'Ready: Running'],
    ['Stopping', { powerState: 'Stopped' }, 'Reconciling: Stopping'],
    ['Stopped', { powerState: 'Stopped' }, 'Ready: Stopped'],
    ['Stopped', { powerState: 'Suspended' }, 'Ready: Stopped'],
    ['Stopped', {}, 'Reconciling: Starting'],
    ['Stopped', { powerState: 'Stopped', restartRequestedAt: again }, 'Reconciling: Restarting'],
    ['Suspended', { powerState: 'Suspended' }, 'Ready: Suspended'],
    ['Suspended', {}, 'Reconciling: Resuming'],
    ['Suspended', { powerState: 'Stopped' }, 'Reconciling: Stopping'],
    ['GuestShutdown', {}, 'Stalled: GuestShutdown'],
    ['GuestShutdown', { restartPolicy: 'OnFailure' }, 'Stalled: GuestShutdown'],
    ['GuestShutdown', { restartPolicy: 'Always' }, 'Reconciling: Starting'],
    ['GuestShutdown', { restartRequestedAt: again }, 'Reconciling: Restarting'],
    ['GuestShutdown', { powerState: 'Stopped' }, 'Ready: GuestShutdown'],
  ];

  it.each(cases)('in the machine state %s with spec %j: %s', (told, spec, expected) => {
    const name = told === 'GuestShutdown' ? 'Stopped' : told;
    const isOff = name === 'Stopped' || name === 'Suspended';
    const message = JSON.stringify({ restartedAt: RAN });
    const conditions = [
      { type: MACHINE_CONDITION, status: 'True', reason: told, message } as const,
      { type: 'Ready', status: 'True' } as const,
    ];
    const state = isOff ? { waiting: { reason: name } } : { running: { startedAt: RAN } };
    const containerStatuses = [{ ...CONTAINER, state }];
    const metadata = { name: 'x', namespace: 'ci', generation: 7 };
    const vm: Observed['vm'] = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata, spec };
    const found = conditionsOf({ phase: 'Running', containerStatuses, conditions }, { vm });
    const isTrue = ({ type, status }: Condition) =>
      status === 'True' && ['Ready', 'Reconciling', 'Stalled'].includes(type);
    const all = [...found.values()];
    expect(all.filter(isTrue).map(({ type, reason }) => `${type}: ${reason}`)).toEqual([expected]);
    expect(
      all.every(({ observedGeneration, message: words }) => observedGeneration === 7 && words !== ''),
    ).toBe(true);
  });
});

it('a VM is Stalled once its lost host can no longer return with its machine', () => {
  const conditions = [{ type: 'Ready', status: 'Unknown', lastTransitionTime: RAN } as const];
  const silent: Node = { apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' }, status: { conditions } };
  const lost = { status: 'False', reason: 'HostLost' };
  expect(onHost(silent).get('Ready')).toMatchObject(lost);
  expect(onHost(silent).has('Stalled')).toBe(false);
  const removed = onHost(undefined, true);
  expect(removed.get('Ready')).toMatchObject(lost);
  expect(removed.get('Stalled')).toMatchObject({ status: 'True', reason: 'HostLost' });
});

it('a VM that is placed again waits for its Pod, and does not run, while the host removes its machine', () => {
  const metadata = { name: 'x', namespace: 'ci' };
  const vm = { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata, spec: {}, status: { attempt: 2 } };
  const containerStatuses = [{ ...CONTAINER, state: { waiting: { reason: 'Terminating' } } }];
  const conditions = conditionsOf({ phase: 'Running', containerStatuses }, { vm });
  expect(conditions.get('Ready')).toMatchObject({ status: 'False', reason: 'Pending' });
  expect(conditions.get('Reconciling')).toMatchObject({ status: 'True', reason: 'Pending' });
});

it.each(['ImageFetchFailed', 'ImageFromTheFuture'])('ImageReady reports a wait for %s', (reason) => {
  expect(imageReady(reason)).toMatchObject({ status: 'False', reason, message: 'as the host says' });
});

it.each(['Pulling', 'StartFailed', 'FromTheFuture', 'Image ä'])(
  'ImageReady tells nothing of %s',
  (reason) => {
    expect(imageReady(reason)).toBeUndefined();
  },
);

it('DisplayReady has the reason why the guest lacks its DPI, and Ready does not depend on it', () => {
  const conditions = withDisplay({ ready: false, reason: 'NoDPI', message: 'QEMU is old' });
  expect(conditions.get('DisplayReady')).toMatchObject({
    status: 'False',
    reason: 'NoDPI',
    message: 'QEMU is old',
  });
  expect(conditions.get('Ready')).toMatchObject({ status: 'True' });
});

it('DisplayReady is True once the guest has its display, and absent if the host reports nothing about it', () => {
  const display = { ready: true, reason: 'DisplaySet', message: '' };
  expect(withDisplay(display).get('DisplayReady')).toMatchObject({ status: 'True', reason: 'DisplaySet' });
  expect(withDisplay(undefined).has('DisplayReady')).toBe(false);
  expect(withDisplay({ ready: 'yes' }).has('DisplayReady')).toBe(false);
});
