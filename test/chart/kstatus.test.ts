/**
 * Objects of all kinds as clients see them that wait for objects: the library of Helm and Flux (kstatus), `helm --wait` itself, and Argo CD
 * with the health script of the documentation.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { MACHINE_CONDITION } from '../../api/v1alpha1/names.ts';
import {
  EMULATORS,
  IMAGE_CACHE_ENTRIES,
  IMAGES,
  ISOS,
  VM_CONFIGS,
  VMS,
} from '../../api/v1alpha1/resources.ts';
import type { VMSpec } from '../../api/v1alpha1/vm.ts';
import type { Ref, Resource } from '../../kube/objects.ts';
import { type Cluster, startCluster } from '../../hack/cluster/index.ts';
import { CacheEntries } from '../fixtures/cacheentries.ts';
import { Emulators } from '../fixtures/emulatorobjects.ts';
import { IMAGE, VMs } from '../fixtures/vms.ts';
import { Health } from '../support/health.ts';
import { MachineChart } from '../support/machinechart.ts';
import { type Stored, untilReported } from '../fixtures/objects.ts';
import { ActingHost, podOfTask } from '../worlds/actinghost.ts';
import { CacheSimulator } from '../worlds/cachesimulator.ts';

const NAMESPACE = 'platform-default';
const DIGEST = `sha256:${'a'.repeat(64)}`;
const REGISTRY = { registry: { reference: 'registry.example/team/image:1' } };
const WEB = { http: { url: 'https://images.example/a.iso', sha256: 'a'.repeat(64) } };
/** Report of a host that fetched {@link REGISTRY}. */
const REPORT = {
  sizeBytes: 1024 ** 3,
  storageBytes: 1024 ** 2,
  digest: DIGEST,
  reference: `registry.example/team/image@${DIGEST}`,
};
/** Size with which many machines fit on one host. */
const SMALL = { cpu: 1, memory: '512Mi' };
/** Host whose agent is the test. */
const ON_BARE = { placement: { node: 'bare' } };

let cluster: Cluster;
let folder: string;
let health: Health;
let charts: MachineChart;
let bare: ActingHost;
/** Host that stops reporting, and that never ends its work for the cache. */
let quiet: ActingHost;
/** Host with nothing but tasks. */
let spare: ActingHost;
let simulator: CacheSimulator;
let vms: VMs;
let emulators: Emulators;
let entries: CacheEntries;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-health-'));
  health = await Health.open(folder);
  charts = await MachineChart.write(folder);
  cluster = await startCluster({ name: `kstatus-${process.pid}` });
  bare = await ActingHost.join(cluster.client(), 'bare', { slots: 16 });
  quiet = await ActingHost.join(cluster.client(), 'quiet');
  spare = await ActingHost.join(cluster.client(), 'spare');
  simulator = await CacheSimulator.start(cluster.client());
  simulator.conduct('bare', { fails: { reason: 'ImageFetchFailed', message: 'as the host says' } });
  simulator.conduct('quiet', { hangs: true });
  vms = new VMs(cluster);
  emulators = new Emulators(cluster);
  entries = new CacheEntries(cluster);
});

afterAll(async () => {
  simulator?.stop();
  await bare?.silence();
  await quiet?.silence();
  await spare?.silence();
  await cluster?.stop();
  await rm(folder, { recursive: true });
});

function ref(name: string) {
  return { namespace: NAMESPACE, name };
}

function create<T extends Stored>(type: Resource<T>, name: string, spec: object): Promise<T> {
  const metadata = type.namespaced ? ref(name) : { name };
  return cluster
    .client()
    .create(type, { metadata, spec } as unknown as Parameters<
      ReturnType<Cluster['client']>['create']
    >[1]) as Promise<T>;
}

function get<T extends Stored>(type: Resource<T>, name: string): Promise<T> {
  return cluster.client().get(type, type.namespaced ? ref(name) : { name });
}

