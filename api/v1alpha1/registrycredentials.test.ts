import { describe, expect, test } from 'vitest';
import {
  entryText,
  readRegistryCredentials,
  readServer,
  REGISTRY_CREDENTIALS_LIMIT,
  registrySecretName,
  type RegistryCredential,
} from './registrycredentials.ts';

describe('the server of a credential', () => {
  test.each([
    ['https://registry.example', { scheme: 'https', registry: 'registry.example' }],
    ['https://Registry.Example:5000/', { scheme: 'https', registry: 'registry.example:5000' }],
    ['HTTP://10.0.0.7:80', { scheme: 'http', registry: '10.0.0.7' }],
    ['https://registry.example:443', { scheme: 'https', registry: 'registry.example' }],
    ['https://registry.example:80', { scheme: 'https', registry: 'registry.example:80' }],
    ['https://index.docker.io', { scheme: 'https', registry: 'docker.io' }],
    ['http://localhost:5000', { scheme: 'http', registry: 'localhost:5000' }],
    ['http://[fd00::7]:5000', { scheme: 'http', registry: '[fd00::7]:5000' }],
  ])('%s is read', (text, server) => {
    expect(readServer(text)).toEqual(server);
  });

  test.each([
    '',
    'registry.example',
    'ftp://registry.example',
    'https://',
    'https://registry.example/team',
    'https://registry.example?x=1',
    'https://user:password@registry.example',
    'https://registry.example:0x50',
    'https://registry.example:70000',
    'https://0x7f.1',
    'https://registry.example@sha256:0',
    'https://a b.example',
    // No reference can name a host without a dot and a port.
    'https://registry',
    `https://${'a.'.repeat(200)}example`,
  ])('%s is refused', (text) => {
    expect(readServer(text)).toBeUndefined();
  });
});

describe('the ConfigMap of a namespace', () => {
  const plain: RegistryCredential = {
    scheme: 'http',
    registry: 'old.example:5000',
    secretName: registrySecretName('old.example:5000'),
    username: 'ci',
    allowInsecure: true,
  };
  const checked: RegistryCredential = {
    scheme: 'https',
    registry: 'registry.example',
    secretName: 'regcred',
    allowInsecure: false,
  };

  test('gives back what was written', () => {
    const data = Object.fromEntries([plain, checked].map((one) => [one.secretName, entryText(one)]));
    expect(readRegistryCredentials(data)).toEqual({ credentials: [plain, checked], mistakes: [] });
    expect(data['regcred']).toBe('{"server":"https://registry.example"}');
  });

  test('without data has no credentials', () => {
    expect(readRegistryCredentials(undefined)).toEqual({ credentials: [], mistakes: [] });
  });

  test.each([
    ['Not_A_Secret', entryText(checked)],
    ['regcred', ''],
    ['regcred', 'https://registry.example'],
    ['regcred', '[]'],
    ['regcred', '{"server":5}'],
    ['regcred', '{"server":"https://registry.example","allowInsecure":"true"}'],
    ['regcred', '{"server":"http://registry.example"}'],
    ['regcred', '{"server":"http://registry.example","allowInsecure":false}'],
    ['regcred', '{"server":"registry.example"}'],
    ['regcred', `{"server":"https://registry.example","username":"${'u'.repeat(257)}"}`],
    ['regcred', `{"server":"https://registry.example"}${' '.repeat(5000)}`],
  ])('ignores a wrong entry %s %.60s, but not its neighbour', (name, value) => {
    const read = readRegistryCredentials({ [name]: value, [plain.secretName]: entryText(plain) });
    expect(read.credentials).toEqual([plain]);
    expect(read.mistakes).toHaveLength(1);
  });

  test.each([
    'hunter2',
    '{"server":"hunter2"}',
    '{"server":"https://user:hunter2@registry.example"}',
    '{"server":"http://registry.example","username":"hunter2"}',
    '{"server":"https://registry.example","allowInsecure":"hunter2"}',
  ])('a mistake quotes no value: %s', (value) => {
    const { mistakes } = readRegistryCredentials({ regcred: value });
    expect(mistakes).toEqual([expect.stringMatching(/^Entry regcred is ignored: /)]);
    expect(mistakes.join(' ')).not.toContain('hunter2');
  });

  test('has one credential for a registry, whatever its scheme', () => {
    const other = { ...plain, scheme: 'https', secretName: 'zz', allowInsecure: false } as const;
    const read = readRegistryCredentials({ zz: entryText(other), [plain.secretName]: entryText(plain) });
    expect(read).toEqual({
      credentials: [plain],
      mistakes: ['Entry zz is ignored: an earlier entry has the same registry'],
    });
  });

  test('has a bounded number of entries', () => {
    const numbers = Array.from({ length: REGISTRY_CREDENTIALS_LIMIT + 3 }, (_, index) => index);
    const data = Object.fromEntries(numbers.map((n) => [`s${n}`, `{"server":"https://r${n}.example"}`]));
    const { credentials, mistakes } = readRegistryCredentials(data);
    expect(credentials).toHaveLength(REGISTRY_CREDENTIALS_LIMIT);
    expect(mistakes).toHaveLength(1);
  });
});
