import { describe, expect, it } from 'vitest';
import type {
  ImageCacheEntry,
  ImageCacheEntrySpec,
  NodeCacheState,
} from '../../api/v1alpha1/imagecacheentry.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { parseConfig } from '../config/config.ts';
import { type HostContext, planHost } from './hostplan.ts';
import { namesOn, newestDigest, resolveImage } from './image.ts';
import type { CacheJob, ObservedHost, ObservedEntry } from './observed.ts';

const TAG = 'registry.example:5000/guest:1';
const REPOSITORY = 'registry.example:5000/guest';

function entry(spec: ImageCacheEntrySpec, digest?: string): ImageCacheEntry {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: { name: 'guest', uid: 'uid' },
    spec,
    status: digest === undefined ? {} : { digest },
  };
}

function host(name: string, ...digests: string[]): ObservedHost {
  const names = [TAG, ...digests.map((digest) => `${REPOSITORY}@sha256:${digest}`)];
  const images = digests.length === 0 ? [] : [names];
  return { name, tags: new Set(), notReadySince: undefined, isCordoned: false, images };
}

function succeeded(on: string, finishedAt: string, digest: string): CacheJob {
  return {
    name: `cache-${on}`,
    uid: on,
    host: on,
    type: 'cache',
    createdAt: 0,
    attempt: '',
    isParked: false,
    isScheduled: true,
    obstacle: undefined,
    outcome: { kind: 'succeeded', report: { digest: `sha256:${digest}` }, finishedAt },
  };
}

function observed(of: ImageCacheEntry, hosts: ObservedHost[], jobs: CacheJob[] = []): ObservedEntry {
  return {
    entry: of,
    reference: TAG,
    image: resolveImage(of, undefined),
    duplicateOf: undefined,
    hosts: new Map(hosts.map((one) => [one.name, one])),
    freeSlots: () => 1,
    jobs,
    lingering: new Set(),
    config: parseConfig({}, 'test'),
    now: 0,
  };
}

describe('the newest digest of a tag', () => {
  const tagged = (digest?: string) => entry({ reference: TAG }, digest);

  it('is that of most hosts, until a Job has checked', () => {
    const hosts = [host('a', 'old'), host('b', 'new'), host('c', 'new'), host('d')];
    expect(newestDigest(observed(tagged(), hosts))).toBe('sha256:new');
    const checked = [succeeded('a', '2030-01-01T00:00:01Z', 'old')];
    expect(newestDigest(observed(tagged(), hosts, checked))).toBe('sha256:old');
  });

  it('does not change when another host reports another digest', () => {
    const hosts = [host('a', 'known'), host('b', 'strange'), host('c', 'strange')];
    expect(newestDigest(observed(tagged('sha256:known'), hosts))).toBe('sha256:known');
    expect(newestDigest(observed(tagged('sha256:known'), []))).toBe('sha256:known');
  });

  it('is that of the last successful Job', () => {
    const hosts = [host('a', 'old'), host('b', 'newer'), host('c', 'newest')];
    const jobs = [
      succeeded('b', '2030-01-01T00:00:01Z', 'newer'),
      succeeded('c', '2030-01-01T00:00:02Z', 'newest'),
    ];
    expect(newestDigest(observed(tagged('sha256:old'), hosts, jobs))).toBe('sha256:newest');
  });

  it('is not taken from a host that still lists its image from before its Job', () => {
    const hosts = [host('a', 'old'), host('b', 'old')];
    const jobs = [succeeded('b', '2030-01-01T00:00:01Z', 'new')];
    expect(newestDigest(observed(tagged('sha256:old'), hosts, jobs))).toBe('sha256:old');
  });

  it('is that of the index if hosts of several platforms have their own manifests', () => {
    const hosts = [host('arm-1', 'index', 'arm'), host('arm-2', 'index', 'arm'), host('x86', 'index', 'x86')];
    expect(newestDigest(observed(tagged('sha256:arm'), hosts))).toBe('sha256:index');
    const jobs = [succeeded('x86', '2030-01-01T00:00:01Z', 'x86')];
    expect(newestDigest(observed(tagged('sha256:before'), hosts, jobs))).toBe('sha256:index');
  });
});

