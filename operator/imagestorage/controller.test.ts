import { constantFrom } from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Image } from '../../api/v1alpha1/image.ts';
import type { MachineImageSource } from '../../api/v1alpha1/source.ts';
import { MACHINE_ANNOTATION, TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { type StorageTarget, TASK_API_VERSION, type TaskReport } from '../../api/v1alpha1/task.ts';
import type { Job, Pod } from '../../kube/core.ts';
import { assertHistories } from '../../test/support/properties.ts';
import { parseConfig } from '../config/config.ts';
import type { ImageJob, ObservedImage } from '../image/observe.ts';
import {
  abandonedPlaces,
  type ContentPlace,
  placeKey,
  placeOf,
  recordedPlace,
  removalRecord,
  replacedPlaces,
} from '../image/place.ts';
import { type ContentRemoval, isNeeded, needsOf, planRemovals, writingHosts } from './controller.ts';
import { machineDocument } from '../../test/fixtures/machines.ts';

const KEEP_MILLISECONDS = 600_000;
/** Longest time in milliseconds that a write of an operator takes. */
const FLIGHT_MILLISECONDS = 120_000;
const COMMIT = { vmName: 'builder', requestedAt: '2026-01-01T00:00:00Z' };
const STORAGES = { folder: { folder: true }, registry: { registry: { prefix: 'registry.example/berth' } } };
type Kind = keyof typeof STORAGES;

function image(name: string, content?: MachineImageSource): Image {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { name, namespace: 'platform-ci', uid: name },
    spec: { source: { fromVM: { name: 'builder' } } },
    ...(content !== undefined && { status: { content } }),
  };
}

function machinePod(source: MachineImageSource, phase: 'Pending' | 'Running' = 'Pending'): Pod {
  const machine = machineDocument({ namespace: 'platform-ci', name: 'guest', uid: 'v' }, { image: source });
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name: 'guest', annotations: { [MACHINE_ANNOTATION]: JSON.stringify(machine) } },
    spec: { containers: [] },
    status: { phase },
  };
}

/** Returns a succeeded commit Job that has created this content. */
function commitJob(content: MachineImageSource): ImageJob {
  const digest = `sha256:${'a'.repeat(64)}`;
  const [target, report]: [StorageTarget, TaskReport] =
    content.type === 'storedFile'
      ? [{ type: 'folder', path: content.path }, { digest }]
      : [
          { type: 'registry', reference: 'tag' },
          { digest, reference: (content as { reference: string }).reference },
        ];
  const vm = { namespace: 'platform-ci', name: 'builder', uid: 'v' };
  const task = { apiVersion: TASK_API_VERSION, type: 'save', vm, target };
  const metadata = { annotations: { [TASK_ANNOTATION]: JSON.stringify(task) } };
  return {
    job: {
      apiVersion: 'batch/v1',
      kind: 'Job',
      metadata: { name: 'commit' },
      spec: { template: { metadata, spec: { containers: [] } } },
    },
    operation: 'commit',
    requestedAt: COMMIT.requestedAt,
    attempt: 1,
    outcome: { kind: 'succeeded', report, finishedAt: undefined },
  };
}

/**
 * Model of Images, copies and VMs over one storage. An operation that begins with a read of a cache is written some time later,
 * or never.
 */
class World {
  now = Date.parse('2026-01-01T00:00:00Z');
  readonly config;
  readonly objects = new Map<string, Image>();
  readonly storage = new Set<string>();
  readonly removed: string[] = [];
  pods: Pod[] = [];
  readonly #kind: Kind;
  readonly #records = new Map<string, Job>();
  /** Commits that have ended, but are not in the status of their image. */
  readonly #unsettled = new Map<string, ImageJob>();
  #flights: { begun: number; land: () => void }[] = [];
  #unneededSince: ReadonlyMap<string, number> = new Map();
  #made = 0;

  constructor(kind: Kind) {
    this.#kind = kind;
    this.config = parseConfig({ imageStorage: STORAGES[kind] }, 'test');
  }

