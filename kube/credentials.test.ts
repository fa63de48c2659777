import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadConnection } from './credentials.ts';

let folder: string;

async function kubeconfig(user: object, cluster: object = {}): Promise<string> {
  const file = path.join(folder, 'config');
  const content = {
    'current-context': 'here',
    contexts: [{ name: 'here', context: { cluster: 'one', user: 'me', namespace: 'mine' } }],
    clusters: [{ name: 'one', cluster: { server: 'https://127.0.0.1:6443/', ...cluster } }],
    users: [{ name: 'me', user }],
  };
  await writeFile(file, JSON.stringify(content));
  return file;
}

function base64(text: string): string {
  return Buffer.from(text).toString('base64');
}

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'berth-credentials-'));
});

afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

describe('the address of the API server', () => {
  it.each([
    ['10.96.0.1', 'https://10.96.0.1:443'],
    ['fd00::1', 'https://[fd00::1]:443'],
  ])(
    'is at %s where the kubelet says so, and keeps that name in its certificate',
    async (address, server) => {
      const environment = { KUBERNETES_SERVICE_HOST: address, KUBERNETES_SERVICE_PORT: '443' };
      const kubeconfigPath = await kubeconfig({}, { server: 'https://kubernetes.default.svc:443' });
      const serverName = 'kubernetes.default.svc';
      expect(await loadConnection({ kubeconfigPath, environment })).toMatchObject({ server, serverName });
    },
  );

  it('is unchanged outside of a Pod, and so is any other name in a Pod', async () => {
    const own = await kubeconfig({}, { server: 'https://kubernetes.default.svc:443' });
    expect((await loadConnection({ kubeconfigPath: own, environment: {} })).server).toBe(
      'https://kubernetes.default.svc:443',
    );
    const environment = { KUBERNETES_SERVICE_HOST: '10.96.0.1', KUBERNETES_SERVICE_PORT: '443' };
    const connection = await loadConnection({ kubeconfigPath: await kubeconfig({}), environment });
    expect(connection).toMatchObject({ server: 'https://127.0.0.1:6443', serverName: undefined });
  });
});

