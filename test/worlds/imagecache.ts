/**
 * A model of the API server and of agents for one ImageCacheEntry. The model executes the plans that the operator's pure
 * functions compute.
 */
import { timestamp } from '../../base/time.ts';
import { expect } from 'vitest';
import type { ImageCacheEntry } from '../../api/v1alpha1/imagecacheentry.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { parseConfig } from '../../operator/config/config.ts';
import { resolveImage } from '../../operator/imagecache/image.ts';
import { buildJob, PARKED_SECONDS } from '../../operator/imagecache/job.ts';
import { type CacheJob, type ObservedHost, type ObservedEntry } from '../../operator/imagecache/observed.ts';
import { planEntry, type Start } from '../../operator/imagecache/plan.ts';
import { entryBringsFacts } from '../../operator/imagecache/status.ts';
import { attemptKey } from '../../operator/imagecache/attempt.ts';
import { mergeDiff } from '../../kube/mergepatch.ts';

export const LIMIT = 3;
/** The scheduler's explanation for a Job that is for a full host, translated for people. */
export const FULL_HOST = 'No host is free: 1 without a free slot';
const REFERENCE = 'registry.example/guest:1';
const NAMESPACE = 'platform-ci';
const config = parseConfig(
  { cacheJobsPerEntry: LIMIT, cache_job_active_deadline_seconds: 600, hostLostTimeoutSeconds: 300 },
  'test',
);

interface SimulatedHost {
  tags: Set<string>;
  notReadySince: number | undefined;
  isCordoned: boolean;
  isFull: boolean;
  digest: string | undefined;
  /** Whether the agent has recorded that it keeps the image. */
  holds: boolean;
  /** Whether the Node was deleted and has returned, and the operator has not yet seen the host among the targets. */
  isForgotten: boolean;
  /** Whether the Node was deleted and has returned, and no Job has fetched the image since. */
  isUnknown: boolean;
}

export interface SimulatedJob extends CacheJob {
  isRefresh: boolean;
  endsAt: number;
}

const OF_WORLD = [
  'tick',
  'wait',
  'targetAll',
  'targetTag',
  'targetOthers',
  'moveTag',
  'refresh',
  'addNode',
  'returnNode',
] as const;
export const OF_JOBS = ['schedule', 'succeed', 'succeedInVain', 'fail'] as const;
const OF_HOSTS = [
  'fill',
  'silence',
  'comeBack',
  'cordon',
  'removeNode',
  'retag',
  'pullByVM',
  'evict',
] as const;
const OFTEN = ['reconcile', 'reconcile', 'reconcile', 'reconcileAndCrash', 'schedule', 'succeed'] as const;
export const ACTIONS = [...OFTEN, ...OF_WORLD, ...OF_JOBS, ...OF_HOSTS];
export type Action = (typeof ACTIONS)[number];

const TARGETS = {
  targetAll: { all: true },
  targetTag: { tags: ['a'] },
  targetOthers: { all: true, excludeTags: ['a'] },
};