  make(): MachineImageSource {
    this.#made += 1;
    const digest = `sha256:${this.#made.toString(16).padStart(64, '0')}`;
    const content: MachineImageSource =
      this.#kind === 'folder'
        ? { type: 'storedFile', path: `platform-ci/${this.#made}.qcow2`, sha256: '' }
        : { type: 'storedArtifact', reference: `registry.example/berth/platform-ci/i@${digest}` };
    this.storage.add(this.#key(content));
    return content;
  }

  save(): void {
    const object = image(`image-${this.#made}`, this.make());
    this.objects.set(object.metadata.name, object);
  }

  /** Commits new content. Commits run one after another, and only once the image has content. */
  commit(object: Image, crashes: boolean): void {
    if (object.status === undefined || this.#unsettled.has(object.metadata.name)) {
      return;
    }
    const content = this.make();
    this.#keep(object, replacedPlaces(this.observed(object), { content }));
    const { name } = object.metadata;
    // If a crash prevents the write of the status, the next operator writes it.
    if (crashes) {
      this.objects.set(name, { ...object, spec: { ...object.spec, commit: COMMIT } });
      this.#unsettled.set(name, commitJob(content));
      this.#flights.push({ begun: this.now, land: () => this.#finishFlight(name, content) });
    } else {
      this.objects.set(name, { ...object, status: { content } });
    }
  }

  copy(object: Image): void {
    const name = `copy-${this.#made}-${this.now}-${this.#flights.length}`;
    const content = object.status?.content as MachineImageSource | undefined;
    this.objects.set(name, image(name));
    this.#flights.push({ begun: this.now, land: () => this.#finishFlight(name, content) });
  }

  deploy(object: Image): void {
    const source = object.status?.content as MachineImageSource | undefined;
    if (source === undefined) {
      return;
    }
    this.#flights.push({ begun: this.now, land: () => this.pods.push(machinePod(source)) });
  }

  delete(object: Image, crashes: boolean): void {
    this.#keep(object, abandonedPlaces(this.observed(object)));
    if (!crashes) {
      this.objects.delete(object.metadata.name);
    }
  }

  restart(): void {
    this.#unneededSince = new Map();
  }

  /** Lets time pass. Writes that are delayed for the longest possible time are executed. */
  later(milliseconds: number): void {
    this.now += milliseconds;
    this.land(FLIGHT_MILLISECONDS);
  }

  land(age = 0): void {
    const landing = this.#flights.filter(({ begun }) => this.now - begun >= age);
    this.#flights = this.#flights.filter((flight) => !landing.includes(flight));
    landing.forEach(({ land }) => land());
  }

  look(): void {
    const { due, unneededSince } = planRemovals({
      removals: this.#removals,
      needs: needsOf({ objects: [...this.objects.values()], pods: this.pods, jobs: [] }),
      unneededSince: this.#unneededSince,
      keepMilliseconds: KEEP_MILLISECONDS,
      now: this.now,
    });
    this.#unneededSince = unneededSince;
    for (const { job } of due) {
      this.#records.set(job.metadata.name, { ...job, spec: { ...job.spec, suspend: false } });
    }
  }

  /** Completes the removals whose Jobs have begun. */
  work(): void {
    for (const { job, place } of this.#removals.filter((one) => one.job.spec.suspend === false)) {
      this.storage.delete(placeKey(place));
      this.removed.push(placeKey(place));
      this.#records.delete(job.metadata.name);
    }
  }

  /** Keys of the content that Images need, and that VMs still need. */
  get needed(): Set<string> {
    const used = this.pods.filter(({ status }) => status?.phase === 'Pending');
    const machines = used.map(
      ({ metadata }) => JSON.parse(metadata.annotations?.[MACHINE_ANNOTATION] ?? '').image,
    );
    const contents = [...this.objects.values()].map(
      ({ status }) => status?.content as MachineImageSource | undefined,
    );
    return new Set(
      [...contents, ...machines].filter((one) => one !== undefined).map((one) => this.#key(one)),
    );
  }

  observed(object: Image): ObservedImage {
    const { config, now } = this;
    const job = this.#unsettled.get(object.metadata.name);
    const jobs = job === undefined ? [] : [job];
    return {
      object,
      kind: 'Image',
      jobs,
      origin: undefined,
      vm: () => undefined,
      snapshot: () => undefined,
      deploying: [],
      credentials: [],
      isDedicated: () => false,
      config,
      now,
    };
  }

  get #removals(): ContentRemoval[] {
    return [...this.#records.values()].map((job) => ({
      job,
      place: recordedPlace(job) as ContentPlace,
      end: undefined,
    }));
  }

  #finishFlight(name: string, content: MachineImageSource | undefined): void {
    const object = this.objects.get(name);
    this.#unsettled.delete(name);
    if (object !== undefined && content !== undefined) {
      this.objects.set(name, { ...object, status: { content } });
    }
  }

  #keep(object: Image, places: readonly ContentPlace[]): void {
    for (const place of places) {
      const { metadata, ...job } = removalRecord(this.observed(object), place);
      const name = metadata.name ?? '';
      if (!this.#records.has(name)) {
        const made = { ...metadata, name, uid: `${name}-${this.now}` };
        this.#records.set(name, { apiVersion: 'batch/v1', kind: 'Job', ...job, metadata: made });
      }
    }
  }

  #key(content: MachineImageSource): string {
    const place = placeOf(content, this.config);
    return place === undefined ? '' : placeKey(place);
  }
}

