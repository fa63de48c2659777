import { describe, expect, it } from 'vitest';
import * as z from 'zod';
import { classOf, ReasonedError } from '../../../api/v1alpha1/reasons.ts';
import {
  choose,
  listOf,
  type Manifest,
  normalizeArchitecture,
  pick,
  readDocument,
  readManifest,
  requireContent,
} from './manifests.ts';

it('names the place and the kind of a fault in one short line, in any document', () => {
  const schema = z.object({ annotations: z.record(z.string(), z.string()) });
  const key = `key\n\u001B[31m"${'x'.repeat(1_000_000)}`;
  const bytes = Buffer.from(JSON.stringify({ annotations: { [key]: 7 } }));
  let message = '';
  try {
    readDocument(schema, bytes, { bytes: 2_000_000, items: 10 }, 'The manifest');
  } catch (error) {
    message = String(error);
  }
  expect(message).toMatch(
    /^ReasonedError: The manifest is invalid at annotations\.key \[31m"x+: [\x20-\x7e]*string/,
  );
  expect(message.length).toBeLessThan(500);
});

const OCI_MANIFEST = 'application/vnd.oci.image.manifest.v1+json';
const OCI_INDEX = 'application/vnd.oci.image.index.v1+json';
const WHAT = 'registry.example/team/base:1';

function digest(letter: string): string {
  return `sha256:${letter.repeat(64)}`;
}

/** Returns an entry of an index for the manifest with the digest of this letter. */
function entry(letter: string, platform?: unknown, more: object = {}): object {
  return { mediaType: OCI_MANIFEST, digest: digest(letter), size: 7, platform, ...more };
}

function picked(manifests: unknown, architecture = 'amd64', more: object = {}) {
  const document = readManifest({ schemaVersion: 2, manifests, ...more }, OCI_INDEX, WHAT);
  if (document.kind !== 'index') {
    throw new TypeError('It is not an index');
  }
  return pick(document.index, architecture, WHAT).digests;
}

const amd64 = { architecture: 'amd64', os: 'linux' };

describe('in an index', () => {
  it.each<[string, unknown[]]>([
    ['an empty platform', [entry('b', {}), entry('a', amd64)]],
    ['a platform of nulls', [entry('b', { architecture: null, os: null }), entry('a', amd64)]],
    ['a platform that is a text', [entry('b', 'linux/amd64'), entry('a', amd64)]],
    [
      'another digest algorithm',
      [{ ...entry('b', { ...amd64, architecture: 's390x' }), digest: 'sha512:ab' }, entry('a', amd64)],
    ],
    ['no digest', [{ platform: amd64 }, entry('a', amd64)]],
    ['no object', [null, 7, 'x', [], entry('a', amd64)]],
    ['an attestation', [entry('b', { architecture: 'unknown', os: 'unknown' }), entry('a', amd64)]],
    [
      'annotations of any type',
      [entry('a', amd64, { annotations: { a: 7, b: null }, urls: 7, size: '7', data: {} })],
    ],
    ['an unknown media type', [entry('a', amd64, { mediaType: 7 })]],
    ['a newer variant', [entry('b', { ...amd64, variant: 'v3' }), entry('a', amd64)]],
    [
      'an explicit first variant',
      [entry('b', { ...amd64, variant: 'v2' }), entry('a', { ...amd64, variant: 'v1' })],
    ],
    ['a null variant', [entry('a', { ...amd64, variant: null, 'os.features': 7 })]],
    ['another name of the architecture', [entry('a', { ...amd64, architecture: 'x86_64' })]],
    ['an architecture in capitals', [entry('a', { ...amd64, architecture: 'AMD64' })]],
    ['no system', [entry('a', { architecture: 'amd64', os: '' })]],
    ['no platform at all', [entry('a')]],
    ['the platform "/"', [entry('a', { architecture: '', os: '' })]],
  ])('%s does no harm', (_, manifests) => {
    expect(picked(manifests)).toEqual([digest('a')]);
  });

  it('the variant of arm64 does no harm', () => {
    const arm64 = { architecture: 'aarch64', os: 'linux', variant: 'v8' };
    expect(picked([entry('b', { ...arm64, variant: 'v9' }), entry('a', arm64)], 'arm64')).toEqual([
      digest('a'),
    ]);
  });

  it('null in other fields does no harm', () => {
    const nulls = { mediaType: null, layers: null, annotations: null, subject: null, artifactType: null };
    expect(picked([entry('a', amd64)], 'amd64', nulls)).toEqual([digest('a')]);
  });

  it.each([
    [[entry('b', { architecture: 's390x', os: 'linux' })], 'linux/s390x'],
    [[entry('b', { architecture: 'amd64', os: 'windows' })], 'systems other than linux and darwin'],
    [[], 'systems other than linux and darwin'],
  ])('without a fitting image, the images are named', (manifests, list) => {
    expect(() => picked(manifests)).toThrow(`has no image for amd64; its images are for: ${list}`);
  });

  it('manifests that are no list can be corrected later', () => {
    expect(() => picked({})).toThrow(expect.objectContaining({ reason: 'ImageManifestInvalid' }));
    expect(() => picked([], 'amd64', { layers: [] })).toThrow(
      expect.objectContaining({ reason: 'ImageManifestInvalid' }),
    );
  });
});

describe('of several images without a platform, the configuration decides:', () => {
  /** Returns the letter of the chosen image. `configs` has the configuration of each image; undefined for an image that is missing. */
  async function chosen(configs: Record<string, unknown>, stated: unknown[] = []): Promise<string> {
    const manifests = [...Object.keys(configs).map((letter) => entry(letter)), ...stated];
    const { index } = readManifest({ manifests }, OCI_INDEX, WHAT) as { index: Parameters<typeof pick>[0] };
    const manifest = async (of: string) => {
      const letter = of.at(-1) ?? '';
      if (configs[letter] === undefined) {
        throw new ReasonedError('ImageNotFound', 'missing');
      }
      const config = { mediaType: '', digest: of, size: 1 };
      return { digest: letter, document: { kind: 'manifest' as const, manifest: { config, layers: [] } } };
    };
    const blob = async ({ digest: of }: { digest: string }) =>
      Buffer.from(JSON.stringify(configs[of.at(-1) ?? '']));
    return (await choose({ manifest, blob }, pick(index, 'amd64', WHAT), 'amd64')).digest;
  }

  it.each<[Record<string, unknown>, string]>([
    [{ a: { architecture: 's390x' }, b: { architecture: 'amd64' } }, 'b'],
    [{ a: {}, b: { architecture: 'x86_64' } }, 'b'],
    [{ a: undefined, b: 'no object', c: { architecture: 'arm64' } }, 'b'],
    [{ a: { architecture: 'arm64' }, b: { architecture: null } }, 'b'],
    // The plan of the pull says that this image is for another architecture.
    [{ a: { architecture: 'arm64' }, b: undefined }, 'a'],
    [{ a: { architecture: 'arm64' } }, 'a'],
  ])('%j', async (configs, expected) => {
    expect(await chosen(configs)).toBe(expected);
  });

  it('beside images with a platform, it must state the architecture', async () => {
    const arm64 = [entry('d', { architecture: 'arm64', os: 'linux' })];
    expect(await chosen({ a: { architecture: 'amd64' } }, arm64)).toBe('a');
    await expect(chosen({ a: {} }, arm64)).rejects.toMatchObject({ reason: 'ImageArchitectureMismatch' });
  });
});

describe('a manifest', () => {
  const config = { mediaType: 'application/vnd.oci.image.config.v1+json', digest: digest('c'), size: 7 };
  const layer = { mediaType: 'application/vnd.oci.image.layer.v1.tar', digest: digest('d'), size: 7 };

  function read(more: object, contentType = OCI_MANIFEST): Manifest {
    const document = readManifest({ schemaVersion: 2, config, layers: [layer], ...more }, contentType, WHAT);
    if (document.kind !== 'manifest') {
      throw new TypeError('It is not a manifest');
    }
    return document.manifest;
  }

  it.each<[string, object, string?]>([
    ['nulls', { mediaType: null, artifactType: null, annotations: null, manifests: null, subject: null }],
    ['empty texts', { mediaType: '', artifactType: '' }],
    ['annotations of any type', { annotations: { a: 7, b: null, c: {} } }],
    ['no version', { schemaVersion: undefined }],
    ['its type with a parameter', { mediaType: `${OCI_MANIFEST}; charset=utf-8` }],
    ['no type but a general header', {}, 'application/octet-stream'],
    ['no type and no header', {}, ''],
  ])('with %s is read', (_, more, contentType) => {
    expect(read(more, contentType)).toMatchObject({ config, layers: [layer] });
  });

  it('keeps annotations that are texts', () => {
    expect(read({ annotations: { a: 'x', b: 7 } }).annotations).toEqual({ a: 'x' });
  });

  it.each([
    { ...layer, digest: 'sha512:ab' },
    { ...layer, size: -1 },
    { ...layer, size: '7' },
    { mediaType: layer.mediaType },
    null,
    'x',
  ])('with the layer %j is refused only if this layer is needed', (strange) => {
    const [first, second] = read({ layers: [strange, layer] }).layers;
    expect(second).toEqual(layer);
    expect(() => requireContent(first ?? layer, WHAT)).toThrow('needs a sha256 digest and a size');
    requireContent(second ?? layer, WHAT);
  });

  it.each<[unknown, string]>([
    [[], OCI_MANIFEST],
    [null, OCI_MANIFEST],
    [{ layers: 7 }, OCI_MANIFEST],
    [{ manifests: [] }, OCI_MANIFEST],
    [{ schemaVersion: 1 }, OCI_MANIFEST],
    [{ mediaType: OCI_INDEX }, OCI_MANIFEST],
  ])('%j as %s can be corrected later, so the fetch is tried again', (document, contentType) => {
    const whole =
      Array.isArray(document) || document === null ? document : { config, ...(document as object) };
    expect(() => readManifest(whole, contentType, WHAT)).toThrow(
      expect.objectContaining({ reason: 'ImageManifestInvalid' }),
    );
    expect(classOf('ImageManifestInvalid', 'Image')).toBe('passing');
  });
});

it.each([
  ['x86_64', 'amd64'],
  ['X86-64', 'amd64'],
  ['aarch64', 'arm64'],
  ['ARM64', 'arm64'],
  ['riscv64', 'riscv64'],
  [undefined, undefined],
])('the architecture %s is %s', (name, expected) => {
  expect(normalizeArchitecture(name)).toBe(expected);
});

it.each([
  ['entries', { manifests: [] as unknown[] }, OCI_INDEX, 1_024, 'manifests'],
  ['layers', { config: {}, layers: [] as unknown[] }, OCI_MANIFEST, 40_000, 'layers'],
])('refuses too many %s before it checks one of them', (_, document, type, most, field) => {
  let checks = 0;
  const element = {
    get digest() {
      checks += 1;
      return 5;
    },
  };
  const list = Array.from({ length: most + 1 }, () => element);
  const read = () => readManifest({ schemaVersion: 2, ...document, [field]: list }, type, WHAT);
  expect(read).toThrow(new RegExp(`${field}.*${most}`));
  expect(checks).toBe(0);
  list.pop();
  expect(read).not.toThrow(`${most}`);
  expect(checks).toBeGreaterThan(0);
});

const pairs = z.object({ map: listOf(z.tuple([z.number(), z.number()]), 3) });

it('a list in which all elements are right is read', () => {
  expect(
    pairs.parse({
      map: [
        [1, 2],
        [3, 4],
      ],
    }),
  ).toEqual({
    map: [
      [1, 2],
      [3, 4],
    ],
  });
  expect(pairs.parse({ map: [] })).toEqual({ map: [] });
});

it('of many wrong elements only the first is reported, with its place', () => {
  const { error } = pairs.safeParse({ map: [[1, 2], [3, 'x'], 'y'] });
  expect(error?.issues.map(({ path }) => path)).toEqual([['map', 1, 1]]);
});

it('a list that is too long is refused, and none of its elements is reported', () => {
  const { error } = pairs.safeParse({ map: ['a', 'b', 'c', 'd'] });
  expect(error?.issues.map(({ code, path }) => [code, path])).toEqual([['too_big', ['map']]]);
});
