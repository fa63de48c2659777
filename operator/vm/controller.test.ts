import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { GIVEN_UP_ANNOTATION, HOST_MARK, HOST_VALUE, MACHINE_CONTAINER } from '../../api/v1alpha1/names.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import { Consistency } from '../../kube/consistency.ts';
import type { Controller } from '../../kube/controller.ts';
import { type Node, NODES, type Pod } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { keyOf, type KubeObject, type Ref, type Resource } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { macAddressOf } from './abandoned.ts';
import { VMReconciler, type VMControllerOptions } from './controller.ts';
import { enqueueVMs } from './triggers.ts';
import { buildPod } from './pod.ts';
import { isUnresolved, resolve } from './resolve.ts';

const NOW = Date.parse('2030-01-01T00:10:00Z');
const config = parseConfig({ hostLostTimeoutSeconds: 300 }, 'test');
const none = () => undefined;

/** Returns the Pod of a VM, whose machine runs on the host `rack`. The Pod is being deleted. */
function podOf(vm: VM): Pod {
  const random = () => 'ab'.repeat(32);
  const lookups = { vmConfig: none, image: none, iso: none, credentials: none };
  const world = {
    vm,
    config,
    clusterUid: 'cluster',
    random,
    lookups,
    now: NOW,
    hosts: () => [],
    startingHosts: () => [],
    isDedicated: () => false,
  };
  const resolved = resolve(world);
  if (isUnresolved(resolved)) {
    throw new Error(resolved.message);
  }
  const { metadata, spec } = buildPod({
    ...world,
    resolved,
    attempt: 1,
    avoidedNodes: [],
    isDedicated: false,
  });
  const container = { name: MACHINE_CONTAINER, image: '', imageID: '', ready: true, restartCount: 0 };
  const state = { running: { startedAt: '2030-01-01T00:00:00Z' } };
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'x', ...metadata, uid: 'pod', deletionTimestamp: '2030-01-01T00:01:00Z' },
    spec: { ...spec, nodeName: 'rack' },
    status: { phase: 'Running', containerStatuses: [{ ...container, state }] },
  };
}

const ORPHAN = podOf({
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'VM',
  metadata: { name: 'x', namespace: 'ci', uid: 'gone' },
  spec: { image: 'registry.example/guest:1' },
});

/** Returns the Node `rack` with this status of its condition Ready since this RFC 3339 time. */
function rack(status: 'True' | 'Unknown', lastTransitionTime: string, taints: string[] = []): Node {
  return {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'rack', labels: { [HOST_MARK]: HOST_VALUE } },
    spec: { taints: taints.map((key) => ({ key, effect: 'NoExecute' as const })) },
    status: { conditions: [{ type: 'Ready', status, lastTransitionTime }] },
  };
}

/** Time since which the Node is missing in tests without a Node. */
const MISSING_SINCE = NOW - 60_000;
const REPORTS = rack('True', '2030-01-01T00:00:00Z');
const OUT_OF_SERVICE = rack('Unknown', '2030-01-01T00:09:00Z', ['node.kubernetes.io/out-of-service']);

/** Returns the part of an informer that the reconciler reads, with these objects in its cache. */
function informer(...objects: KubeObject[]) {
  const get = (key: string) => objects.find((object) => keyOf(object) === key);
  const cache = { get, list: () => objects, byIndex: () => [], resourceVersion: '1' };
  return { cache, readSince: 0, cutIfStale: () => false };
}

/**
 * Reconciles the key of the orphaned Pod once. `node` is the Node in the API server. Returns the requests that change objects, and the
 * milliseconds until the next reconcile.
 */
async function reconcile(node: Node | undefined, { pod = ORPHAN, isCached = true, isGivenUp = false } = {}) {
  const requests: [string, unknown][] = [];
  const client = {
    get: async (type: Resource<KubeObject>) => {
      if (type !== NODES || node === undefined) {
        throw new ApiError(`no ${type.kind}`, { reason: 'NotFound', status: 404 });
      }
      return node;
    },
    delete: async (type: Resource<KubeObject>, _ref: Ref, options: { gracePeriodSeconds?: number }) => {
      requests.push([`delete ${type.kind}`, options.gracePeriodSeconds]);
    },
    mergePatch: async (type: Resource<KubeObject>, _ref: Ref, { metadata }: KubeObject) => {
      requests.push([`patch ${type.kind}`, metadata.finalizers ?? metadata.annotations]);
      return { metadata };
    },
  };
  const namespace = { apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'kube-system', uid: 'c' } };
  const options = {
    client,
    vms: informer(),
    pods: informer(pod),
    snapshots: informer(),
    nodes: informer(...(node === undefined || !isCached ? [] : [node])),
    servers: informer(),
    namespaces: informer(namespace),
    consistency: new Consistency(),
    hostRecords: { isGivenUp: () => isGivenUp, missingSince: () => MISSING_SINCE },
    config,
    clock: () => NOW,
  } as unknown as VMControllerOptions;
  const result = await new VMReconciler(options).reconcile('ci/x', { logger: pino({ level: 'silent' }) });
  return { requests, requeueAfterMilliseconds: result?.requeueAfterMilliseconds };
}

