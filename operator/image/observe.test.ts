import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { VMSnapshot } from '../../api/v1alpha1/vmsnapshot.ts';
import { Store } from '../../kube/cache.ts';
import type { Controller } from '../../kube/controller.ts';
import type { Informer } from '../../kube/informer.ts';
import type { Job } from '../../kube/core.ts';
import type { KubeObject } from '../../kube/objects.ts';
import { parseConfig } from '../config/config.ts';
import { HOSTS_BY_NAMESPACE } from '../tasks/placement.ts';
import { ownersOf, TASKS_BY_OWNER } from '../tasks/owner.ts';
import { enqueueImages, imagesAffected, observeImage, reportFault } from './observe.ts';
import { planImage } from './plan.ts';
import { type Task, TASK_API_VERSION, type TaskReport } from '../../api/v1alpha1/task.ts';

const config = parseConfig({}, 'test');

function image(namespace: string, name: string, source: Image['spec']['source']): Image {
  const metadata = { namespace, name, uid: `${namespace}/${name}` };
  return { apiVersion: 'berth.dev/v1alpha1', kind: 'Image', metadata, spec: { source } };
}

function holding<T extends KubeObject>(objects: readonly T[]): Informer<T> {
  const cache = new Store<T>(pino({ level: 'silent' }), {
    [TASKS_BY_OWNER]: ownersOf,
    [HOSTS_BY_NAMESPACE]: () => [],
  });
  objects.forEach((object) => cache.put(object));
  return { cache } as unknown as Informer<T>;
}

const EMPTY = { empty: { size: '1Gi' } };

/**
 * Returns the uid of the object that a copy in platform-ci copies, and the keys (`namespace/name`) of the Images that a change of
 * this object concerns. `others` are the existing Images.
 */
function copied(name: string, copyOf: { name: string; namespace?: string }, others: readonly Image[]) {
  const copy = image('platform-ci', name, { copyOf });
  const objects = holding([copy, ...others]);
  const none = {
    vms: holding([]),
    jobs: holding([]),
    taskPods: holding([]),
    nodes: holding([]),
    namespaces: holding([]),
  };
  const sources = { kind: 'Image' as const, objects, config, clock: () => 0, ...none };
  const { origin } = observeImage(sources as unknown as Parameters<typeof observeImage>[0], copy);
  const reported = origin && imagesAffected({ kind: 'Image', objects, config }).byOrigin(origin);
  return { origin: origin?.metadata.uid, reported };
}

describe('the origin of a copied Image', () => {
  const shared = image('platform-default', 'golden', EMPTY);
  const own = image('platform-ci', 'golden', EMPTY);

  it('is looked up in its own namespace, then in the default one', () => {
    const reported = ['platform-ci/copy'];
    expect(copied('copy', { name: 'golden' }, [shared, own])).toEqual({
      origin: 'platform-ci/golden',
      reported,
    });
    expect(copied('copy', { name: 'golden' }, [shared])).toEqual({
      origin: 'platform-default/golden',
      reported,
    });
    expect(copied('copy', { name: 'golden' }, [])).toEqual({ origin: undefined, reported: undefined });
  });

  it('is in the named namespace, and nowhere else', () => {
    const copyOf = { name: 'golden', namespace: 'platform-qa' };
    expect(copied('copy', copyOf, [shared, own]).origin).toBeUndefined();
    const named = image('platform-qa', 'golden', EMPTY);
    expect(copied('copy', copyOf, [shared, own, named]).origin).toBe('platform-qa/golden');
  });

  it('is never the Image itself, which may have the name of its origin', () => {
    expect(copied('golden', { name: 'golden' }, [shared])).toEqual({
      origin: 'platform-default/golden',
      reported: ['platform-ci/golden'],
    });
  });
});

function deployed(name: string, spec: VM['spec'], reference: string): VM {
  const metadata = { name, namespace: 'platform-ci', uid: name };
  const status: VM['status'] = { phase: 'Pulling', image: { reference } };
  return { apiVersion: 'berth.dev/v1alpha1', kind: 'VM', metadata, spec, status };
}