/** Waits until the object has a condition with this reason, or this type and status `True`. */
function until<T extends Stored>(type: Resource<T>, name: string, word: string): Promise<void> {
  return untilReported(`${type.kind} ${name}`, () => get(type, name), word);
}

/** Creates a VM on the bare host, and lets it run. */
async function running(name: string, spec: Partial<VMSpec> = {}): Promise<void> {
  await create(VMS, name, { image: IMAGE, ...ON_BARE, ...SMALL, ...spec });
  await bare.waitForPod(ref(name));
  await bare.run(ref(name));
  await until(VMS, name, 'Running');
}

/** Creates a VM that is off as declared. */
async function turnedOff(name: string, powerState: 'Stopped' | 'Suspended'): Promise<void> {
  await create(VMS, name, { image: IMAGE, ...ON_BARE, ...SMALL, powerState });
  await bare.waitForPod(ref(name));
  await bare.stopped(ref(name), powerState);
  await until(VMS, name, powerState);
}

/** Creates an Image or ISO, and waits until the host does its first task. */
async function fetching(type: typeof IMAGES | typeof ISOS, name: string, source: object): Promise<Ref> {
  await create(type, name, { source });
  const pod = await podOfTask(cluster.client(), { kind: type.kind, namespace: NAMESPACE, name });
  const host = [bare, quiet, spare].find((one) => one.name === pod.spec.nodeName) ?? bare;
  const begun = await host.beginTask(ref(pod.metadata.ownerReferences?.[0]?.name ?? ''));
  await until(type, name, 'Pulling');
  return begun;
}

async function fetched(type: typeof IMAGES | typeof ISOS, name: string, source: object): Promise<void> {
  const pod = await fetching(type, name, source);
  await bare.finishTask(pod, REPORT);
  await until(type, name, 'Available');
}

async function failing(type: typeof IMAGES | typeof ISOS, name: string, reason: string): Promise<void> {
  const pod = await fetching(type, name, type === ISOS ? WEB : REGISTRY);
  await bare.failTask(pod, reason, 'as the host says');
  await until(type, name, reason);
}

const cached = (name: string, host: string) =>
  create(IMAGE_CACHE_ENTRIES, name, { reference: `registry.example/${name}:1`, targets: { nodes: [host] } });

/** Objects in one state: how to bring them there, and what kstatus says. If `says` is given, both messages must match it. */
interface State {
  readonly type: Resource<Stored>;
  readonly name: string;
  readonly prepare: (name: string) => Promise<unknown>;
  readonly expected: keyof typeof HEALTH;
  readonly says?: RegExp;
}

/** Health in Argo CD for each status of kstatus. */
const HEALTH = {
  Current: 'Healthy',
  InProgress: 'Progressing',
  Failed: 'Degraded',
  Terminating: 'Progressing',
} as const;

