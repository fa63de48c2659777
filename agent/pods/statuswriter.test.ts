import { pino } from 'pino';
import { expect, onTestFinished, test, vi } from 'vitest';
import type { KubeClient } from '../../kube/client.ts';
import { type Pod, PODS, type PodStatus } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { createMetrics } from '../../kube/metrics.ts';
import { parkedStatus } from '../../kube/podstatus.ts';
import { StatusWriter } from './statuswriter.ts';

const NOW = '2030-01-01T00:00:00Z';
const pod: Pod = {
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name: 'x', namespace: 'platform-default', uid: 'u', generation: 1 },
  spec: { containers: [{ name: 'machine', image: 'guest' }] },
};

/** Returns a written status as the API server 1.36 returns it, with the fields that the API server and the scheduler add. */
function given({ conditions = [], containerStatuses = [], ...status }: PodStatus): PodStatus {
  const scheduled = { type: 'PodScheduled', status: 'True' as const, lastTransitionTime: NOW };
  const stored: object = {
    ...status,
    conditions: [scheduled, ...conditions].map((one) => ({ ...one, lastProbeTime: null })),
    containerStatuses: containerStatuses.map((container) => ({ lastState: {}, ...container })),
    qosClass: 'BestEffort',
  };
  return stored;
}

function status(message: string): PodStatus {
  return parkedStatus(pod, { reason: 'HostRunsOnlyMachines', message }, '192.0.2.1', NOW);
}

/** Starts a writer for `pod`. `remove` removes the Pod from the cache, as the watch does; `restore` adds it again. */
function startWriter(client: object, cached: Pod = pod) {
  let known: Pod | undefined = cached;
  const writer = new StatusWriter({
    client: client as KubeClient,
    podOf: () => known,
    logger: pino({ level: 'silent' }),
    metrics: createMetrics(),
  });
  const stop = new AbortController();
  onTestFinished(() => stop.abort());
  writer.start(stop.signal);
  const remove = (): void => {
    known = undefined;
    writer.forget(pod);
  };
  return { writer, remove, restore: () => (known = pod) };
}

/** Waits until the writer has handled all answers that it has. */
async function rest(): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, 10));
}

test('a status that was written is not written again, whatever the API server adds; another one is', async () => {
  const shown = { ...pod, status: given(status('a message')) };
  const client = { apply: vi.fn(async () => shown) };
  const { writer } = startWriter(client, shown);
  const onTaken = vi.fn();
  writer.show(shown, status('a message'), { onTaken });
  await expect.poll(() => onTaken).toHaveBeenCalledTimes(1);
  expect(client.apply).not.toHaveBeenCalled();
  const another = status('another');
  writer.show(shown, another, { onTaken });
  await expect.poll(() => onTaken).toHaveBeenCalledTimes(2);
  const { name, namespace, uid } = pod.metadata;
  const written = { metadata: { name, namespace, uid }, status: another };
  expect(client.apply).toHaveBeenCalledExactlyOnceWith(PODS, written, expect.anything());
});

test('nothing is kept for a Pod that is gone before the answer to its deletion arrives', async () => {
  const answer = Promise.withResolvers<void>();
  const client = { apply: vi.fn(async () => pod), delete: vi.fn(() => answer.promise) };
  const { writer, remove, restore } = startWriter(client);
  writer.show(pod, status('a message'), { finish: true });
  await expect.poll(() => client.delete).toHaveBeenCalledTimes(1);
  remove();
  answer.resolve();
  await rest();
  restore();
  writer.show(pod, status('a message'), { finish: true });
  await expect.poll(() => client.delete).toHaveBeenCalledTimes(2);
});

test('nothing is kept for a Pod that is gone before the answer to its status arrives', async () => {
  const answer = Promise.withResolvers<Pod>();
  const client = { apply: vi.fn(() => answer.promise) };
  const { writer, remove } = startWriter(client);
  const old = { ...pod, metadata: { ...pod.metadata, resourceVersion: '1' } };
  writer.show(pod, status('a message'));
  await expect.poll(() => client.apply).toHaveBeenCalledTimes(1);
  remove();
  answer.resolve({ ...old, metadata: { ...old.metadata, resourceVersion: '2' } });
  await rest();
  expect(writer.newest(old)).toBe(old);
});

test('no status is kept for a Pod that is gone', async () => {
  const client = { apply: vi.fn(async () => pod) };
  const { writer, remove, restore } = startWriter(client);
  remove();
  writer.show(pod, status('a message'));
  restore();
  await rest();
  expect(client.apply).not.toHaveBeenCalled();
});

test('a status counts as accepted only if the API server still has the Pod', async () => {
  const gone = new ApiError('pods "x" not found', { status: 404, reason: 'NotFound' });
  const client = { apply: vi.fn(async () => pod).mockRejectedValueOnce(gone) };
  const { writer } = startWriter(client);
  const onTaken = vi.fn();
  writer.show(pod, status('a message'), { onTaken });
  await expect.poll(() => client.apply).toHaveBeenCalledTimes(1);
  await rest();
  expect(onTaken).not.toHaveBeenCalled();
  writer.show(pod, status('another message'), { onTaken });
  await expect.poll(() => onTaken).toHaveBeenCalledTimes(1);
});