describe('the deletion of an Image or ISO', () => {
  const own = 'berth.dev/platform-ci/desktop';
  const vms = [
    deployed('named', { image: 'desktop' }, 'registry.example/team/desktop:1'),
    deployed('disc', { iso: 'desktop' }, own),
    deployed('both', { image: 'desktop', iso: 'tools' }, own),
    deployed('configured', {}, own),
    deployed('pinned', {}, `${own}@sha256:${'a'.repeat(64)}`),
    deployed('longer', {}, `${own}-ci@sha256:${'a'.repeat(64)}`),
    deployed('other', { image: 'desktop-ci' }, `${own}-ci`),
    { ...deployed('running', { image: 'desktop' }, own), status: { phase: 'Running' } },
  ];

  /** Returns the names of the VMs for which the deletion of the object waits. */
  function awaited(kind: 'Image' | 'ISO', name: string, namespace = 'platform-ci'): readonly string[] {
    const object = image(namespace, name, EMPTY);
    const deleted = { ...object, metadata: { ...object.metadata, deletionTimestamp: 'now' } };
    const none = {
      jobs: holding([]),
      taskPods: holding([]),
      nodes: holding([]),
      namespaces: holding([]),
      objects: holding([]),
    };
    const sources = { kind, config, clock: () => 0, vms: holding(vms), ...none };
    return observeImage(sources as unknown as Parameters<typeof observeImage>[0], deleted).deploying;
  }

  it('waits for VMs that are being prepared from it, and not for VMs of a longer name', () => {
    expect(awaited('Image', 'desktop')).toEqual(['named', 'both', 'configured', 'pinned']);
    expect(awaited('Image', 'desktop-ci')).toEqual(['longer', 'other']);
  });

  it('does not wait for VMs of the other kind with its name', () => {
    expect(awaited('ISO', 'desktop')).toEqual(['disc', 'configured', 'pinned']);
    expect(awaited('ISO', 'tools')).toEqual(['both']);
    expect(awaited('Image', 'tools')).toEqual([]);
  });

  it('waits for VMs with an ISO of the default namespace beside their image', () => {
    expect(awaited('ISO', 'tools', 'platform-default')).toEqual(['both']);
    expect(awaited('ISO', 'tools', 'platform-other')).toEqual([]);
  });
});

describe('a change of a VM', () => {
  const time = '2026-01-01T00:00:00Z';
  const failure = { reason: 'DeployTimeout', message: '', time };

  it.each<[string, NonNullable<VM['status']>, boolean]>([
    ['with its first run concerns', { firstRunningTime: time }, true],
    ['with its failure concerns', { failure }, true],
    ['with only another host does not concern', { nodeName: 'mac1' }, false],
  ])('%s the Image of its disk', (_, status, isReported) => {
    const vm = { ...deployed('builder', {}, ''), status: {} };
    const vms = holding<VM>([vm]);
    const objects = holding([image('platform-ci', 'saved', { fromVM: { name: 'builder' } })]);
    const reported: string[] = [];
    const controller = { enqueue: (key: string) => reported.push(key) } as unknown as Controller;
    const none = {
      jobs: holding([]),
      taskPods: holding([]),
      nodes: holding([]),
      namespaces: holding([]),
      snapshots: holding([]),
    };
    const options = { kind: 'Image', objects, vms, config, ...none };
    enqueueImages(controller, options as unknown as Parameters<typeof enqueueImages>[1]);
    reported.length = 0;
    const metadata = { ...vm.metadata, resourceVersion: '2' };
    (vms.cache as Store<VM>).put({ ...vm, metadata, status });
    expect(reported).toEqual(isReported ? ['platform-ci/saved'] : []);
  });
});

