import { once } from 'node:events';
import { lstat, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest';
import { change } from './config.ts';
import { createAuthority, issue } from '../hack/cluster/authority.ts';
import { createKey } from '../kube/certificates/certificate.ts';
import { ApiError } from '../kube/errors.ts';
import { makeTerminal } from '../test/fixtures/terminals.ts';
import { directOrAsked } from './httpapi.ts';
import { targetOf } from './login/target.ts';

let home: string;
let file: string;
let server: Server;
let apiURL: string;

beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), 'berth-authority-'));
  file = join(home, 'authority.crt');
  const [authority, key] = [await createAuthority('private'), await createKey()];
  await writeFile(file, authority.certificate);
  const cert = await issue(authority, { key, commonName: 'api', ipAddresses: ['127.0.0.1'] });
  server = createServer({ cert, key: key.pem }, (_request, response) => {
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ apiEndpoint: 'https://cluster.example', items: [] }));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  apiURL = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
});

afterAll(async () => {
  server.closeAllConnections();
  server.close();
  await rm(home, { recursive: true });
});

it('a settings file that is a link stays a link, and the file to which it leads is changed', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-settings-'));
  onTestFinished(async () => await rm(folder, { recursive: true }));
  await mkdir(join(folder, 'berth'));
  const link = join(folder, 'berth', 'config.yaml');
  await writeFile(join(folder, 'dotfile'), 'ssh:\n  user: ci\n');
  await symlink('../dotfile', link);
  const terminal = makeTerminal({ environment: { XDG_CONFIG_HOME: folder } });
  await change(terminal, { output: 'table' }, { apiUrl: 'https://berth.example' });
  expect((await lstat(link)).isSymbolicLink()).toBe(true);
  const changed = await readFile(join(folder, 'dotfile'), 'utf8');
  expect(changed).toBe('ssh:\n  user: ci\napiURL: https://berth.example\n');
});

it('sets a private authority by its absolute path, and keeps the other settings', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-settings-'));
  onTestFinished(async () => await rm(folder, { recursive: true }));
  const authority = join(folder, 'authority.crt');
  await writeFile(authority, (await createAuthority('berth')).certificate);
  let written = '';
  const out = (text: string) => void (written += text);
  const terminal = makeTerminal({ environment: { XDG_CONFIG_HOME: folder }, out });
  await change(terminal, { output: 'table' }, { apiUrl: 'https://berth.example' });
  written = '';
  await change(terminal, { output: 'table' }, { certificateAuthority: relative(process.cwd(), authority) });
  const file = join(folder, 'berth', 'config.yaml');
  expect(written).toBe(`Set certificateAuthority to ${authority} in ${file}\n`);
  expect(await readFile(file, 'utf8')).toBe(
    `apiURL: https://berth.example\ncertificateAuthority: ${authority}\n`,
  );
});

it.each<[string, string, RegExp]>([
  ['no setting', '', /^Name what to set: --api-url, --certificate-authority or both$/],
  ['a missing file', 'absent.crt', /^--certificate-authority: \S+absent\.crt: .*no such file/],
  ['a file without a certificate', 'text.crt', /text\.crt: it must have a certificate in PEM/],
  ['a damaged certificate', 'damaged.crt', /^--certificate-authority: \S+damaged\.crt: \S/],
])('%s is refused, and nothing is written', async (_, name, message) => {
  const folder = await mkdtemp(join(tmpdir(), 'berth-settings-'));
  onTestFinished(async () => await rm(folder, { recursive: true }));
  await writeFile(join(folder, 'text.crt'), 'text');
  await writeFile(
    join(folder, 'damaged.crt'),
    '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n',
  );
  const terminal = makeTerminal({ environment: { XDG_CONFIG_HOME: folder } });
  const flags = name === '' ? {} : { certificateAuthority: join(folder, name) };
  await expect(change(terminal, { output: 'table' }, flags)).rejects.toThrow(message);
  await expect(readFile(join(folder, 'berth', 'config.yaml'))).rejects.toThrow('ENOENT');
});

/** Asks the HTTP API for the nodes, as a member of a namespace who may not read them from the API server. */
async function askNodes(apiAuthority: string | undefined): Promise<unknown> {
  const connection = { server: 'https://cluster.example', token: 'mine' };
  const refusal = new ApiError('nodes is forbidden: User "me" cannot list', {
    status: 403,
    reason: 'Forbidden',
  });
  return await directOrAsked(
    { apiURL, apiAuthority, connection, environment: {} },
    new AbortController().signal,
    async () => await Promise.reject(refusal),
    async (asked) => await asked({ method: 'GET', path: '/nodes' }),
  );
}

it('commands and the sign-in trust the authority of the settings, and no other one without it', async () => {
  const place = { file: join(home, 'kubeconfig'), context: 'berth' };
  const signIn = async (settings: object) =>
    await targetOf(makeTerminal(), { place, settings: { apiURL, ...settings }, flags: {} });
  await expect(askNodes(undefined)).rejects.toThrow('is not trusted');
  await expect(signIn({})).rejects.toThrow('is not trusted');
  expect(await askNodes(file)).toMatchObject({ items: [] });
  expect(await signIn({ certificateAuthority: file })).toMatchObject({
    address: { server: 'https://cluster.example' },
  });
});

it('the setting is named if its file is gone', async () => {
  await expect(askNodes(join(home, 'gone.crt'))).rejects.toThrow(
    /^certificateAuthority: \S+gone\.crt: .*no such file/,
  );
});