const FORCED_AND_RELEASED = [
  ['delete Pod', 0],
  ['patch Pod', []],
];

describe('a Pod whose VM no longer exists', () => {
  it('is deleted, and waits while its host can end the machine', async () => {
    const { deletionTimestamp: _, ...metadata } = ORPHAN.metadata;
    const { requests } = await reconcile(REPORTS, { pod: { ...ORPHAN, metadata } });
    expect(requests).toEqual([['delete Pod', 1]]);
    expect(await reconcile(REPORTS)).toEqual({ requests: [], requeueAfterMilliseconds: undefined });
  });

  it('waits for a host whose Node has lost its label, and is therefore not in the cache', async () => {
    expect((await reconcile(REPORTS, { isCached: false })).requests).toEqual([]);
  });

  it('is released when its machine has ended', async () => {
    const terminated = { exitCode: 0, reason: 'Deleted', message: '' };
    const [container] = ORPHAN.status?.containerStatuses ?? [];
    const containerStatuses = container && [{ ...container, state: { terminated } }];
    const pod: Pod = {
      ...ORPHAN,
      status: { phase: 'Failed', ...(containerStatuses && { containerStatuses }) },
    };
    expect((await reconcile(REPORTS, { pod })).requests).toEqual([['patch Pod', []]]);
  });

  it('is released when an administrator gave its host up', async () => {
    expect((await reconcile(undefined, { isGivenUp: true })).requests).toEqual(FORCED_AND_RELEASED);
    expect((await reconcile(OUT_OF_SERVICE)).requests).toEqual(FORCED_AND_RELEASED);
  });

  it('is released when its host counts as lost, and the host remembers the MAC address', async () => {
    const silent = rack('Unknown', '2030-01-01T00:05:01Z');
    expect(await reconcile(silent)).toEqual({ requests: [], requeueAfterMilliseconds: 1000 });
    const givenUp = { [GIVEN_UP_ANNOTATION]: JSON.stringify([macAddressOf(ORPHAN)]) };
    const { requests } = await reconcile(rack('Unknown', '2030-01-01T00:05:00Z'));
    expect(requests).toEqual([['patch Node', givenUp], ...FORCED_AND_RELEASED]);
  });
});

type Named = 'images' | 'isos' | 'vmConfigs';

/** Returns the namespaces of the VMs that are enqueued when the object `base` of this kind changes in the namespace. */
function enqueuedBy(kind: Named, namespace: string): (string | undefined)[] {
  const vms = ['a', 'b', 'c'].map((own) => ({
    metadata: { name: 'x', namespace: own },
    spec: { configRef: { name: 'base', ...(own === 'c' && { namespace: 'a' }) } },
  }));
  const listeners = new Map<string, (change: object) => void>();
  const cacheOf = (name: string) => ({
    onChange: (listener: (change: object) => void) => listeners.set(name, listener),
    list: () => vms,
    byIndex: () => vms,
  });
  const kinds = ['vms', 'pods', 'nodes', 'servers', 'recordsMap', 'vmConfigs', 'images', 'isos', 'snapshots'];
  const informers = kinds.map((name) => [name, { cache: cacheOf(name) }]);
  const keys = new Set<string>();
  const controller = { enqueue: (key: string) => keys.add(key) } as unknown as Controller;
  enqueueVMs(controller, { ...Object.fromEntries(informers), config });
  listeners.get(kind)?.({ type: 'updated', object: { metadata: { name: 'base', namespace } } });
  return [...keys].map((key) => key.split('/')[0]);
}

describe('a change of an object that VMs name', () => {
  it.each(['images', 'isos'] as const)('does not concern VMs of other namespaces: %s', (kind) => {
    expect(enqueuedBy(kind, 'a')).toEqual(['a']);
    expect(enqueuedBy(kind, config.namespaces.default)).toEqual(['a', 'b', 'c']);
  });

  it('concerns VMs of another namespace if they name the VMConfig with its namespace', () => {
    expect(enqueuedBy('vmConfigs', 'a')).toEqual(['a', 'c']);
    expect(enqueuedBy('vmConfigs', config.namespaces.default)).toEqual(['a', 'b']);
  });
});
