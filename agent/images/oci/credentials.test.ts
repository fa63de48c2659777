import * as fc from 'fast-check';
import { describe, expect, it, vi } from 'vitest';
import { type Credential, fingerprint, Keyring, listFaults } from './credentials.ts';

function config(auths: Record<string, unknown>): string {
  return JSON.stringify({ auths });
}

function basic(username: string, password = 'p'): { auth: string } {
  return { auth: Buffer.from(`${username}:${password}`).toString('base64') };
}

const U: Credential = { type: 'password', username: 'u', password: 'p' };

function users(keyring: Keyring, registry: string, repository: string): string[] {
  return keyring
    .candidates(registry, repository)
    .map((credential) => (credential.type === 'password' ? credential.username : credential.type));
}

describe('a keyring', () => {
  it('gives the most specific entry first', () => {
    const keyring = Keyring.parse([
      config({
        '*.example.com': basic('pattern'),
        'quay.example.com': basic('host'),
        'quay.example.com/a': basic('a'),
        '*.example.com/a/b': basic('pattern-a-b'),
      }),
      config({ 'quay.example.com/a/b': basic('a-b'), 'quay.example.com/ab': basic('other') }),
    ]);
    expect(users(keyring, 'quay.example.com', 'a/b/c')).toEqual([
      'a-b',
      'pattern-a-b',
      'a',
      'host',
      'pattern',
    ]);
    expect(users(keyring, 'quay.example.com', 'abc')).toEqual(['host', 'pattern']);
    expect(users(keyring, 'other.example', 'a')).toEqual([]);
  });

  it('keeps the order of equal entries, and one of each', () => {
    const keyring = Keyring.parse([
      config({ 'a.io': basic('one') }),
      config({ 'https://a.io': basic('two') }),
      config({ 'a.io': basic('one') }),
    ]);
    expect(users(keyring, 'a.io', 'x')).toEqual(['one', 'two']);
  });

  it.each([
    ['https://index.docker.io/v1/', 'docker.io', true],
    ['docker.io', 'docker.io', true],
    ['registry-1.docker.io', 'docker.io', true],
    ['https://a.io/v2/', 'a.io', true],
    ['http://A.io', 'a.io', true],
    ['a.io:443', 'a.io', false],
    ['a.io', 'a.io:5000', false],
    ['a.io:5000', 'a.io:5000', true],
    ['*.a.io', 'x.a.io', true],
    ['*.a.io', 'a.io', false],
    ['*.a.io', 'y.x.a.io', false],
    ['x*y.a.io', 'xzy.a.io', true],
    ['x*y.a.io', 'xy.a.io', true],
    ['xy*yz.a.io', 'xyz.a.io', false],
    ['*.*.a.io:80', 'x.y.a.io:80', true],
    ['*', 'a.io', false],
    ['a.io.evil', 'a.io', false],
  ])('%s is for %s: %s', (key, registry, expected) => {
    const keyring = Keyring.parse([config({ [key]: basic('user') })]);
    expect(users(keyring, registry, 'any/thing').length === 1).toBe(expected);
  });

  it.each<[unknown, Credential[]]>([
    [basic('u', 'a:b:c'), [{ type: 'password', username: 'u', password: 'a:b:c' }]],
    [{ username: 'u', password: '' }, [{ type: 'password', username: 'u', password: '' }]],
    [{ ...basic('u'), identitytoken: 'i' }, [{ type: 'identityToken', token: 'i' }]],
    [{ registrytoken: 'r' }, [{ type: 'registryToken', token: 'r' }]],
    [{ auth: basic('u').auth, username: '', password: null, identitytoken: null }, [U]],
    [{ auth: null, username: 'u', password: 'p' }, [U]],
    [{ auth: '', username: 'u', password: 'p', registrytoken: '' }, [U]],
    [{ auth: 'placeholder', username: 'u', password: 'p' }, [U]],
    [{ auth: 7, username: 'u', password: 'p', email: 7 }, [U]],
    [{ ...basic('u'), identitytoken: 7, username: {} }, [U]],
    [{}, []],
    [null, []],
    ['', []],
    [{ username: '', password: '', auth: '' }, []],
    [{ username: '', password: '', auth: 'Og==' }, []],
    [{ auth: null, username: null, password: null }, []],
  ])('reads %j without a fault', (entry, expected) => {
    const keyring = Keyring.parse([config({ 'a.io': entry })]);
    expect(keyring.candidates('a.io', 'x')).toEqual(expected);
    expect(keyring.faults).toEqual([]);
  });

  it.each([
    ['secret', 'is not JSON'],
    ['{"auths": secret}', 'is not JSON'],
    ['', 'is not JSON'],
    ['["secret"]', 'is not a JSON object'],
    ['null', 'is not a JSON object'],
    ['{"auths": ["secret"]}', 'has auths that are not an object'],
    ['{"credsStore": "secret"}', 'has no credentials in auths, and hosts cannot use its credsStore'],
    [
      config({ 'a.io': {}, '"secret"@a.io': { auth: 7 } }),
      'entry 2 of auths, has a value of auth that is not a text',
    ],
    [config({ '"secret"@a.io': 7 }), 'entry 1 of auths, is not an object'],
    [
      config({ '"secret"@a.io': { auth: Buffer.from('secret').toString('base64') } }),
      'entry 1 of auths, has an auth that is not the base64 of USER:PASSWORD',
    ],
    [
      config({ '"secret"@a.io': { password: 'secret' } }),
      'entry 1 of auths, needs both a username and a password',
    ],
    [
      config({ '"secret"@a.io': { username: 'secret' } }),
      'entry 1 of auths, needs both a username and a password',
    ],
  ])('names the fault and not the content, and uses everything else: %s', (text, part) => {
    const keyring = Keyring.parse([config({ 'b.io': basic('other') }), text]);
    expect(users(keyring, 'b.io', 'x')).toEqual(['other']);
    expect(keyring.faults).toHaveLength(1);
    const [fault] = keyring.faults;
    expect(fault?.reason).toBe('PullSecretInvalid');
    expect(fault?.message).toBe(`Docker config 2 of 2${part.startsWith('entry') ? ', ' : ' '}${part}`);
  });

  it('uses the entries beside one that cannot be read', () => {
    const entries = { 'b.io': { username: 'reader' }, 'a.io': basic('u'), 'c.io': 7 };
    const keyring = Keyring.parse([config(entries)]);
    expect(users(keyring, 'a.io', 'x')).toEqual(['u']);
    expect(keyring.faults).toHaveLength(2);
    expect(keyring.faultsFor('a.io', 'x')).toEqual([]);
    expect(listFaults(keyring.faultsFor('b.io', 'x'))).toBe(
      'The Docker config, entry 1 of auths, needs both a username and a password',
    );
  });

  it.each(['{}', '{"auths": null}', '{"auths": {}}', '{"auths": {}, "credsStore": "", "HttpHeaders": 7}'])(
    'reads %s as a file without credentials',
    (text) => expect(Keyring.parse([text]).faults).toEqual([]),
  );

  it('reads a file that begins with a byte order mark', () => {
    const keyring = Keyring.parse([`\uFEFF${config({ 'a.io': basic('u') })}`]);
    expect(users(keyring, 'a.io', 'x')).toEqual(['u']);
  });

  it('any password is decoded unchanged', () => {
    const username = fc.string({ unit: 'grapheme', minLength: 1 }).filter((text) => !text.includes(':'));
    fc.assert(
      fc.property(username, fc.string({ unit: 'grapheme' }), (name, password) => {
        const [credential] = Keyring.parse([config({ 'a.io': basic(name, password) })]).candidates(
          'a.io',
          'x',
        );
        expect(credential).toEqual({ type: 'password', username: name, password });
      }),
    );
  });
});

it('fingerprints differ between credentials, and reveal nothing else', async () => {
  const all: (Credential | undefined)[] = [
    undefined,
    { type: 'password', username: 'a', password: 'bc' },
    { type: 'password', username: 'ab', password: 'c' },
    { type: 'identityToken', token: 'a' },
    { type: 'registryToken', token: 'a' },
  ];
  const prints = all.map(fingerprint);
  expect(new Set(prints).size).toBe(all.length);
  expect(all.map(fingerprint)).toEqual(prints);
  expect(prints).toEqual(['anonymous', ...Array(4).fill(expect.stringMatching(/^[0-9a-f]{64}$/))]);
  // A fingerprint without a key would let its readers try passwords.
  vi.resetModules();
  const { fingerprint: later } = await import('./credentials.ts');
  expect(all.map(later).filter((print) => prints.includes(print))).toEqual(['anonymous']);
});
