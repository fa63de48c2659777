import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { namespaceOf } from './cluster.ts';
import { EXIT } from './errors.ts';
import { parseApiURL, readSettings } from './settingsfile.ts';

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-settings-'));
  await mkdir(join(folder, 'berth'));
});

afterAll(async () => await rm(folder, { recursive: true, force: true }));

async function settingsIn(text: string) {
  await writeFile(join(folder, 'berth', 'config.yaml'), text);
  return await readSettings({ XDG_CONFIG_HOME: folder });
}

it('needs no file, and reads an empty one', async () => {
  expect(await readSettings({ XDG_CONFIG_HOME: join(folder, 'absent') })).toEqual({});
  expect(await settingsIn('')).toEqual({});
});

it('needs no folder for the file', async () => {
  // Programs without a home folder often get a file as their HOME.
  const HOME = join(folder, 'file');
  await writeFile(HOME, '');
  expect(await readSettings({ HOME })).toEqual({});
});

it('names a file that cannot be read, as a mistake of the user', async () => {
  const own = join(folder, 'unreadable');
  const file = join(own, 'berth', 'config.yaml');
  await mkdir(file, { recursive: true });
  await expect(readSettings({ XDG_CONFIG_HOME: own })).rejects.toMatchObject({
    exitCode: EXIT.usage,
    message: expect.stringContaining(file),
  });
});

it.each([
  ['alias: {}', 'alias is not a setting. The settings are aliases, apiURL, certificateAuthority, ssh'],
  ['aliases: {namespace: A}', 'aliases.namespace is not a setting. The settings are namespaceVariable'],
  ['aliases: [1]', 'aliases must be a map'],
  ['aliases: {namespaceVariable: "A B"}', 'aliases.namespaceVariable must be the name of a variable'],
  ['aliases: {namespacePrefix: "CI_"}', 'aliases.namespacePrefix must be a prefix for names of namespaces'],
  ['aliases: {context: "a b"}', 'aliases.context must be a name'],
  ['ssh: {user: "-oProxyCommand=a"}', 'ssh.user must be the name of a user'],
  ['apiURL: http://berth.example', 'apiURL must be https://'],
  ['certificateAuthority: ca.crt', 'certificateAuthority must be the absolute path of a PEM file'],
  ['{', 'config.yaml'],
])('refuses %s by name', async (text, expected) => {
  await expect(settingsIn(text)).rejects.toThrow(expected);
});

it('takes an HTTP API without TLS only on this machine, because others could answer in its place', () => {
  for (const own of ['https://berth.example', 'http://127.0.0.1:1', 'http://localhost', 'http://[::1]:1']) {
    expect(parseApiURL(`${own}/`)).toBe(own);
  }
  for (const other of [
    'http://192.0.2.1',
    'http://127.0.0.1.example',
    'http://a@localhost',
    'ftp://localhost',
  ]) {
    expect(parseApiURL(other)).toBeUndefined();
  }
});

it('takes the namespace from the flag, a variable, the other variable, the context, or the default', async () => {
  const settings = await settingsIn('aliases: {namespaceVariable: OTHER_NAMESPACE}');
  const chosen = [{ namespace: 'flag' }, {}, {}, {}, {}].map((flags, index) => {
    const variables = [{ BERTH_NAMESPACE: 'own', OTHER_NAMESPACE: 'other' }, { OTHER_NAMESPACE: 'other' }];
    const environment = [variables[0], variables[0], variables[1], { BERTH_NAMESPACE: '' }, {}][index] ?? {};
    return namespaceOf(flags, { environment }, settings, index < 4 ? { namespace: 'context' } : {});
  });
  expect(chosen).toEqual(['flag', 'own', 'other', 'context', 'platform-default']);
});

it('takes namespaces with the other prefix of the settings from flags and variables', async () => {
  const settings = await settingsIn('aliases: {namespacePrefix: ci-, namespaceVariable: OTHER_NAMESPACE}');
  const own = namespaceOf({ namespace: 'ci-team' }, { environment: {} }, settings, {});
  const byVariable = { environment: { OTHER_NAMESPACE: 'ci-default' } };
  expect([own, namespaceOf({}, byVariable, settings, {})]).toEqual(['platform-team', 'platform-default']);
  // A kubeconfig has the names of the cluster, so the prefix in the settings does not hold for it.
  const context = { namespace: 'ci-team' };
  expect(namespaceOf({}, { environment: {} }, settings, context)).toBe('ci-team');
  expect(namespaceOf({ namespace: 'platform-team' }, { environment: {} }, settings, context)).toBe(
    'platform-team',
  );
});