describe('an image with a digest in its name', () => {
  it('pinned in a registry with a port: any spelling of the reference counts', () => {
    const pin = 'a'.repeat(64);
    const digest = `sha256:${pin}`;
    const reference = `${REPOSITORY}:1@${digest}`;
    const image = resolveImage(entry({ reference }), undefined);
    expect(image).toMatchObject({ digest, names: [reference, `${REPOSITORY}@${digest}`] });
    expect(newestDigest(observed(entry({ reference }), [host('a', 'other')]))).toBe(digest);
    expect('task' in image && namesOn(image, host('a', pin))).toEqual([TAG, `${REPOSITORY}@${digest}`]);
    expect('task' in image && namesOn(image, host('a', 'other'))).toBeUndefined();
  });

  it('in a form that no host can fetch: the fault is reported, and no host is asked', () => {
    const reference = `${REPOSITORY}@sha512:${'0'.repeat(128)}`;
    const image = resolveImage(entry({ reference }), undefined);
    expect(image).toEqual({
      reason: 'ImageSourceUnsupported',
      message: `"${reference}" is not an image reference: digests of sha512 are not supported, only sha256`,
    });
    const row: NodeCacheState = { node: 'a', state: 'Failed' };
    const context = { observed: { image }, isTarget: true, isHeld: false, jobs: [], row };
    // Attempts that an earlier release recorded are ignored.
    expect(planHost(context as unknown as HostContext)).toEqual({
      row: undefined,
      isHeld: false,
      deletes: [],
    });
  });

  it('an Image: has the name of its object and its digest, once it has content', () => {
    const of = entry({ imageRef: { namespace: 'platform-a', name: 'guest' } });
    const object: Image = {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'Image',
      metadata: { name: 'guest', namespace: 'platform-a' },
      spec: {
        source: { http: { url: 'https://example.com/guest', sha256: 'ab' } },
        architecture: 'arm64',
        format: 'QCOW2',
      },
    };
    expect(resolveImage(of, undefined)).toMatchObject({ reason: 'ImageNotFound' });
    expect(resolveImage(of, object)).toMatchObject({ reason: 'ImageNotReady' });
    expect(resolveImage(of, { ...object, status: { digest: 'sha256:ab' } })).toMatchObject({
      digest: 'sha256:ab',
      task: {
        name: 'berth.dev/platform-a/guest',
        source: { type: 'http', url: 'https://example.com/guest', sha256: 'ab' },
        architecture: 'arm64',
        format: 'QCOW2',
      },
    });
  });

  describe('an Image', () => {
    const of = entry({ imageRef: { namespace: 'platform-a', name: 'guest' } });
    const name = 'berth.dev/platform-a/guest';
    const [index, arm, x86] = ['a', 'b', 'c'].map((digit) => `sha256:${digit.repeat(64)}`);

    /** Returns whether a host with these names of an image has the Image. Its content is for several platforms. */
    function isOn(...names: string[]): boolean {
      const content = { type: 'registry', reference: `${REPOSITORY}@${index}` };
      const image = resolveImage(of, {
        apiVersion: 'berth.dev/v1alpha1',
        kind: 'Image',
        metadata: { name: 'guest', namespace: 'platform-a' },
        spec: { source: { registry: { reference: TAG } } },
        status: { content, digest: arm },
      });
      return 'task' in image && namesOn(image, { ...host('a'), images: [names] }) !== undefined;
    }

    it('for several platforms: is on hosts of each platform, which share only the digest of the index', () => {
      expect(isOn(`${name}@${arm}`, `${REPOSITORY}@${arm}`, `${REPOSITORY}@${index}`)).toBe(true);
      expect(isOn(`${name}@${x86}`, `${REPOSITORY}@${x86}`, `${REPOSITORY}@${index}`)).toBe(true);
    });

    it('is not on hosts with its earlier content, or with its content under another name', () => {
      expect(isOn(`${name}@${x86}`, `${REPOSITORY}@${x86}`)).toBe(false);
      expect(isOn(`${REPOSITORY}@${x86}`, `${REPOSITORY}@${index}`)).toBe(false);
      expect(isOn(`${name}-ci@${x86}`, `${REPOSITORY}@${index}`)).toBe(false);
    });
  });
});