const EVENTS = [
  'save',
  'commit',
  'copy',
  'deploy',
  'delete',
  'crash',
  'land',
  'run',
  'end',
  'later',
  'long',
  'restart',
  'work',
] as const;
const events = constantFrom(...EVENTS);

function act(world: World, event: (typeof EVENTS)[number], index: number): void {
  const objects = [...world.objects.values()];
  const object = objects[index % Math.max(1, objects.length)];
  const [pod, ...others] = world.pods;
  const acts = {
    save: () => world.save(),
    commit: () => object && world.commit(object, false),
    copy: () => object && world.copy(object),
    deploy: () => object && world.deploy(object),
    delete: () => object && world.delete(object, false),
    crash: () => object && (index % 2 === 0 ? world.delete(object, true) : world.commit(object, true)),
    land: () => world.land(),
    run: () => pod && (world.pods = [...others, { ...pod, status: { phase: 'Running' as const } }]),
    end: () => (world.pods = others),
    later: () => world.later(60_000),
    long: () => Array.from({ length: 12 }, () => [world.later(60_000), world.look()]),
    restart: () => world.restart(),
    work: () => world.work(),
  };
  acts[event]();
}

describe.each(['folder', 'registry'] as const)('content in a %s', (kind) => {
  it('is removed once when nothing needs it any more, and never before, in any order of events', (context) => {
    assertHistories(context, { step: events, maxLength: 80, numRuns: 300 }, (history) => {
      const world = new World(kind);
      world.save();
      history.forEach((event, index) => {
        act(world, event, index);
        world.look();
        expect([...world.needed].filter((key) => !world.storage.has(key))).toEqual([]);
      });
      world.land();
      for (let minute = 0; minute < 30; minute += 1) {
        world.later(60_000);
        world.look();
        world.work();
      }
      const left = [...world.storage].filter((key) => !world.needed.has(key));
      expect(left).toEqual([]);
      expect(new Set(world.removed).size).toBe(world.removed.length);
    });
  });

  it('stays while a VM is prepared from it', () => {
    const world = new World(kind);
    const content = world.make();
    const place = placeOf(content, world.config) as ContentPlace;
    const needs = (pod: Pod) => isNeeded(place, needsOf({ objects: [], pods: [pod], jobs: [] }));
    expect(needs(machinePod(content))).toBe(true);
    expect(needs(machinePod(content, 'Running'))).toBe(false);
    expect(needs(machinePod({ type: 'empty', sizeBytes: 1 }))).toBe(false);
  });

  it('stays while a VM exists whose machine cannot be read', () => {
    const world = new World(kind);
    const content = world.make();
    const pod = machinePod(content);
    pod.metadata.annotations = { [MACHINE_ANNOTATION]: '{"apiVersion":"later"}' };
    const place = placeOf(content, world.config) as ContentPlace;
    expect(isNeeded(place, needsOf({ objects: [], pods: [pod], jobs: [] }))).toBe(true);
  });

  it('of a storage that is no longer configured is left alone', () => {
    const world = new World(kind);
    const content = world.make();
    const other = parseConfig(
      {
        imageStorage:
          kind === 'folder' ? STORAGES.registry : { registry: { prefix: 'registry.example/other' } },
      },
      'test',
    );
    expect(placeOf(content, other)).toBeUndefined();
  });
});

