import { describe, expect, it } from 'vitest';
import type {
  ImageCacheEntry,
  ImageCacheEntrySpec,
  NodeCacheState,
} from '../../api/v1alpha1/imagecacheentry.ts';
import type { Image } from '../../api/v1alpha1/image.ts';
import { parseConfig } from '../config/config.ts';
import { type HostContext, planHost } from './plan.ts';
import { digestsOn, knownDigests, newestDigest, resolveImage } from './image.ts';
import type { CacheJob, ObservedHost, ObservedEntry } from './observed.ts';

const TAG = 'registry.example:5000/guest:1';
const REPOSITORY = 'registry.example:5000/guest';

function entry(spec: ImageCacheEntrySpec, digest?: string): ImageCacheEntry {
  return {
    apiVersion: 'berth.dev/v1alpha1',
    kind: 'ImageCacheEntry',
    metadata: { name: 'guest', namespace: 'platform-a', uid: 'uid' },
    spec,
    status: digest === undefined ? {} : { digest },
  };
}

function host(name: string, ...digests: string[]): ObservedHost {
  const images = digests.length === 0 ? [] : [digests.map((digest) => `sha256:${digest}`)];
  const usable = { isUsable: true, dedicatedTo: undefined, isCordoned: false, notReadySince: undefined };
  return { name, tags: new Set(), ...usable, images };
}

function succeeded(on: string, finishedAt: string, digest: string): CacheJob {
  return {
    name: `cache-${on}`,
    namespace: 'platform-a',
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
    jobNamespace: 'platform-a',
    reference: TAG,
    image: resolveImage(of, undefined),
    duplicateOf: undefined,
    hosts: new Map(hosts.map((one) => [one.name, one])),
    freeSlots: () => 1,
    jobs,
    credentials: [],
    lingering: new Set(),
    config: parseConfig({}, 'test'),
    now: 0,
  };
}

describe('the newest digest of a tag', () => {
  const tagged = (digest?: string) => entry({ reference: TAG }, digest);

  it('is unknown until a Job has checked, whatever hosts list for other namespaces', () => {
    const hosts = [host('a', 'old'), host('b', 'new'), host('c', 'new'), host('d')];
    expect(newestDigest(observed(tagged(), hosts))).toBeUndefined();
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
    expect(image).toMatchObject({ digest, containerImage: reference });
    const of = observed(entry({ reference }), [host('a', 'other')]);
    expect(newestDigest(of)).toBe(digest);
    expect(digestsOn(host('a', pin), knownDigests(of), digest)).toEqual([digest]);
    expect(digestsOn(host('a', 'other'), knownDigests(of), digest)).toBeUndefined();
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

  it('an Image for several platforms: is on hosts of each platform, which share only the digest of the index', () => {
    const [index = '', arm = '', x86 = ''] = ['a', 'b', 'c'].map((digit) => digit.repeat(64));
    const content = { type: 'registry', reference: `${REPOSITORY}@sha256:${index}` };
    const image = resolveImage(entry({ imageRef: { namespace: 'platform-a', name: 'guest' } }), {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'Image',
      metadata: { name: 'guest', namespace: 'platform-a' },
      spec: { source: { registry: { reference: TAG } } },
      status: { content, digest: `sha256:${arm}` },
    });
    const known = knownDigests({ ...observed(entry({}), []), image });
    expect(digestsOn(host('a', arm, index), known, undefined)).toBeDefined();
    expect(digestsOn(host('a', x86, index), known, undefined)).toBeDefined();
    expect(digestsOn(host('a', x86), known, undefined)).toBeUndefined();
  });

  it('an Image of another namespace with a URL that can contain credentials: the Pod of its Job would show it', () => {
    const object: Image = {
      apiVersion: 'berth.dev/v1alpha1',
      kind: 'Image',
      metadata: { name: 'guest', namespace: 'platform-default' },
      spec: { source: { http: { url: 'https://user:word@example.com/guest', sha256: 'ab' } } },
      status: { digest: 'sha256:ab' },
    };
    const of = entry({ imageRef: { namespace: 'platform-default', name: 'guest' } });
    expect(resolveImage(of, object)).toMatchObject({ reason: 'ImageNotReady' });
    const own = { ...object, metadata: { ...object.metadata, namespace: 'platform-a' } };
    expect(resolveImage(of, own)).toMatchObject({ digest: 'sha256:ab' });
  });
});