it('a change of a snapshot concerns the Images of its disk, and no others', () => {
  const fromVM = { name: 'builder', snapshot: 'before' };
  const objects = holding([
    image('platform-ci', 'saved', { fromVM }),
    image('platform-ci', 'present', { fromVM: { name: 'builder' } }),
    image('platform-qa', 'saved', { fromVM }),
  ]);
  const snapshot = { metadata: { name: 'before', namespace: 'platform-ci' } } as VMSnapshot;
  expect(imagesAffected({ kind: 'Image', objects, config }).bySnapshot(snapshot)).toEqual([
    'platform-ci/saved',
  ]);
});

describe('a Job that has ended, but whose Pod was removed', () => {
  const source = { registry: { reference: 'registry.example/team/disk:1' } };

  /** Returns the Job that is created for the Image next. `jobs` are the existing Jobs, which have no Pods. */
  function nextJob(object: Image, jobs: readonly Job[]) {
    const others = {
      vms: holding([]),
      taskPods: holding([]),
      nodes: holding([]),
      namespaces: holding([]),
      objects: holding([object]),
    };
    const sources = { kind: 'Image', config, clock: () => 0, jobs: holding(jobs), ...others };
    return planImage(observeImage(sources as unknown as Parameters<typeof observeImage>[0], object))
      .createJob;
  }

  it.each([
    ['does not delay the next operation once its result is stored', 'Complete', true],
    ['delays the next operation until it has ended', 'Suspended', false],
  ])('%s', (_, type, isNext) => {
    const fetched = image('platform-ci', 'golden', source);
    const pull = {
      ...(nextJob(fetched, []) as Job),
      status: { conditions: [{ type, status: 'True' as const }] },
    };
    const content = { type: 'registry', reference: `registry.example/team/disk@sha256:${'a'.repeat(64)}` };
    const push = { reference: 'registry.example/team/copy:1', requestedAt: '2026-01-01T00:00:00Z' };
    const ready = { ...fetched, spec: { source, push }, status: { content } };
    expect(nextJob(ready, [pull]) !== undefined).toBe(isNext);
  });
});

const apiVersion = TASK_API_VERSION;
const [A, B] = ['a', 'b'].map((digit) => `sha256:${digit.repeat(64)}`) as [string, string];
const HEX = A.replace('sha256:', '');
const STORED = 'storage.example/berth/platform-ci/golden';

function imported(source: object, target?: object): Task {
  return { apiVersion, type: 'import', image: { source, format: 'Auto' }, target } as Task;
}

const tasks = {
  tag: imported({ type: 'registry', reference: 'registry.example/team/disk:1' }),
  pin: imported({ type: 'registry', reference: `registry.example/team/disk:1@${A}` }),
  hub: imported({ type: 'registry', reference: 'alpine' }),
  http: imported({ type: 'http', url: 'https://images.example/disk', sha256: HEX }),
  file: imported({ type: 'sharedFile', path: 'disk.raw' }),
  kept: imported({ type: 'http', url: 'https://x.example/d', sha256: HEX }, { type: 'folder', path: 'ci/g' }),
  saved: {
    apiVersion,
    type: 'save',
    vm: { namespace: 'platform-ci', name: 'builder', uid: 'v' },
    target: { type: 'registry', reference: `${STORED}:0123456789abcdef` },
  } as Task,
  warm: {
    apiVersion,
    type: 'save',
    vm: { namespace: 'platform-ci', name: 'builder', uid: 'v' },
    memory: true,
    target: { type: 'registry', reference: `${STORED}:0123456789abcdef` },
  } as Task,
  received: {
    apiVersion,
    type: 'receive',
    limitBytes: 2 ** 30,
    format: 'Auto',
    target: { type: 'registry', reference: `${STORED}:0123456789abcdef` },
  } as Task,
  pushed: {
    apiVersion,
    type: 'push',
    image: { source: { type: 'storedArtifact', reference: `${STORED}@${A}` }, format: 'Auto' },
    reference: 'registry.example/out:1',
  } as Task,
};

const MEMORY = { cpu: 2, memoryBytes: 2 ** 30, key: HEX, savedAt: '2026-01-01T00:00:00Z' };