export class World {
  now = Date.parse('2030-01-01T00:00:00Z');
  readonly hosts = new Map<string, SimulatedHost>();
  /** Hosts whose Nodes were deleted, with the contents of their disks. */
  readonly #away = new Map<string, SimulatedHost>();
  jobs: SimulatedJob[] = [];
  tagDigest = 'sha256:1';
  isReleased = false;
  entry: ImageCacheEntry = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: {
      name: 'guest',
      namespace: NAMESPACE,
      uid: 'entry-uid',
      generation: 1,
      creationTimestamp: '2030-01-01T00:00:00Z',
    },
    spec: { reference: REFERENCE, targets: { all: true } },
  };
  #uids = 0;
  #heldSince: number | undefined;

  constructor(count: number) {
    for (let index = 0; index < count; index += 1) {
      this.addHost(`host-${index}`);
    }
  }

  observe(): ObservedEntry {
    return {
      entry: this.entry,
      jobNamespace: NAMESPACE,
      reference: REFERENCE,
      image: resolveImage(this.entry, undefined),
      duplicateOf: undefined,
      hosts: new Map([...this.hosts].map(([name, host]) => [name, viewOf(name, host)])),
      freeSlots: (name) => (this.hosts.get(name)?.isFull === true ? 0 : 4),
      jobs: this.jobs,
      credentials: [],
      lingering: new Set(),
      config,
      now: this.now,
    };
  }

  /** Reconciles as the controller does. If `crashes` is true, the operator crashes before it deletes or creates Jobs. */
  reconcile(crashes = false): { wrote: boolean } {
    if (this.isReleased) {
      return { wrote: false };
    }
    const observed = this.observe();
    const planned = planEntry(observed);
    const differs = mergeDiff(this.entry.status, planned.status) !== undefined;
    const mustWrite = entryBringsFacts(this.entry.status, planned.status);
    this.#heldSince = differs ? (this.#heldSince ?? this.now) : undefined;
    if (differs && (mustWrite || this.now >= (this.#heldSince ?? 0) + 1_000)) {
      this.entry = { ...this.entry, status: planned.status };
      this.#heldSince = undefined;
    }
    for (const [name, host] of this.hosts) {
      host.isForgotten &&= !this.isTarget(name);
    }
    if (crashes) {
      return { wrote: differs };
    }
    const isStored = !differs || this.#heldSince === undefined;
    const deletes = [...planned.deletes, ...(isStored ? planned.fetched : [])];
    this.jobs = this.jobs.filter((job) => !deletes.includes(job));
    for (const start of planned.starts) {
      this.#create({ ...observed, entry: this.entry }, start);
    }
    this.isReleased = planned.isReleased;
    return { wrote: differs || deletes.length > 0 || planned.starts.length > 0 };
  }

  act(action: Action, pick: number): void {
    const name = [...this.hosts.keys()][pick % Math.max(1, this.hosts.size)];
    const host = name === undefined ? undefined : this.hosts.get(name);
    const job = this.jobs[pick % Math.max(1, this.jobs.length)];
    if (OF_JOBS.some((one) => one === action)) {
      this.#actOnJob(action, job);
    } else if (OF_HOSTS.some((one) => one === action)) {
      this.#actOnHost(action, name, host);
    } else {
      this.#actOnWorld(action);
    }
  }

  /** Makes all hosts ready with free space, and lets all tasks succeed. Returns the number of rounds until nothing was written. */
  stabilize(rounds: number): number {
    for (const host of this.hosts.values()) {
      host.notReadySince = undefined;
      host.isCordoned = false;
      host.isFull = false;
    }
    for (let round = 0; round < rounds; round += 1) {
      const { wrote } = this.reconcile();
      for (let index = 0; index < this.jobs.length; index += 1) {
        this.act('schedule', index);
        this.act('succeed', index);
      }
      if (!wrote && this.jobs.length === 0 && !this.#waitsForRetry()) {
        return round;
      }
      this.pass(61_000);
    }
    return rounds;
  }

  /** Advances the time. The Job controller ends Jobs at their deadline, also on hosts that are not ready. */
  pass(milliseconds: number): void {
    this.now += milliseconds;
    for (const job of this.jobs.filter(({ endsAt }) => endsAt <= this.now)) {
      if (job.outcome.kind === 'waiting') {
        this.#replace(job, failedWith('DeadlineExceeded', ''));
      }
    }
  }

  row(name: string) {
    return this.entry.status?.nodes?.find(({ node }) => node === name);
  }

  delete(): void {
    this.entry = {
      ...this.entry,
      metadata: { ...this.entry.metadata, deletionTimestamp: timestamp(this.now) },
    };
  }

  isTarget(name: string): boolean {
    const { all = false, tags = [], excludeTags = [] } = this.entry.spec.targets ?? {};
    const has = (tag: string): boolean => this.hosts.get(name)?.tags.has(tag) === true;
    const isNamed = (all || tags.some(has)) && !excludeTags.some(has);
    return this.entry.metadata.deletionTimestamp === undefined && isNamed;
  }

  #waitsForRetry(): boolean {
    return (this.entry.status?.nodes ?? []).some(({ state }) => state !== 'Outdated');
  }

  addHost(name: string): void {
    this.hosts.set(name, {
      tags: new Set(),
      notReadySince: undefined,
      isCordoned: false,
      isFull: false,
      digest: undefined,
      holds: false,
      isForgotten: false,
      isUnknown: false,
    });
  }

  #create(observed: ObservedEntry, start: Start): void {
    const job = buildJob(observed, start);
    if (job === undefined) {
      return;
    }
    const name = job.metadata.name ?? '';
    expect(
      this.jobs.map((one) => one.name),
      'one Job for each host and kind of work',
    ).not.toContain(name);
    const host = this.hosts.get(start.host);
    const isRefresh = start.row.refresh === true;
    if (start.type === 'cache') {
      const isDone = host?.digest !== undefined && host.holds && !host.isUnknown;
      expect(!isDone || isRefresh, 'no Job for a host that keeps the image for the entry').toBe(true);
    }
    expect(this.entry.status?.holders ?? [], 'written down before it is done').toContain(start.host);
    this.#uids += 1;
    this.jobs.push({
      name,
      namespace: NAMESPACE,
      uid: `job-${this.#uids}`,
      host: start.host,
      type: start.type,
      createdAt: Math.floor(this.now / 1000) * 1000,
      attempt: attemptKey(start.row),
      isParked: job.spec.activeDeadlineSeconds === PARKED_SECONDS,
      isScheduled: false,
      obstacle: undefined,
      outcome: { kind: 'waiting', message: '' },
      isRefresh,
      endsAt: this.now + (job.spec.activeDeadlineSeconds ?? 0) * 1000,
    });
  }

  #replace(job: SimulatedJob, change: Partial<SimulatedJob>): void {
    this.jobs = this.jobs.map((one) => (one.uid === job.uid ? { ...one, ...change } : one));
  }

  #actOnWorld(action: Action): void {
    const { spec } = this.entry;
    switch (action) {
      case 'reconcile':
      case 'reconcileAndCrash':
        this.reconcile(action === 'reconcileAndCrash');
        break;
      case 'tick':
        this.pass(1_000);
        break;
      case 'wait':
        this.pass(100_000);
        break;
      case 'targetAll':
      case 'targetTag':
      case 'targetOthers':
        this.entry = { ...this.entry, spec: { ...spec, targets: TARGETS[action] } };
        break;
      case 'moveTag':
        this.tagDigest = `sha256:${Number(this.tagDigest.slice(7)) + 1}`;
        break;
      case 'refresh':
        this.entry = { ...this.entry, spec: { ...spec, refreshRequestedAt: timestamp(this.now) } };
        break;
      case 'addNode':
        if (this.hosts.size < 8) {
          this.addHost(`late-${this.now}`);
        }
        break;
      case 'returnNode':
        this.#returnNode();
        break;
      default:
    }
  }

  /** Restores the Node that was deleted first, with the same disk. */
  #returnNode(): void {
    const [first] = this.#away;
    if (first !== undefined) {
      const [name, host] = first;
      this.#away.delete(name);
      this.hosts.set(name, { ...host, isForgotten: true, isUnknown: true });
    }
  }

  #actOnJob(action: Action, job: SimulatedJob | undefined): void {
    if (job === undefined) {
      return;
    }
    const host = this.hosts.get(job.host);
    const answers = host?.notReadySince === undefined && host !== undefined;
    const isOver = job.outcome.kind === 'succeeded' || job.outcome.kind === 'failed';
    switch (action) {
      case 'schedule':
        if (answers && !((host.isCordoned || host.isFull) && job.type === 'cache')) {
          this.#replace(job, { isScheduled: true, obstacle: undefined });
        } else if (host?.isFull === true) {
          this.#replace(job, { obstacle: FULL_HOST });
        }
        break;
      case 'succeed':
      case 'succeedInVain':
        if (answers && job.isScheduled && !isOver) {
          // The operator cannot detect an agent that falsely reports a removal. It detects an agent that does not list an image.
          if (action === 'succeed' || job.type === 'uncache') {
            this.#work(host, job);
          }
          const report = job.type === 'cache' ? { digest: host.digest ?? this.tagDigest } : {};
          const outcome = { kind: 'succeeded', report, finishedAt: timestamp(this.now) } as const;
          this.#replace(job, { outcome });
        }
        break;
      case 'fail':
        // A parked Job does not fail, because the Job controller tries it again.
        if (job.isScheduled && !isOver && !job.isParked) {
          this.#replace(job, failedWith('ImageFetchFailed', 'no'));
        }
        break;
      default:
    }
  }

  #work(host: SimulatedHost, job: SimulatedJob): void {
    host.holds = job.type === 'cache';
    const row = this.row(job.host);
    // The operator ignores the result of a Job of an earlier attempt.
    host.isUnknown = row === undefined || job.attempt !== attemptKey(row);
    if (job.type === 'uncache') {
      host.digest = undefined;
    } else if (host.digest === undefined || job.isRefresh) {
      host.digest = this.tagDigest;
    }
  }

  #actOnHost(action: Action, name: string | undefined, host: SimulatedHost | undefined): void {
    if (name === undefined || host === undefined) {
      return;
    }
    if (action === 'fill') {
      host.isFull = !host.isFull;
    }
    if (action === 'silence') {
      host.notReadySince ??= this.now;
    }
    if (action === 'comeBack') {
      host.notReadySince = undefined;
    }
    if (action === 'cordon') {
      host.isCordoned = !host.isCordoned;
    }
    if (action === 'removeNode') {
      this.hosts.delete(name);
      this.#away.set(name, host);
    }
    if (action === 'retag' && !host.tags.delete('a')) {
      host.tags.add('a');
    }
    if (action === 'pullByVM') {
      host.digest ??= this.tagDigest;
    }
    if (action === 'evict' && !host.holds) {
      host.digest = undefined;
    }
  }
}

function failedWith(reason: Reason, message: string): Pick<CacheJob, 'outcome'> {
  return { outcome: { kind: 'failed', reason, message, finishedAt: undefined } };
}

function viewOf(name: string, host: SimulatedHost): ObservedHost {
  const { tags, notReadySince, isCordoned, digest } = host;
  const images = digest === undefined ? [] : [[digest]];
  return { name, tags, notReadySince, isCordoned, isUsable: true, dedicatedTo: undefined, images };
}