const VM_STATES: readonly Omit<State, 'type'>[] = [
  {
    name: 'no-host',
    prepare: async (name) => {
      await create(VMS, name, { image: IMAGE, placement: { node: 'nowhere' } });
      await until(VMS, name, 'Unschedulable');
    },
    expected: 'InProgress',
    says: /No host has the architecture, name or tag/,
  },
  {
    name: 'no-image',
    prepare: async (name) => {
      await create(VMS, name, { image: 'nothere' });
      await until(VMS, name, 'ImageNotFound');
    },
    expected: 'InProgress',
    says: /nothere/,
  },
  {
    name: 'cannot-run',
    prepare: async (name) => {
      await create(VMS, name, { image: IMAGE, network: { mode: 'Bridge' } });
      await until(VMS, name, 'NetworkModeUnsupported');
    },
    expected: 'Failed',
    says: /Bridge/,
  },
  {
    name: 'pulling',
    prepare: async (name) => {
      await create(VMS, name, { image: IMAGE, ...ON_BARE, ...SMALL });
      await bare.waitForPod(ref(name));
      await bare.waiting(ref(name), 'Pulling', '42 % of the work is done');
      await until(VMS, name, 'Pulling');
    },
    expected: 'InProgress',
    says: /42 %/,
  },
  { name: 'runs', prepare: (name) => running(name), expected: 'Current', says: /^The machine runs$/ },
  {
    name: 'not-ready',
    prepare: async (name) => {
      await running(name);
      await bare.setPodCondition(ref(name), { type: 'Ready', status: 'False', message: 'Port 22 is closed' });
      await until(VMS, name, 'NotReady');
    },
    expected: 'InProgress',
    says: /^Port 22 is closed$/,
  },
  {
    name: 'to-be-stopped',
    prepare: async (name) => {
      await running(name);
      await vms.patch(name, { powerState: 'Stopped' });
      await until(VMS, name, 'Stopping');
    },
    expected: 'InProgress',
    says: /to be stopped/,
  },
  {
    name: 'to-be-restarted',
    prepare: async (name) => {
      await running(name);
      await vms.patch(name, { restartRequestedAt: '2030-01-01T00:00:00Z' });
      await until(VMS, name, 'Restarting');
    },
    expected: 'InProgress',
    says: /to be restarted/,
  },
  { name: 'stopped', prepare: (name) => turnedOff(name, 'Stopped'), expected: 'Current', says: /is off/ },
  {
    name: 'suspended',
    prepare: (name) => turnedOff(name, 'Suspended'),
    expected: 'Current',
    says: /on disk/,
  },
  {
    name: 'powered-off',
    prepare: async (name) => {
      await running(name);
      const isOwnEnd = { type: MACHINE_CONDITION, status: 'False', reason: 'GuestShutdown' } as const;
      await bare.setPodCondition(ref(name), isOwnEnd);
      await bare.stopped(ref(name));
      await until(VMS, name, 'GuestShutdown');
    },
    expected: 'Failed',
    says: /guest powered itself off/,
  },
  {
    name: 'crashed',
    prepare: async (name) => {
      await running(name);
      await bare.fail(ref(name), 'Crashed', 'the last words of QEMU', new Date().toISOString());
      await until(VMS, name, 'Crashed');
    },
    expected: 'Failed',
    says: /last words/,
  },
  {
    name: 'silent',
    prepare: async (name) => {
      await create(VMS, name, { image: IMAGE, placement: { node: 'quiet' }, ...SMALL });
      await quiet.waitForPod(ref(name));
      await quiet.run(ref(name));
      await until(VMS, name, 'Running');
      await quiet.setCondition({ type: 'Ready', status: 'Unknown', reason: 'NodeStatusUnknown' });
      await until(VMS, name, 'HostUnreachable');
    },
    expected: 'InProgress',
    says: /quiet does not report/,
  },
  {
    name: 'deleted',
    prepare: async (name) => {
      await running(name);
      await vms.delete(name);
      await until(VMS, name, 'Terminating');
    },
    expected: 'Terminating',
  },
];

const IMAGE_STATES: readonly Omit<State, 'type'>[] = [
  {
    name: 'copy-of-nothing',
    prepare: async (name) => {
      await create(IMAGES, name, { source: { copyOf: { name: 'nothere' } } });
      await until(IMAGES, name, 'CopySourceNotReady');
    },
    expected: 'InProgress',
    says: /nothere was not found/,
  },
  {
    name: 'fetching',
    prepare: (name) => fetching(IMAGES, name, REGISTRY),
    expected: 'InProgress',
    says: /Host \w+ is fetching/,
  },
  { name: 'available', prepare: (name) => fetched(IMAGES, name, REGISTRY), expected: 'Current' },
  {
    name: 'tried-again',
    prepare: (name) => failing(IMAGES, name, 'ImageFetchFailed'),
    expected: 'InProgress',
    says: /as the host says; the next attempt is at/,
  },
  {
    name: 'failed',
    prepare: (name) => failing(IMAGES, name, 'DigestMismatch'),
    expected: 'Failed',
    says: /as the host says/,
  },
  {
    name: 'pushed',
    prepare: async (name) => {
      await fetched(IMAGES, name, REGISTRY);
      const push = { reference: 'registry.example/team/pushed:1', requestedAt: '2030-01-01T00:00:00Z' };
      await cluster.client().mergePatch(IMAGES, ref(name), { spec: { push } });
      await until(IMAGES, name, 'Ready');
    },
    expected: 'InProgress',
  },
];

