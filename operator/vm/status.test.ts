import { expect, it } from 'vitest';
import { MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { Pod } from '../../kube/core.ts';
import { parseConfig } from '../config/config.ts';
import { gatherFacts } from './facts.ts';
import type { Observed } from './observe.ts';
import { summarize } from './status.ts';

/** Returns the condition ImageReady of a VM whose machine waits on its host for this reason. */
function imageReady(reason: string) {
  const waiting = { reason, message: 'as the host says' };
  const container = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: false, restartCount: 0 };
  const pod: Pod = {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'x', namespace: 'ci' },
    spec: { nodeName: 'host', containers: [] },
    status: { phase: 'Pending', containerStatuses: [{ ...container, state: { waiting } }] },
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
  return conditions.find(({ type }) => type === 'ImageReady');
}

it.each(['ImageFetchFailed', 'ImageFromTheFuture'])('ImageReady tells a wait for %s', (reason) => {
  expect(imageReady(reason)).toMatchObject({ status: 'False', reason, message: 'as the host says' });
});

it.each(['Pulling', 'StartFailed', 'FromTheFuture', 'Image ä'])(
  'ImageReady tells nothing of %s',
  (reason) => {
    expect(imageReady(reason)).toBeUndefined();
  },
);
