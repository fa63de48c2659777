import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  apiHost,
  isImageReference,
  join,
  listedImages,
  normaliseImageName,
  parseReference,
  readReference,
  repositoryName,
  shortImageName,
} from './reference.ts';

const DIGEST = `sha256:${'0123456789abcdef'.repeat(4)}`;

describe('names of images', () => {
  it.for([
    ['ubuntu', 'docker.io/library/ubuntu:latest'],
    [' ubuntu\n', 'docker.io/library/ubuntu:latest'],
    ['ubuntu:24.04', 'docker.io/library/ubuntu:24.04'],
    ['docker.io/ubuntu', 'docker.io/library/ubuntu:latest'],
    ['index.docker.io/library/ubuntu:latest', 'docker.io/library/ubuntu:latest'],
    ['team/image', 'docker.io/team/image:latest'],
    ['ghcr.io/team/image', 'ghcr.io/team/image:latest'],
    ['GHCR.io/team/image:1', 'ghcr.io/team/image:1'],
    ['localhost/image', 'localhost/image:latest'],
    ['registry:5000/image', 'registry:5000/image:latest'],
    [`ghcr.io/team/image@${DIGEST}`, `ghcr.io/team/image@${DIGEST}`],
    [`ghcr.io/team/image:1@${DIGEST}`, `ghcr.io/team/image:1@${DIGEST}`],
  ] as const)('%j is normally %j', ([written, normal]) => {
    expect(normaliseImageName(written)).toBe(normal);
  });

  it.for([
    ['docker.io/library/ubuntu:24.04', 'ubuntu:24.04'],
    [`ghcr.io/team/image@${DIGEST}`, 'team/image'],
    [`registry:5000/image:1@${DIGEST}`, 'image:1'],
  ] as const)('%j is %j for people', ([name, short]) => {
    expect(shortImageName(name)).toBe(short);
  });

  it('do not change when they are normalised again', () => {
    const part = fc.stringMatching(/^[a-z0-9]{1,8}$/);
    const registry = fc.constantFrom('', 'docker.io/', 'ghcr.io/', 'localhost:5000/', 'Example.com/');
    const tag = fc.constantFrom('', ':latest', ':1.2', `@${DIGEST}`, `:1@${DIGEST}`);
    fc.assert(
      fc.property(registry, fc.array(part, { minLength: 1, maxLength: 3 }), tag, (host, path, end) => {
        const once = normaliseImageName(`${host}${path.join('/')}${end}`);
        expect(normaliseImageName(once)).toBe(once);
        expect(isImageReference(once)).toBe(true);
      }),
    );
  });

  it('are no references with a scheme, and the message says what to leave out', () => {
    expect(() => parseReference('https://ghcr.io/team/image:1')).toThrow(
      '"https://ghcr.io/team/image:1" is not an image reference: it contains "://". Leave out the scheme, for example https://',
    );
  });

  it('are references when they have a slash, a colon or an at sign, else names of objects', () => {
    expect(['a/b', 'a:1', `a@${DIGEST}`].map(isImageReference)).toEqual([true, true, true]);
    expect(['a', 'a.b', 'a-b'].map(isImageReference)).toEqual([false, false, false]);
  });
});