const ISO_STATES: readonly Omit<State, 'type'>[] = [
  { name: 'available', prepare: (name) => fetched(ISOS, name, REGISTRY), expected: 'Current' },
  {
    name: 'failed',
    prepare: (name) => failing(ISOS, name, 'DigestMismatch'),
    expected: 'Failed',
    says: /as the host says/,
  },
];

const ENTRY_STATES: readonly Omit<State, 'type'>[] = [
  {
    name: 'cached',
    prepare: async (name) => {
      await cached(name, 'spare');
      await entries.waitUntilCached(name, 1);
    },
    expected: 'Current',
    says: /1 of 1 hosts have the image/,
  },
  {
    name: 'caching',
    prepare: async (name) => {
      await cached(name, 'quiet');
      await until(IMAGE_CACHE_ENTRIES, name, 'Caching');
    },
    expected: 'InProgress',
    says: /0 of 1 hosts have the image/,
  },
  {
    name: 'failed',
    prepare: async (name) => {
      await cached(name, 'bare');
      await until(IMAGE_CACHE_ENTRIES, name, 'CacheFailed');
    },
    expected: 'InProgress',
    says: /as the host says/,
  },
  {
    name: 'twice',
    prepare: async (name) => {
      await create(IMAGE_CACHE_ENTRIES, name, { reference: IMAGE, targets: { nodes: ['bare'] } });
      await until(IMAGE_CACHE_ENTRIES, name, 'DuplicateOf');
    },
    expected: 'Failed',
    says: /Entry early already requests/,
  },
];

const EMULATOR_STATES: readonly Omit<State, 'type'>[] = [
  {
    name: 'without-vm',
    prepare: async (name) => {
      await emulators.create(name, { vmName: 'nothere' });
      await until(EMULATORS, name, 'VMNotFound');
    },
    expected: 'InProgress',
    says: /nothere was not found/,
  },
  {
    name: 'runs',
    prepare: async (name) => {
      await emulators.create(name, { vmName: 'runs', cpu: 1, memory: '2560Mi' });
      await bare.waitForPod(emulators.podRef(name));
      await bare.run(emulators.podRef(name));
      await until(EMULATORS, name, 'Running');
    },
    expected: 'Current',
  },
  {
    name: 'beside-stopped',
    prepare: async (name) => {
      await emulators.create(name, { vmName: 'stopped' });
      await until(EMULATORS, name, 'Ready');
    },
    expected: 'Current',
    says: /VM stopped is not running/,
  },
  {
    name: 'beside-ended',
    prepare: async (name) => {
      // An Emulator that had run would keep its Pod until its host has ended it.
      await until(VMS, 'powered-off', 'GuestShutdown');
      await emulators.create(name, { vmName: 'powered-off' });
      await until(EMULATORS, name, 'Stalled');
    },
    expected: 'Failed',
    says: /VM powered-off is not running/,
  },
];

