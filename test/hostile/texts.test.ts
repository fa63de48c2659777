/** Texts that tenants write. Another reader of the same text must not read another meaning. */
import { array, assert, constantFrom, integer, oneof, property, string, tuple } from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ReasonedError } from '../../api/v1alpha1/reasons.ts';
import {
  apiHost,
  IMAGE_NAME_LENGTH,
  normaliseImageName,
  parseReference,
  type Reference,
} from '../../api/v1alpha1/reference.ts';
import { hostileRuns, tried } from './support/attempts.ts';

const REFERENCES = 200_000;

/** Hosts that readers of addresses read differently, and pieces for generated hosts. */
const HOSTS = [
  '0x7f.1',
  '127.1',
  '2130706433.',
  '0177.0.0.1',
  'a.b:0080',
  'a.b:443',
  'a.b:70000',
  '[::1]:5000',
  '[::ffff:127.0.0.1]',
  'xn--a.example',
  'LOCALHOST:1',
];
const PIECES = [
  '..',
  '/',
  '//',
  ':',
  '@',
  '%2e',
  '#',
  '?',
  '\\',
  '\n',
  '-',
  '_',
  '__',
  'sha256:',
  'a',
  '0x7f',
  '.',
  ' ',
];

const hostile = oneof(
  tuple(constantFrom(...HOSTS), array(constantFrom(...PIECES), { maxLength: 12 })).map(
    ([host, rest]) => `${host}/${rest.join('')}`,
  ),
  array(oneof(constantFrom(...PIECES), constantFrom(...HOSTS)), { maxLength: 24 }).map((parts) =>
    parts.join(''),
  ),
  tuple(constantFrom('a', '-', '_', 'a-', 'a_'), integer({ min: 1, max: IMAGE_NAME_LENGTH })).map(
    ([text, count]) => text.repeat(count).slice(0, IMAGE_NAME_LENGTH),
  ),
  string({ maxLength: 80, unit: 'grapheme' }),
);

function read(text: string): Reference | undefined {
  try {
    return parseReference(text);
  } catch (error) {
    expect(error).toBeInstanceOf(ReasonedError);
    return undefined;
  }
}

describe('an image reference', () => {
  test('is refused with a reason, or leads to the registry and the path that it names', (context) => {
    assert(
      property(hostile, (text) => {
        const reference = read(text);
        tried(
          context,
          'reference of an image',
          reference === undefined ? 'refused' : 'read as a URL reads it',
        );
        if (reference === undefined) {
          return;
        }
        const host = apiHost(reference.registry);
        const url = new URL(`http://${host}/v2/${reference.repository}/manifests/latest`);
        expect([`${url.hostname}:${url.port || 80}`, url.pathname, url.search, url.hash]).toEqual([
          /:\d+$/.test(host) ? host.replace(/:0*(\d+)$/, ':$1') : `${host}:80`,
          `/v2/${reference.repository}/manifests/latest`,
          '',
          '',
        ]);
        const [named = ''] = text.trim().split('@');
        const written = `${reference.registry}/${reference.repository}`;
        const spellings = [
          written,
          written.replace('docker.io/', ''),
          written.replace('docker.io/library/', ''),
        ];
        const tags = [undefined, reference.tag].map((tag) => (tag === undefined ? '' : `:${tag}`));
        const all = spellings.flatMap((name) => tags.map((tag) => `${name}${tag}`));
        expect(all).toContain(
          named.replace(/^[^/]*\//, (host) => host.toLowerCase()).replace('index.docker.io/', 'docker.io/'),
        );
        expect(normaliseImageName(normaliseImageName(text))).toBe(normaliseImageName(text));
      }),
      hostileRuns(REFERENCES),
    );
  });
});