describe('parseReference', () => {
  it.each([
    ['debian', { registry: 'docker.io', repository: 'library/debian', tag: 'latest' }],
    ['index.docker.io/team/image:1', { registry: 'docker.io', repository: 'team/image', tag: '1' }],
    ['ghcr.io/team/image', { registry: 'ghcr.io', repository: 'team/image', tag: 'latest' }],
    ['Ghcr.io/team/image', { registry: 'ghcr.io', repository: 'team/image', tag: 'latest' }],
    ['localhost:5000/x', { registry: 'localhost:5000', repository: 'x', tag: 'latest' }],
    ['[::1]:5000/a/b:T', { registry: '[::1]:5000', repository: 'a/b', tag: 'T' }],
    ['10.0.0.1/a__b/c--d.e:_1', { registry: '10.0.0.1', repository: 'a__b/c--d.e', tag: '_1' }],
    [`quay.io/a@${DIGEST}`, { registry: 'quay.io', repository: 'a', digest: DIGEST }],
    [`quay.io/a:1@${DIGEST}`, { registry: 'quay.io', repository: 'a', tag: '1', digest: DIGEST }],
  ])('%s', (text, expected) => expect(parseReference(text)).toEqual(expected));

  it.each([
    ['ghcr.io/Team/image', '"Team/image"'],
    ['ghcr.io/team//image', '"team//image"'],
    ['ghcr.io/../image', '"../image"'],
    ['ghcr.io/team/image?x=1', '"team/image?x=1"'],
    ['ghcr.io/team/image:ta g', '"ta g"'],
    [`ghcr.io/image:${'t'.repeat(129)}`, 'is not a tag'],
    ['ghcr.io/image:', '""'],
    ['user@ghcr.io/image', 'is not a digest'],
    ['ghcr.io:port/image', '"ghcr.io:port"'],
    ['gh_cr.io/image', '"gh_cr.io"'],
    ['ghcr.io/image@sha256:1234', 'sha256:1234'],
    [`ghcr.io/image@sha512:${'0'.repeat(128)}`, 'digests of sha512 are not supported'],
    [`ghcr.io/image@${DIGEST}@${DIGEST}`, 'more than one'],
    ['a'.repeat(513), 'longer than'],
    ['', '"library/"'],
  ])('refuses %s and names what is wrong', (text, part) => {
    expect(() => parseReference(text)).toThrow(
      expect.objectContaining({
        reason: 'ImageSourceUnsupported',
        message: expect.stringContaining(part) as string,
      }),
    );
  });

  it('never returns a part that could lead elsewhere in an address', () => {
    const piece = fc.constantFrom(
      'a',
      'B',
      '.',
      '..',
      '/',
      ':',
      '@',
      '?',
      '#',
      '%2e',
      ' ',
      '-',
      '_',
      'io',
      DIGEST,
      '\\',
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 10 }), (pieces) => {
        let parsed: ReturnType<typeof parseReference>;
        try {
          parsed = parseReference(pieces.join(''));
        } catch (error) {
          expect(error).toMatchObject({ reason: 'ImageSourceUnsupported' });
          return;
        }
        const reference = parsed.digest ?? parsed.tag ?? '';
        const url = new URL(`/v2/${parsed.repository}/manifests/${reference}`, `https://${parsed.registry}`);
        expect(url.pathname).toBe(`/v2/${parsed.repository}/manifests/${reference}`);
        expect(url.search + url.hash + url.username).toBe('');
      }),
    );
  });

  it('is the same for a name and its normal form', () => {
    for (const name of ['debian', 'quay.io/a/b:1', `x:5000/y@${DIGEST}`]) {
      expect(parseReference(normaliseImageName(name))).toEqual(parseReference(name));
    }
  });
});

it('knows where the API of Docker Hub is', () => {
  expect(apiHost('docker.io')).toBe('registry-1.docker.io');
  expect(apiHost('quay.io')).toBe('quay.io');
});

it('joins names with tags and digests', () => {
  expect([join('a/b', 'c'), join('a/b', DIGEST)]).toEqual(['a/b:c', `a/b@${DIGEST}`]);
});

it('reads the same parts without throwing, or says why there are none', () => {
  expect(readReference('Ghcr.io/team/image')).toEqual(parseReference('ghcr.io/team/image:latest'));
  expect(readReference('ghcr.io/Team/image')).toBe('"Team/image" is not the name of a repository');
});

it('names a repository without tag and digest', () => {
  expect(repositoryName(parseReference(`localhost:5000/a/b:1@${DIGEST}`))).toBe('localhost:5000/a/b');
});

it('leaves out the images and names of a host that lists more than agents list', () => {
  const many = Array.from({ length: 10_000 }, (_, index) => `registry.example/guest:${index}`);
  expect(listedImages(many.map((name) => ({ names: [name] })))).toHaveLength(200);
  expect(listedImages([{ names: many }])).toEqual([{ names: many.slice(0, 256) }]);
  const [first] = many;
  expect(listedImages([{ names: ['a'.repeat(100_000), String(first)], sizeBytes: 1 }])).toEqual([
    { names: [first], sizeBytes: 1 },
  ]);
});