it('no object is finished before the operator has seen it', async () => {
  const objects = [
    await create(VMS, 'early', { image: IMAGE }),
    await create(IMAGES, 'early', { source: REGISTRY }),
    await create(ISOS, 'early', { source: WEB }),
    await create(EMULATORS, 'early', { vmName: 'early' }),
    await create(IMAGE_CACHE_ENTRIES, 'early', { reference: IMAGE, targets: { nodes: ['bare'] } }),
  ];
  for (const { status } of objects) {
    expect(status).toEqual({ observedGeneration: -1 });
  }
  const verdicts = await health.judge(objects);
  expect(verdicts.map(({ kstatus, script }) => `${kstatus} ${script}`)).toEqual(
    objects.map(() => 'InProgress Progressing'),
  );
  await cluster.startOperator({ config: { osx_node_platform_quota_pod: 16 } });
});

it('helm --wait waits for a VM until it is as declared, also when it is off, and tells why it is not', async () => {
  const spec = { image: IMAGE, ...ON_BARE, ...SMALL };
  const off = { ...spec, powerState: 'Stopped' };
  const [runs, stopped, missing] = await Promise.all([
    charts.release(cluster, 'install', 'helm-runs', { spec }),
    charts.release(cluster, 'install', 'helm-stopped', { spec: off }),
    charts.release(cluster, 'install', 'helm-missing', { spec: { ...spec, image: 'nothere' } }),
    bare.waitForPod(ref('helm-runs')).then(() => bare.run(ref('helm-runs'))),
    bare.waitForPod(ref('helm-stopped')).then(() => bare.stopped(ref('helm-stopped'))),
  ]);
  expect(runs).toMatchObject({ code: 0 });
  expect((await vms.get('helm-runs')).status?.phase).toBe('Running');
  expect(stopped).toMatchObject({ code: 0 });
  expect((await vms.get('helm-stopped')).status?.phase).toBe('Stopped');
  const upgraded = await charts.release(cluster, 'upgrade', 'helm-stopped', {
    spec: off,
    labels: { team: 'ci' },
  });
  expect(upgraded).toMatchObject({ code: 0 });
  expect(missing.code).not.toBe(0);
  expect(missing.stderr).toMatch(
    /VM\/platform-default\/helm-missing not ready\. status: InProgress, message: .*nothere/,
  );
});

it('each state of the six kinds has the health that clients expect, with a sentence', async () => {
  const of = (type: Resource<Stored>, states: readonly Omit<State, 'type'>[]) =>
    states.map((state) => ({ type, ...state }));
  const config = {
    name: 'small',
    prepare: (name: string) => create(VM_CONFIGS, name, SMALL),
    expected: 'Current',
  } as const;
  const states: State[] = [
    ...of(VMS, VM_STATES),
    ...of(IMAGES, IMAGE_STATES),
    ...of(ISOS, ISO_STATES),
    ...of(IMAGE_CACHE_ENTRIES, ENTRY_STATES),
    ...of(EMULATORS, EMULATOR_STATES),
    ...of(VM_CONFIGS, [config]),
  ];
  await Promise.all(states.map(({ name, prepare }) => prepare(name)));
  const objects = await Promise.all(states.map(({ type, name }) => get(type, name)));
  const verdicts = await health.judge(objects);
  for (const [index, { type, name, expected, says = /^/ }] of states.entries()) {
    const verdict = verdicts[index];
    process.stdout.write(
      `${type.kind} ${name}: ${verdict?.kstatus}, ${verdict?.script}: ${verdict?.message}\n`,
    );
    const reported = { kstatus: expected, script: HEALTH[expected] };
    expect.soft(verdict, `${type.kind} ${name}`).toMatchObject(reported);
    if (expected !== 'Current' && expected !== 'Terminating') {
      expect.soft(verdict?.message, `${type.kind} ${name}, kstatus`).toMatch(says);
    }
    if (type !== VM_CONFIGS) {
      expect.soft(verdict?.reported, `${type.kind} ${name}, script`).toMatch(says);
    }
  }
  const conditions = objects.flatMap(({ status }) => status?.conditions ?? []);
  expect(conditions.filter(({ message }) => message === '')).toEqual([]);
  expect(conditions.filter(({ observedGeneration }) => observedGeneration === undefined)).toEqual([]);
});
