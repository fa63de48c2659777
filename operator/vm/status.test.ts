import { expect, it } from 'vitest';
import { MACHINE_CONDITION, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { Pod, PodStatus } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { gatherFacts } from './facts.ts';
import type { Observed } from './observe.ts';
import { summarize } from './status.ts';

const CONTAINER = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0 };

/** Returns the conditions of a VM whose Pod has this status, by their types. */
function conditionsOf(status: PodStatus) {
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
    node: { apiVersion: 'v1', kind: 'Node', metadata: { name: 'host' } },
    hosts: () => [],
    config: parseConfig({}, 'test'),
    now: 0,
  } as unknown as Observed;
  const { conditions = [] } = summarize(observed, gatherFacts(observed), {});
  return new Map(conditions.map((condition) => [condition.type, condition]));
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
