import { constantFrom } from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Image, ImageSpec } from '../../api/v1alpha1/image.ts';
import type { Reason } from '../../api/v1alpha1/reasons.ts';
import { INSECURE_SERVERS_ANNOTATION, OPERATION_LABEL } from '../../api/v1alpha1/names.ts';
import type { RegistryCredential } from '../../api/v1alpha1/registrycredentials.ts';
import type { VM } from '../../api/v1alpha1/vm.ts';
import type { Job } from '../../kube/core.ts';
import { assertHistories } from '../../test/support/properties.ts';
import { parseConfig } from '../config/config.ts';
import { taskOf } from '../tasks/job.ts';
import type { TaskOutcome } from '../tasks/outcome.ts';
import { ATTEMPT_LABEL, type ImageJob, type ObservedImage, REQUESTED_AT_ANNOTATION } from './observe.ts';
import { planImage } from './plan.ts';

const CREDENTIAL = { scheme: 'https', allowInsecure: false } as const;
const CREDENTIALS: RegistryCredential[] = [
  { ...CREDENTIAL, registry: 'registry.example', secretName: 'source' },
  { registry: 'old.example:5000', secretName: 'target', scheme: 'http', allowInsecure: true },
  { ...CREDENTIAL, registry: 'other.example', secretName: 'other' },
];

const START = Date.parse('2026-01-01T00:00:00Z');
const IDLE = { deploying: [], isDedicated: () => false };
const REPORT = { digest: `sha256:${'a'.repeat(64)}`, sizeBytes: 2 ** 30, storageBytes: 2 ** 20 };

function image(spec: Partial<ImageSpec>): Image {
  const source = { registry: { reference: 'registry.example/team/disk:1' } };
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { name: 'golden', namespace: 'platform-ci', uid: 'u1', generation: 1 },
    spec: { source, ...spec },
  };
}

const ran: VM = {
  apiVersion: 'berth.dev/v1alpha1',
  kind: 'VM',
  metadata: { name: 'builder', namespace: 'platform-ci', uid: 'v1' },
  spec: {},
  status: { phase: 'Running', nodeName: 'mac1', firstRunningTime: '2026-01-01T00:00:00Z' },
};

/** Model of the objects around one Image. Planned Jobs are created, and time passes. */
class World {
  object: Image;
  now = START;
  readonly jobs: ImageJob[] = [];
  readonly config = parseConfig({ imageStorage: { folder: true } }, 'test');
  vms: VM[] = [ran];
  origin: Image | undefined;
  credentials: RegistryCredential[] = [];

  constructor(spec: Partial<ImageSpec>) {
    this.object = image(spec);
  }

  observed(): ObservedImage {
    const vm = (name: string): VM | undefined => this.vms.find(({ metadata }) => metadata.name === name);
    const { object, jobs, config, now, origin, credentials } = this;
    const snapshot = () => undefined;
    return { ...IDLE, object, jobs, config, now, origin, credentials, kind: 'Image', vm, snapshot };
  }

  step(): void {
    const { createJob, status } = planImage(this.observed());
    this.object = { ...this.object, status };
    if (createJob !== undefined) {
      const { labels = {}, annotations = {} } = createJob.metadata;
      this.jobs.push({
        job: createJob as Job,
        operation: labels[OPERATION_LABEL] ?? '',
        requestedAt: annotations[REQUESTED_AT_ANNOTATION],
        attempt: Number(labels[ATTEMPT_LABEL]),
        outcome: { kind: 'waiting', message: '' },
      });
    }
  }

  get open(): ImageJob[] {
    return this.jobs.filter(({ outcome }) => outcome.kind === 'waiting' || outcome.kind === 'running');
  }

  end(outcome: TaskOutcome): void {
    const [job] = this.open;
    if (job !== undefined) {
      this.jobs[this.jobs.indexOf(job)] = { ...job, outcome };
    }
  }

  succeed(): void {
    this.end({ kind: 'succeeded', report: REPORT, finishedAt: this.time });
  }

  fail(reason: Reason, more: { retryAfterMilliseconds?: number } = {}): void {
    this.end({ kind: 'failed', reason, message: 'as told', finishedAt: this.time, ...more });
  }

  get time(): string {
    return new Date(this.now).toISOString();
  }