describe('the content of a thousand images', () => {
  it('is removed some at a time', () => {
    const world = new World('folder');
    Array.from({ length: 1000 }, () => world.save());
    for (const object of world.objects.values()) {
      world.delete(object, false);
    }
    let most = 0;
    for (let round = 0; round < 120; round += 1) {
      const before = world.removed.length;
      world.later(60_000);
      world.look();
      world.work();
      most = Math.max(most, world.removed.length - before);
    }
    expect(world.storage.size).toBe(0);
    expect(most).toBe(20);
  });
});

describe('an image in the storage', () => {
  it('that a user names directly, also by its tag, is needed', () => {
    const world = new World('registry');
    const content = world.make() as { reference: string };
    const place = placeOf(content as MachineImageSource, world.config) as ContentPlace;
    const isNeededBy = (reference: string) => {
      const own = image('own');
      own.spec.source = { registry: { reference } };
      return isNeeded(place, needsOf({ objects: [own], pods: [], jobs: [] }));
    };
    expect(isNeededBy(content.reference)).toBe(true);
    expect(isNeededBy('registry.example/berth/platform-ci/i:tag')).toBe(true);
    expect(isNeededBy('registry.example/berth/platform-ci/other:tag')).toBe(false);
  });

  it('is needed while a Job may make it content again', () => {
    const world = new World('folder');
    const content = world.make();
    const place = placeOf(content, world.config) as ContentPlace;
    const record = removalRecord(world.observed(image('i')), place) as Job;
    const needs = (job: Job) => isNeeded(place, needsOf({ objects: [], pods: [], jobs: [job] }));
    expect(needs(commitJob(content).job)).toBe(true);
    expect(needs(commitJob(world.make()).job)).toBe(false);
    expect(needs(record)).toBe(false);
  });
});

const REGISTRY: StorageTarget = { type: 'registry', reference: 'registry.example/berth/team/i:1' };

function jobOf(target: StorageTarget | undefined): Job {
  const image = { source: { type: 'http', url: 'https://images.example/a', sha256: '0' }, format: 'Auto' };
  const task = { apiVersion: TASK_API_VERSION, type: 'import', image, target };
  const metadata = { annotations: { [TASK_ANNOTATION]: JSON.stringify(task) } };
  return { metadata: { name: 'job' }, spec: { template: { metadata, spec: {} } } } as unknown as Job;
}

function podOn(nodeName: string | undefined, phase = 'Pending'): Pod {
  return {
    metadata: { name: `${nodeName}-${phase}` },
    spec: { nodeName },
    status: { phase },
  } as unknown as Pod;
}

it.each<[string, StorageTarget | undefined, Pod[], string[]]>([
  [
    'hosts with an unfinished task, each once',
    REGISTRY,
    [podOn('b'), podOn('a', 'Running'), podOn('b', 'Running')],
    ['a', 'b'],
  ],
  ['no host whose task has ended', REGISTRY, [podOn('a', 'Succeeded'), podOn('b', 'Failed')], []],
  ['no host of a Pod without a host', REGISTRY, [podOn(undefined)], []],
  ['no host of a task that only fetches', undefined, [podOn('a', 'Running')], []],
  ['no host of a folder', { type: 'folder', path: 'team/i' }, [podOn('a', 'Running')], []],
])('the credentials of the image storage are for %s', (_, target, pods, expected) => {
  expect(writingHosts(pods, () => jobOf(target))).toEqual(expected);
});

it('the credentials of the image storage are not for the host of a Pod that no Job made', () => {
  expect(writingHosts([podOn('a')], () => undefined)).toEqual([]);
});