type Case = [keyof typeof tasks, TaskReport];

describe('a report', () => {
  it.each<Case>([
    ['tag', { digest: B, reference: `registry.example/team/disk@${A}`, sizeBytes: 2 ** 30, storageBytes: 0 }],
    ['pin', { digest: B, reference: `registry.example/team/disk@${A}` }],
    ['hub', { digest: B, reference: `docker.io/library/alpine@${B}` }],
    ['http', { digest: A }],
    ['file', { digest: B }],
    ['kept', { digest: B }],
    ['saved', { digest: A, reference: `${STORED}@${A}`, consistency: 'Crash' }],
    ['warm', { digest: A, reference: `${STORED}@${A}`, memory: MEMORY }],
    ['warm', { digest: A, reference: `${STORED}@${A}` }],
    ['file', { digest: B, memory: MEMORY }],
    ['received', { digest: A, reference: `${STORED}@${A}` }],
    ['pushed', { digest: A, reference: `registry.example/out@${A}` }],
  ])('of %s with the values of an honest host fits', (name, report) => {
    expect(reportFault(tasks[name], report)).toBeUndefined();
  });

  it.each<Case>([
    ['tag', {}],
    ['tag', { digest: A }],
    ['tag', { digest: 'newest', reference: `registry.example/team/disk@${A}` }],
    ['tag', { digest: A, reference: 'registry.example/team/disk:1' }],
    ['tag', { digest: A, reference: `registry.example/team/disk:1@${A}` }],
    ['tag', { digest: A, reference: `registry.example/team/disk@sha512:${'a'.repeat(128)}` }],
    ['tag', { digest: A, reference: `registry.example/team/disk@${A}@${A}` }],
    ['tag', { digest: A, reference: `registry.example/team/disk2@${A}` }],
    ['tag', { digest: A, reference: `registry.example/team@${A}` }],
    ['tag', { digest: A, reference: `evil.example/team/disk@${A}` }],
    ['tag', { digest: A, reference: `registry.example:443/team/disk@${A}` }],
    ['pin', { digest: A, reference: `registry.example/team/disk@${B}` }],
    ['http', { digest: B }],
    ['http', { digest: A, reference: `evil.example/team/disk@${A}` }],
    ['file', { digest: 'sha256:short' }],
    ['file', { digest: A, reference: 'other.raw' }],
    ['kept', {}],
    ['kept', { digest: A, reference: 'another/tenant.qcow2' }],
    ['saved', { digest: A, reference: `storage.example/berth/platform-other/golden@${A}` }],
    ['saved', { digest: A, reference: `${STORED}:0123456789abcdef` }],
    ['saved', { digest: B, reference: `${STORED}@${A}` }],
    ['saved', { reference: `${STORED}@${A}` }],
    ['saved', { digest: A, reference: `${STORED}@${A}`, memory: MEMORY }],
    ['received', { digest: A, reference: `${STORED}@${A}`, memory: MEMORY }],
    ['warm', { digest: A, reference: `${STORED}@${A}`, memory: { ...MEMORY, memoryBytes: 2 ** 52 } }],
    ['file', { digest: B, memory: { ...MEMORY, cpu: 257 } }],
    ['received', { digest: A, reference: `storage.example/berth/platform-other/golden@${A}` }],
    ['received', { digest: A, reference: `${STORED}@${A}`, sizeBytes: -1 }],
    ['pushed', { digest: A }],
    ['pushed', { digest: A, reference: `registry.example/elsewhere@${A}` }],
    ['pushed', { digest: B, reference: `registry.example/out@${A}` }],
    ['pushed', { digest: A, reference: `registry.example/out@${A}`, sizeBytes: -1 }],
    ['http', { digest: A, storageBytes: 2 ** 52 }],
  ])('of %s with %j does not', (name, report) => {
    expect(reportFault(tasks[name], report)).toMatch(/^reported /);
  });

  it('of a task that cannot be read does not fit', () => {
    expect(reportFault(undefined, { digest: A })).toBeDefined();
  });
});