  condition(type: string) {
    return this.object.status?.conditions?.find((one) => one.type === type);
  }
}

describe('an image', () => {
  it('is fetched by one Job and is Ready with its size and digest', () => {
    const world = new World({});
    world.step();
    expect(world.open).toHaveLength(1);
    world.step();
    expect(world.jobs).toHaveLength(1);
    world.succeed();
    world.step();
    expect(world.object.status).toMatchObject({
      phase: 'Ready',
      size: '1Gi',
      storageSize: '1Mi',
      digest: REPORT.digest,
      content: { type: 'registry', reference: 'registry.example/team/disk:1' },
    });
    expect(world.condition('Ready')?.status).toBe('True');
  });

  it('is tried again after longer and longer waits, unless the image itself has the fault', () => {
    const world = new World({});
    world.step();
    // The server asks for longer waits at last, and they are kept up to an hour.
    const asked = [0, 3_000, 0, 1_800_000, 86_400_000];
    for (const [index, wait] of [10_000, 20_000, 40_000, 1_800_000, 3_600_000].entries()) {
      world.fail('ImageFetchFailed', { retryAfterMilliseconds: asked[index] ?? 0 });
      world.step();
      expect(world.object.status?.phase).toBe('Failed');
      expect(world.condition('Ready')?.message).toContain('the next attempt is at');
      world.now += wait - 1;
      world.step();
      expect(world.open).toHaveLength(0);
      world.now += 1;
      world.step();
      expect(world.open).toHaveLength(1);
    }
    world.fail('DigestMismatch');
    world.now += 24 * 3600 * 1000;
    world.step();
    expect(world.open).toHaveLength(0);
    expect(world.condition('Stalled')).toMatchObject({ status: 'True', reason: 'DigestMismatch' });
  });

  it('whose Job the API server refuses has the reason in the words of the server', () => {
    const { status } = planImage(new World({}).observed(), 'exceeded quota');
    const refused = { type: 'Ready', status: 'False', reason: 'JobRefused', message: 'exceeded quota' };
    expect(status.conditions).toContainEqual(expect.objectContaining(refused));
  });

  it('that is an empty disk is Ready at once, and takes no space', () => {
    const world = new World({ source: { empty: { size: '40Gi' } } });
    world.step();
    expect(world.jobs).toHaveLength(0);
    expect(world.object.status).toMatchObject({ phase: 'Ready', size: '40Gi', storageSize: '0' });
  });

  it('from an IPSW is Ready at once, and can neither be pushed nor downloaded, because it is no disk', () => {
    const push = { reference: 'registry.example/mac:1', requestedAt: 'now' };
    const ipsw = { url: 'https://images.example/a.ipsw', sha256: 'a'.repeat(64) };
    const world = new World({ source: { ipsw }, push, download: push });
    world.step();
    const no = { result: 'Failed', message: expect.stringContaining('IPSW is no disk') as string };
    expect(world.object.status).toMatchObject({ phase: 'Ready', lastPush: no, lastDownload: no });
  });

  it('that is a copy takes the content of its origin, once the origin has content', () => {
    const world = new World({ source: { copyOf: { name: 'other' } } });
    world.step();
    expect(world.condition('Ready')).toMatchObject({ status: 'False', reason: 'CopySourceNotReady' });
    const content = { type: 'storedFile', path: 'a/b.qcow2', sha256: 'b'.repeat(64) };
    world.origin = { ...image({}), status: { content, digest: REPORT.digest, size: '1Gi' } };
    world.step();
    expect(world.jobs).toHaveLength(0);
    expect(world.object.status).toMatchObject({ phase: 'Ready', content, size: '1Gi' });
  });

  it('that is uploaded has a Job which receives at most the announced bytes, and then the content in the storage', () => {
    const world = new World({
      source: { upload: { maxSize: '2Gi' } },
      format: 'QCOW2',
      architecture: 'arm64',
    });
    world.step();
    expect(taskOf(world.open[0]?.job as Job)).toMatchObject({
      type: 'receive',
      limitBytes: 2 ** 31,
      format: 'QCOW2',
      architecture: 'arm64',
      target: { type: 'folder' },
    });
    world.succeed();
    world.step();
    expect(world.object.status).toMatchObject({
      phase: 'Ready',
      origin: 'upload',
      digest: REPORT.digest,
      content: { type: 'storedFile', sha256: 'a'.repeat(64) },
    });
  });

  it('whose upload failed stays Failed, because its sender is gone, also when its Job is gone', () => {
    const world = new World({ source: { upload: { maxSize: '2Gi' } } });
    world.step();
    world.fail('DiskFull');
    world.step();
    world.jobs.length = 0;
    world.now += 24 * 3600 * 1000;
    world.step();
    expect(world.jobs).toHaveLength(0);
    expect(world.object.status).toMatchObject({ phase: 'Failed', uploadFailure: 'DiskFull: as told' });
    expect(world.condition('Stalled')).toMatchObject({
      reason: 'UploadFailed',
      message: 'DiskFull: as told',
    });
  });

  it.each<[ImageSpec['source'], string]>([
    [{ registry: { reference: 'registry.example/team/disk:1' } }, 'Host mac1 is fetching the image'],
    [{ fromVM: { name: 'builder' } }, 'Host mac1 is saving the disk of the VM'],
    [{ upload: { maxSize: '2Gi' } }, 'Host mac1 is receiving the file'],
  ])('from %j tells what its host is doing', (source, message) => {
    const world = new World({ source });
    world.step();
    world.end({ kind: 'running', nodeName: 'mac1', report: {} });
    world.step();
    expect(world.condition('Ready')).toMatchObject({ status: 'False', reason: 'Pulling', message });
  });

  it('that is uploaded needs image storage', () => {
    const world = new World({ source: { upload: { maxSize: '2Gi' } } });
    const { status, createJob } = planImage({ ...world.observed(), config: parseConfig({}, 'test') });
    expect(createJob).toBeUndefined();
    expect(status.conditions?.find(({ type }) => type === 'Stalled')?.reason).toBe('NoImageStorage');
  });

  const signed = 'https://images.example/disk.qcow2?X-Amz-Signature=secret';

  it('of a signed URL shows its source without the signature', () => {
    const http = { url: signed, sha256: 'a'.repeat(64) };
    const world = new World({ source: { http } });
    world.step();
    world.succeed();
    world.step();
    expect(world.object.status?.origin).toBe('https://images.example/disk.qcow2?…');
  });

  it('that is a copy from another namespace does not copy a URL that may have credentials', () => {
    const content = { type: 'http', url: signed, sha256: 'a'.repeat(64) };
    const world = new World({ source: { copyOf: { name: 'other', namespace: 'platform-default' } } });
    const other = image({});
    const metadata = { ...other.metadata, namespace: 'platform-default' };
    world.origin = { ...other, metadata, status: { content, size: '1Gi' } };
    world.step();
    expect(world.condition('Ready')).toMatchObject({ status: 'False', reason: 'CopyWouldShowURL' });
    expect(JSON.stringify(world.object.status)).not.toContain('secret');
    world.origin = { ...other, status: { content, size: '1Gi' } };
    world.step();
    expect(world.object.status).toMatchObject({ phase: 'Ready', content });
  });

  it('made of a VM waits until the VM has run, and is copied on its host', () => {
    const world = new World({ source: { fromVM: { name: 'builder' } } });
    const prepared: VM = { ...ran, status: { phase: 'Pulling', nodeName: 'mac1' } };
    for (const [vms, reason] of [[[], 'VMNotFound'] as const, [[prepared], 'VMNotReady'] as const]) {
      world.vms = [...vms];
      world.step();
      expect([world.jobs, world.condition('Ready')?.reason]).toEqual([[], reason]);
    }
    world.vms = [ran];
    world.step();
    const { affinity } = world.open[0]?.job.spec.template.spec ?? {};
    const terms = affinity?.nodeAffinity?.requiredDuringSchedulingIgnoredDuringExecution?.nodeSelectorTerms;
    const only = [{ key: 'metadata.name', operator: 'In', values: ['mac1'] }];
    expect(terms?.map(({ matchFields }) => matchFields)).toEqual([only, only]);
    world.succeed();
    world.step();
    expect(world.object.status?.content).toMatchObject({ type: 'storedFile' });
  });

  it('cannot be made of a VM without image storage, and has the reason', () => {
    const world = new World({ source: { fromVM: { name: 'builder' } } });
    Object.assign(world.config, { imageStorage: undefined });
    world.step();
    expect(world.jobs).toEqual([]);
    expect(world.condition('Stalled')).toMatchObject({ status: 'True', reason: 'NoImageStorage' });
  });
});

