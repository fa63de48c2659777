import { describe, expect, it } from 'vitest';
import type { Image } from '../../api/v1alpha1/image.ts';
import { readReference } from '../../api/v1alpha1/reference.ts';
import { parseConfig } from '../config/config.ts';
import { abandonedPlaces, removalRecord, replacedPlaces, storageTarget } from './place.ts';
import { DEDICATED_KEY, TASK_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { TASK_API_VERSION } from '../../api/v1alpha1/task.ts';
import type { ImageJob, ObservedImage } from './observe.ts';

/** Longest name that the API server accepts for an Image or ISO. */
const NAME_LENGTH = 253;
const NAMESPACE = 'n'.repeat(63);
/** Longest file name in a folder. The agent first writes the content under a name with this suffix. */
const FILE_NAME_LENGTH = 255;
const SUFFIX = '.partial';
/** Longest repository that registries accept. */
const REPOSITORY_LENGTH = 255;

const folder = parseConfig({ imageStorage: { folder: true } }, 'test');
const registry = parseConfig({ imageStorage: { registry: { prefix: 'registry.example/berth' } } }, 'test');

function image(name: string, uid = 'u'): Image {
  const metadata = { namespace: NAMESPACE, name, uid };
  return { apiVersion: 'berth.dev/v1alpha1', kind: 'Image', metadata, spec: { source: {} } };
}

describe('the place of content in the image storage', () => {
  // The cut of a name can end with a dot or a dash, which a repository must not have at its end.
  it.each([
    ['a long name', 'a'.repeat(NAME_LENGTH)],
    ['a long name with dots', `${'a.'.repeat(NAME_LENGTH / 2)}a`],
    ['a name whose cut ends with dashes', `${'a'.repeat(126)}--b`],
  ])('is one that the storage accepts, also for an image with %s', (_, name) => {
    const file = storageTarget(image(name), folder, 'v');
    expect(file).toMatchObject({ type: 'folder' });
    const [, written = ''] = file?.type === 'folder' ? file.path.split('/') : [];
    expect(`${written}${SUFFIX}`.length).toBeLessThanOrEqual(FILE_NAME_LENGTH);
    const artifact = storageTarget(image(name), registry, 'v');
    const parts = artifact?.type === 'registry' ? readReference(artifact.reference) : undefined;
    expect(parts).toMatchObject({ registry: 'registry.example' });
    const repository = typeof parts === 'object' ? parts.repository : '';
    expect(repository.length).toBeLessThanOrEqual(REPOSITORY_LENGTH);
  });

  it.each([
    ['folder', folder],
    ['registry', registry],
  ])('in a %s differs for images whose long names differ only at the end', (_, config) => {
    const start = 'a'.repeat(NAME_LENGTH - 1);
    const [one, other] = [image(`${start}1`, 'one'), image(`${start}2`, 'other')];
    expect(storageTarget(one, config, 'v')).not.toEqual(storageTarget(other, config, 'v'));
  });
});

const [FIRST, SECOND] = ['2026-01-01T00:00:00Z', '2026-01-01T01:00:00Z'];
const PREFIX = 'registry.example/berth';
const config = parseConfig({ imageStorage: { registry: { prefix: PREFIX } } }, 'test');

function stored(digit: string): string {
  return `${PREFIX}/platform-ci/golden@sha256:${digit.repeat(64)}`;
}

/** Returns the Job of a commit that was requested at `requestedAt` and stored the content `digit`. */
function commitJob(requestedAt: string, digit: string): ImageJob {
  const vm = { namespace: 'platform-ci', name: 'builder', uid: 'v' };
  const target = { type: 'registry', reference: `${PREFIX}/platform-ci/golden:tag` };
  const task = { apiVersion: TASK_API_VERSION, type: 'save', vm, target };
  const metadata = { annotations: { [TASK_ANNOTATION]: JSON.stringify(task) } };
  const report = { digest: `sha256:${digit.repeat(64)}`, reference: stored(digit) };
  return {
    job: {
      apiVersion: 'batch/v1',
      kind: 'Job',
      metadata: { name: 'commit' },
      spec: { template: { metadata, spec: { containers: [] } } },
    },
    operation: 'commit',
    requestedAt,
    attempt: 1,
    outcome: { kind: 'succeeded', report, finishedAt: undefined },
  };
}

/** Returns the state of an Image with the content 0 and a commit that is requested at `requestedAt`. */
function observed(requestedAt: string, jobs: readonly ImageJob[]): ObservedImage {
  const content = { type: 'storedArtifact' as const, reference: stored('0') };
  const object: Image = {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'Image',
    metadata: { name: 'golden', namespace: 'platform-ci', uid: 'u' },
    spec: { source: { fromVM: { name: 'builder' } }, commit: { vmName: 'builder', requestedAt } },
    status: { content },
  };
  const about = {
    origin: undefined,
    vm: () => undefined,
    snapshot: () => undefined,
    deploying: [],
    credentials: [],
    isDedicated: () => false,
    now: 0,
  };
  return { object, kind: 'Image', jobs, config, ...about };
}

describe('the content of a commit', () => {
  const job = commitJob(FIRST, '1');
  const place = { type: 'registry', reference: stored('1') };

  it('is removed if another commit was requested before the commit ended', () => {
    const superseded = observed(SECOND, [job]);
    expect(replacedPlaces(superseded, superseded.object.status ?? {})).toEqual([place]);
    expect(abandonedPlaces(superseded)).toContainEqual(place);
  });

  it('stays while the commit is requested, recorded, or the source of the content', () => {
    const { object } = observed(FIRST, []);
    expect(replacedPlaces(observed(FIRST, [job]), object.status ?? {})).toEqual([]);
    const lastCommit = { requestedAt: FIRST, finishedAt: FIRST, result: 'Succeeded' };
    expect(replacedPlaces(observed(SECOND, [job]), { ...object.status, lastCommit })).toEqual([]);
    const content = { type: 'storedArtifact' as const, reference: stored('1') };
    const old = { type: 'registry', reference: stored('0') };
    expect(replacedPlaces(observed(SECOND, [job]), { content })).toEqual([old]);
  });
});

describe('the file of a commit that failed', () => {
  const file = { type: 'folder', path: 'platform-ci/golden-1.qcow2' } as const;
  const { job, ...rest } = commitJob(FIRST, '1');
  const vm = { namespace: 'platform-ci', name: 'builder', uid: 'v' };
  const task = { apiVersion: TASK_API_VERSION, type: 'save', vm, target: file };
  const metadata = { annotations: { [TASK_ANNOTATION]: JSON.stringify(task) } };
  const written = { ...job, spec: { template: { ...job.spec.template, metadata } } };
  const outcome = { kind: 'failed', reason: 'DeadlineExceeded', message: '', finishedAt: undefined } as const;

  it('is removed, because its host may have ended before it could remove the file', () => {
    const failed = observed(FIRST, [{ ...rest, job: written, outcome }]);
    expect(replacedPlaces(failed, failed.object.status ?? {})).toEqual([file]);
  });

  it('stays while the Job runs, and if the content names the file', () => {
    const running = { ...rest, job: written, outcome: { kind: 'waiting', message: '' } } as const;
    expect(replacedPlaces(observed(FIRST, [running]), { content: undefined })).not.toContainEqual(file);
    const folder = parseConfig({ imageStorage: { folder: true } }, 'test');
    const failed = { ...observed(FIRST, [{ ...rest, job: written, outcome }]), config: folder };
    const content = { type: 'storedFile' as const, path: file.path, sha256: '1'.repeat(64) };
    expect(replacedPlaces(failed, { content })).toEqual([]);
  });
});

describe('the Job of a removal', () => {
  const job = removalRecord(observed(FIRST, []), { type: 'registry', reference: stored('0') });
  const { affinity, tolerations = [] } = job.spec.template.spec;

  it('also runs on a host whose disk is nearly full, because the storage can be on this disk', () => {
    expect(tolerations.map(({ key }) => key)).toContain('node.kubernetes.io/disk-pressure');
  });

  it('runs on any host, because perhaps every host is now dedicated to another namespace', () => {
    expect(tolerations).toContainEqual({ key: DEDICATED_KEY, operator: 'Exists', effect: 'NoSchedule' });
    expect(JSON.stringify(affinity)).not.toContain(DEDICATED_KEY);
  });
});