describe('kubeconfig', () => {
  it('gives server, authority and client certificate, inline or from files beside it', async () => {
    await writeFile(path.join(folder, 'me.key'), 'KEY');
    const kubeconfigPath = await kubeconfig(
      { 'client-certificate-data': base64('CERTIFICATE'), 'client-key': 'me.key' },
      { 'certificate-authority-data': base64('AUTHORITY'), 'tls-server-name': 'kubernetes' },
    );
    expect(await loadConnection({ kubeconfigPath })).toMatchObject({
      server: 'https://127.0.0.1:6443',
      serverName: 'kubernetes',
      certificateAuthority: 'AUTHORITY',
      clientCertificate: 'CERTIFICATE',
      clientKey: 'KEY',
      namespace: 'mine',
    });
  });

  it('takes an empty path or context for an absent one, as kubectl does', async () => {
    const environment = { KUBECONFIG: await kubeconfig({ token: 'own' }) };
    const connection = await loadConnection({ kubeconfigPath: '', context: '', environment });
    expect(connection).toMatchObject({ token: 'own', namespace: 'mine' });
  });

  it('names the token file like kubectl, and leaves the reading to the transport', async () => {
    const kubeconfigPath = await kubeconfig({ tokenFile: 'token' });
    const { tokenFile, token } = await loadConnection({ kubeconfigPath });
    expect(tokenFile).toBe(path.join(folder, 'token'));
    expect(token).toBeUndefined();
  });

  it('asks a credential plug-in for a token', async () => {
    const apiVersion = 'client.authentication.k8s.io/v1';
    const credential = { apiVersion, kind: 'ExecCredential', status: { token: 'from-plugin' } };
    const exec = { apiVersion, command: process.execPath, args: ['-p', `'${JSON.stringify(credential)}'`] };
    const { tokenPlugin } = await loadConnection({ kubeconfigPath: await kubeconfig({ exec }) });
    expect(await tokenPlugin?.()).toBe('from-plugin');
  });

  it('tells its cluster to a plug-in that wants to know it, and only to such a one', async () => {
    const apiVersion = 'client.authentication.k8s.io/v1';
    const script = `const { cluster } = JSON.parse(process.env.KUBERNETES_EXEC_INFO).spec;
      const token = Buffer.from(JSON.stringify(cluster ?? 'none')).toString('base64url');
      console.log(JSON.stringify({ apiVersion: '${apiVersion}', kind: 'ExecCredential', status: { token } }));`;
    const exec = { apiVersion, command: process.execPath, args: ['-e', script] };
    const extension = { name: 'client.authentication.k8s.io/exec', extension: { audience: 'berth' } };
    const cluster = { 'certificate-authority-data': base64('AUTHORITY'), extensions: [extension] };
    const reported = async (more: object) => {
      const kubeconfigPath = await kubeconfig({ exec: { ...exec, ...more } }, cluster);
      const token = await (await loadConnection({ kubeconfigPath })).tokenPlugin?.();
      return JSON.parse(Buffer.from(token ?? '', 'base64url').toString()) as unknown;
    };
    expect(await reported({})).toBe('none');
    expect(await reported({ provideClusterInfo: true })).toEqual({
      server: 'https://127.0.0.1:6443',
      'certificate-authority-data': base64('AUTHORITY'),
      config: { audience: 'berth' },
    });
  });

  it('is found by KUBECONFIG', async () => {
    const environment = { KUBECONFIG: await kubeconfig({ token: 't' }) };
    expect(await loadConnection({ environment })).toMatchObject({ token: 't' });
  });

  it('has each entry from the first file of KUBECONFIG that has it, with paths that begin beside that file', async () => {
    const [first, second] = ['first', 'second'].map((name) => path.join(folder, name));
    await Promise.all([first, second].map(async (place = '') => await mkdir(place, { recursive: true })));
    const one = {
      name: 'one',
      cluster: { server: 'https://127.0.0.1:1', 'certificate-authority': 'ca.crt' },
    };
    const context = (cluster: string) => ({ name: 'here', context: { cluster, user: 'me' } });
    const contents = [
      { contexts: [context('one')], users: [{ name: 'me', user: { tokenFile: 'token' } }] },
      {
        'current-context': 'here',
        contexts: [context('two')],
        clusters: [one],
        users: [{ name: 'me', user: { token: 'hidden' } }],
      },
    ];
    const files = [first, second].map((place = '') => path.join(place, 'config'));
    await Promise.all(
      files.map(async (file, index) => await writeFile(file, JSON.stringify(contents[index]))),
    );
    await writeFile(path.join(second ?? '', 'ca.crt'), 'AUTHORITY');
    const all = [path.join(folder, 'absent'), ...files].join(path.delimiter);
    expect(await loadConnection({ environment: { KUBECONFIG: all } })).toEqual({
      server: 'https://127.0.0.1:1',
      certificateAuthority: 'AUTHORITY',
      tokenFile: path.join(first ?? '', 'token'),
    });
    await expect(loadConnection({ environment: { KUBECONFIG: all }, context: 'there' })).rejects.toThrow(
      `kubeconfig ${all}: there is no context "there"`,
    );
    const absent = ['a', 'b'].map((name) => path.join(folder, 'absent', name)).join(path.delimiter);
    await expect(loadConnection({ environment: { KUBECONFIG: absent } })).rejects.toThrow('ENOENT');
  });

  it.each<[string, object, object]>([
    ['insecure-skip-tls-verify', {}, { 'insecure-skip-tls-verify': true }],
    ['username and password', { username: 'u', password: 'p' }, {}],
    ['impersonation', { as: 'other' }, {}],
    ['user me: exec.apiVersion', { exec: { command: 'true' } }, {}],
    ['entry one: cluster.server is missing', {}, { server: undefined }],
    ['entry one: cluster.server must be a text', {}, { server: 6443 }],
    ['entry me: user.token must be a text', { token: 1 }, {}],
  ])('with %s is refused, not half used', async (what, user, cluster) => {
    const kubeconfigPath = await kubeconfig(user, cluster);
    await expect(loadConnection({ kubeconfigPath })).rejects.toThrow(what);
  });

  it('may have other entries that are not complete, as kubectl config makes them', async () => {
    const kubeconfigPath = await kubeconfig({ token: 't' });
    const content = JSON.parse(await readFile(kubeconfigPath, 'utf8')) as Record<string, object[]>;
    content['contexts']?.unshift({ name: 'typo', context: { namespace: 'mine' } });
    content['clusters']?.unshift({ name: 'half', cluster: {} });
    content['users']?.unshift({ name: 'gone', user: { 'token-file': '/absent/token' } });
    await writeFile(kubeconfigPath, JSON.stringify(content));
    expect(await loadConnection({ kubeconfigPath })).toMatchObject({ token: 't' });
    await expect(loadConnection({ kubeconfigPath, context: 'typo' })).rejects.toThrow(
      /entry typo: .*cluster is missing$/,
    );
  });

  it('without the requested context is refused by name', async () => {
    const kubeconfigPath = await kubeconfig({ token: 't' });
    await expect(loadConnection({ kubeconfigPath, context: 'there' })).rejects.toThrow('no context "there"');
    await writeFile(kubeconfigPath, '{}');
    await expect(loadConnection({ kubeconfigPath })).rejects.toThrow(/: there is no current context$/);
  });

  it('whose context names a user that does not exist is refused, and does not connect without a user', async () => {
    const kubeconfigPath = await kubeconfig({ token: 't' });
    const content = JSON.parse(await readFile(kubeconfigPath, 'utf8')) as object;
    await writeFile(kubeconfigPath, JSON.stringify({ ...content, users: [] }));
    await expect(loadConnection({ kubeconfigPath })).rejects.toThrow(/: there is no user "me"$/);
  });
});