describe('actions', () => {
  const requestedAt = '2026-01-02T00:00:00Z';
  const push = { reference: 'registry.example/out:1', requestedAt };

  it('wait for each other, and for the image itself', () => {
    const world = new World({ commit: { vmName: 'builder', requestedAt }, push, download: { requestedAt } });
    for (const expected of ['pull', 'commit', 'push', 'download']) {
      world.step();
      expect(world.open.map(({ operation }) => operation)).toEqual([expected]);
      expect(world.object.status?.phase).toBe(
        { pull: 'Pending', commit: 'Updating', push: 'Ready', download: 'Ready' }[expected],
      );
      world.succeed();
    }
    world.step();
    expect(world.object.status).toMatchObject({
      lastCommit: { requestedAt, result: 'Succeeded' },
      lastPush: { requestedAt, result: 'Succeeded', reference: REPORT.digest },
      lastDownload: { requestedAt, result: 'Succeeded' },
    });
    expect(world.jobs).toHaveLength(4);
  });

  it('have the credentials of the namespace for their registries, and may reach a server insecurely if it says so', () => {
    const world = new World({
      push: { reference: 'old.example:5000/out:1', secretName: 'own', requestedAt },
      imagePullSecrets: [{ name: 'mine' }],
    });
    world.credentials = CREDENTIALS;
    world.step();
    const { metadata: first, spec: pull } = world.open[0]?.job.spec.template ?? {};
    expect(pull?.imagePullSecrets).toEqual([{ name: 'mine' }, { name: 'source' }]);
    expect(first?.annotations).not.toHaveProperty([INSECURE_SERVERS_ANNOTATION]);
    world.succeed();
    world.step();
    const { metadata, spec } = world.open[0]?.job.spec.template ?? {};
    expect(spec?.imagePullSecrets?.map(({ name }) => name)).toEqual(['own', 'mine', 'source', 'target']);
    expect(metadata?.annotations?.[INSECURE_SERVERS_ANNOTATION]).toBe(
      '[{"scheme":"http","registry":"old.example:5000"}]',
    );
  });

  it.each([
    ['Pushed', { push }],
    ['Committed', { commit: { vmName: 'builder', requestedAt } }],
  ])('fail once, with the reason in a condition, and do not change the image: %s', (type, action) => {
    const world = new World({});
    world.step();
    world.succeed();
    world.step();
    const { content, digest, size, storageSize, origin } = world.object.status ?? {};
    world.object.spec = { ...world.object.spec, ...action };
    world.step();
    world.now += 1_000;
    world.fail('ImageAccessDenied');
    world.step();
    expect(world.condition(type)).toMatchObject({ status: 'False', reason: 'ImageAccessDenied' });
    const before = { content, digest, size, storageSize, origin };
    expect(world.object.status).toMatchObject({ phase: 'Ready', ...before });
    world.now += 24 * 3600 * 1000;
    world.step();
    expect(world.open).toHaveLength(0);
  });

  it('send the content to clients, and say when a host takes them; a download is not tried again', () => {
    const world = new World({ download: { requestedAt } });
    world.step();
    world.succeed();
    world.step();
    expect(taskOf(world.open[0]?.job as Job)).toMatchObject({
      type: 'send',
      format: 'qcow2',
      image: { source: { type: 'registry' } },
    });
    expect(world.condition('Reconciling')?.message).toBe('No host has begun this work yet: download');
    world.end({ kind: 'running', nodeName: 'mac1', report: {} });
    world.step();
    expect(world.condition('Reconciling')?.message).toBe('Host mac1 is sending the image');
    world.fail('DownloadInterrupted');
    world.now += 24 * 3600 * 1000;
    world.step();
    expect(world.open).toHaveLength(0);
    expect(world.object.status).toMatchObject({
      phase: 'Ready',
      lastDownload: { requestedAt, result: 'Failed', message: 'DownloadInterrupted: as told' },
    });
  });

  it('send an ISO raw', () => {
    const world = new World({ download: { requestedAt } });
    world.step();
    world.succeed();
    world.step();
    const { createJob } = planImage({ ...world.observed(), kind: 'ISO', jobs: [] });
    expect(taskOf(createJob as Job)).toMatchObject({ type: 'send', format: 'raw' });
  });

  it('fail when they need image storage and there is none, and the image stays Ready', () => {
    const failed = { requestedAt, result: 'Failed', message: expect.stringMatching(/^NoImageStorage: /) };
    const actions = { lastDownload: 'download', lastCommit: 'commit' } as const;
    for (const [field, action] of Object.entries(actions)) {
      const world = new World({ [action]: { vmName: 'builder', requestedAt } });
      world.step();
      world.succeed();
      const { status, createJob } = planImage({ ...world.observed(), config: parseConfig({}, 'test') });
      expect(createJob).toBeUndefined();
      expect(status).toMatchObject({ phase: 'Ready', [field]: failed });
    }
  });

  it('give each version its own address, also when a time is requested again', () => {
    const world = new World({ source: { fromVM: { name: 'builder' } } });
    world.step();
    world.succeed();
    const places: unknown[] = [];
    for (const time of [requestedAt, '2026-01-03T00:00:00Z', requestedAt]) {
      world.step();
      places.push(world.object.status?.content?.path);
      world.object = {
        ...world.object,
        spec: { ...world.object.spec, commit: { vmName: 'builder', requestedAt: time } },
      };
      // Jobs are deleted some time after their end.
      world.jobs.length = 0;
      world.step();
      world.succeed();
    }
    world.step();
    places.push(world.object.status?.content?.path);
    expect(new Set(places.filter((place) => place !== undefined)).size).toBe(4);
  });

  it('of a VM that does not exist fail at once', () => {
    const world = new World({ commit: { vmName: 'gone', requestedAt } });
    world.step();
    world.succeed();
    world.step();
    expect(world.condition('Committed')).toMatchObject({ status: 'False', reason: 'VMNotFound' });
  });
});

