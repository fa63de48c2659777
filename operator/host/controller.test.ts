import { pino } from 'pino';
import { expect, it, vi } from 'vitest';
import { HOST_MARK } from '../../api/v1alpha1/names.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Node } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { parseConfig } from '../config/config.ts';
import { HostReconciler, type HostControllerOptions } from './controller.ts';

it('an administrator who marks a Node differently is not overruled by an operator that does not see it yet', async () => {
  const node = (resourceVersion: string, labels: Record<string, string>): Node => ({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'rack', uid: 'u', resourceVersion, labels },
  });
  const cached = node('1', {});
  const stored = node('2', { [HOST_MARK]: 'never' });
  const mergePatch = vi.fn(async (_type: unknown, _ref: unknown, { metadata }: Node) => {
    const { resourceVersion } = stored.metadata;
    if ((metadata.resourceVersion ?? resourceVersion) !== resourceVersion) {
      throw new ApiError('the object has been modified', { status: 409, reason: 'Conflict' });
    }
    Object.assign(stored.metadata.labels ?? {}, metadata.labels);
    return await Promise.resolve(stored);
  });
  const reconciler = new HostReconciler({
    client: { mergePatch } as unknown as KubeClient,
    nodes: { cache: { get: () => cached } },
    approvals: { has: () => true },
    hostRecords: { of: () => undefined, requested: () => [] },
    clock: () => 0,
  } as unknown as HostControllerOptions);
  await reconciler.reconcile('rack', { logger: pino({ level: 'silent' }) });
  expect(mergePatch).toHaveBeenCalledOnce();
  expect(stored.metadata.labels).toEqual({ [HOST_MARK]: 'never' });
});

it('a Node that the agent creates again before the next reconcile gets its mark back, once', async () => {
  const nodeOf = (uid: string, labels: Record<string, string>): Node => ({
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'rack', uid, labels },
  });
  const state = { node: nodeOf('new', {}) };
  const mergePatch = vi.fn(async (_type: unknown, _ref: unknown, { metadata }: Node) => {
    state.node = nodeOf('new', { ...state.node.metadata.labels, ...metadata.labels });
    return await Promise.resolve(state.node);
  });
  const event = vi.fn<() => void>();
  const reconciler = new HostReconciler({
    client: { mergePatch, apply: vi.fn<() => void>() } as unknown as KubeClient,
    nodes: { cache: { get: () => state.node } },
    pods: { cache: { byIndex: () => [] } },
    approvals: { has: () => false },
    hostRecords: { of: () => undefined, requested: () => [], keep: async () => await Promise.resolve() },
    recorder: { event },
    config: parseConfig({}, 'test'),
    clock: () => 0,
  } as unknown as HostControllerOptions);
  const reconcile = () => reconciler.reconcile('rack', { logger: pino({ level: 'silent' }) });
  reconciler.noteDeleted(nodeOf('old', { [HOST_MARK]: 'true' }));
  await reconcile();
  expect(state.node.metadata.labels).toEqual({ [HOST_MARK]: 'true' });
  await reconcile();
  state.node = nodeOf('new', {});
  await reconcile();
  expect(state.node.metadata.labels).toEqual({});
  expect(event).toHaveBeenCalledOnce();
});
