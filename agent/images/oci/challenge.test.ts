import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseChallenges } from './challenge.ts';

function read(header: string | string[] | undefined): [string, Record<string, string>][] {
  return parseChallenges(header).map(({ scheme, parameters }) => [scheme, Object.fromEntries(parameters)]);
}

describe('WWW-Authenticate', () => {
  it.each<[string | string[] | undefined, [string, Record<string, string>][]]>([
    [undefined, []],
    ['', []],
    ['Basic realm="a b"', [['basic', { realm: 'a b' }]]],
    [
      'Bearer realm="https://a/token",service="a",scope="repository:x:pull,push"',
      [['bearer', { realm: 'https://a/token', service: 'a', scope: 'repository:x:pull,push' }]],
    ],
    [
      'bearer realm="https://a, Basic realm=b" , Service = a.b, BASIC realm=x',
      [
        ['bearer', { realm: 'https://a, Basic realm=b', service: 'a.b' }],
        ['basic', { realm: 'x' }],
      ],
    ],
    [
      ['Negotiate', 'Basic realm="x"'],
      [
        ['negotiate', {}],
        ['basic', { realm: 'x' }],
      ],
    ],
    [
      'Negotiate YWJj==, Basic realm="say \\"x\\""',
      [
        ['negotiate', {}],
        ['basic', { realm: 'say "x"' }],
      ],
    ],
    ['Basic realm="one", realm="two"', [['basic', { realm: 'one' }]]],
    ['Basic realm="not closed', [['basic', {}]]],
  ])('%j', (header, expected) => expect(read(header)).toEqual(expected));

  it('a written challenge is read unchanged', () => {
    const token = fc.stringMatching(/^[a-z][a-z0-9]{0,8}$/);
    const value = fc.string({ unit: fc.constantFrom('a', ',', ' ', '=', '"', '\\', ':', 'Basic ') });
    const challenge = fc.tuple(token, fc.dictionary(token, value, { minKeys: 1, maxKeys: 4 }));
    fc.assert(
      fc.property(fc.array(challenge, { maxLength: 4 }), (challenges) => {
        const header = challenges.map(([scheme, parameters]) => {
          const written = Object.entries(parameters).map(
            ([name, text]) => `${name}="${text.replaceAll(/["\\]/g, String.raw`\$&`)}"`,
          );
          return `${scheme} ${written.join(', ')}`;
        });
        const plain = challenges.map(([scheme, parameters]) => [scheme, { ...parameters }]);
        expect(read(header.join(', '))).toEqual(plain);
        expect(read(header)).toEqual(plain);
      }),
    );
  });

  it('ends soon on any input', () => {
    fc.assert(
      fc.property(fc.string({ maxLength: 200 }), (text) => {
        expect(read(text)).toBeDefined();
      }),
    );
    const before = performance.now();
    // If the time grew with the square of the length, these would take minutes. They take some milliseconds.
    read(`Bearer ${'a="\\'.repeat(400_000)}`);
    read('a='.repeat(800_000));
    expect(performance.now() - before).toBeLessThan(5_000);
  });
});