describe('any results of Jobs', () => {
  const actions = ['push', 'commit', 'download'] as const;
  const events = constantFrom('step', 'succeed', 'fail', 'break', 'later', 'running', ...actions);

  it('one task runs at a time, content is never lost, and nothing is written while nothing changes', (context) => {
    assertHistories(context, { step: events, maxLength: 60, numRuns: 300 }, (history) => {
      const world = new World({});
      let asked = 0;
      for (const event of history) {
        const hadContent = world.object.status?.content !== undefined;
        act(world, event, () => new Date(START + ++asked).toISOString());
        world.step();
        expect(world.open.length).toBeLessThanOrEqual(1);
        expect(!hadContent || world.object.status?.content !== undefined).toBe(true);
        // The next step sees the Job that this step created.
        world.step();
        const { status } = world.object;
        world.step();
        expect(world.object.status).toEqual(status);
      }
      for (let round = 0; round < 10; round += 1) {
        world.now += 600_000;
        world.step();
        world.succeed();
        world.step();
      }
      const { spec, status } = world.object;
      expect(status?.lastPush?.requestedAt).toBe(spec.push?.requestedAt);
      expect(status?.lastCommit?.requestedAt).toBe(spec.commit?.requestedAt);
      expect(status?.lastDownload?.requestedAt).toBe(spec.download?.requestedAt);
      const names = world.jobs.map(({ job }) => job.metadata.name);
      expect(new Set(names).size).toBe(names.length);
    });
  });

  function act(world: World, event: string, time: () => string): void {
    const { spec } = world.object;
    switch (event) {
      case 'succeed':
        return world.succeed();
      case 'fail':
        return world.fail('ImageFetchFailed');
      case 'break':
        return world.fail('TaskFailed');
      case 'later':
        world.now += 60_000;
        return undefined;
      case 'running':
        return world.end({ kind: 'running', nodeName: 'mac1', report: { progressPercent: 5 } });
      case 'push':
        world.object.spec = { ...spec, push: { reference: 'registry.example/x', requestedAt: time() } };
        return undefined;
      case 'commit':
        world.object.spec = { ...spec, commit: { vmName: 'builder', requestedAt: time() } };
        return undefined;
      case 'download':
        world.object.spec = { ...spec, download: { requestedAt: time() } };
        return undefined;
      default:
        return undefined;
    }
  }
});
