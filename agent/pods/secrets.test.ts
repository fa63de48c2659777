import { describe, expect, it, test } from 'vitest';
import { INSECURE_SERVERS_ANNOTATION } from '../../api/v1alpha1/names.ts';
import { classOf, type Reason, reasonIn } from '../../api/v1alpha1/reasons.ts';
import { insecureServersText } from '../../api/v1alpha1/registrycredentials.ts';
import { messageOf } from '../../base/errors.ts';
import type { KubeClient } from '../../kube/client.ts';
import type { Pod, Secret } from '../../kube/core.ts';
import { ApiError } from '../../kube/errors.ts';
import { pullKeyring, readUserData, readVncPassword, skippedSecrets, storageKeyring } from './secrets.ts';

function podWith(annotation?: string): Pod {
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: 'vm',
      namespace: 'platform-ci',
      ...(annotation !== undefined && { annotations: { [INSECURE_SERVERS_ANNOTATION]: annotation } }),
    },
    spec: { containers: [] },
  };
}

const client = {} as KubeClient;

it('a Pod reaches the servers insecurely that its annotation names, for its namespace', async () => {
  const text = insecureServersText([{ scheme: 'http', registry: 'old.example:5000' }]);
  const keyring = await pullKeyring(client, podWith(text));
  expect(keyring.routeTo('old.example:5000')).toEqual({ scheme: 'http', namespace: 'platform-ci' });
  expect(keyring.routeTo('old.example')).toBeUndefined();
});

it.each([undefined, '', '{', '{"registry":"old.example:5000"}', '[{"registry":"old.example:5000"}]'])(
  'a Pod with the annotation %s checks every server',
  async (annotation) => {
    const keyring = await pullKeyring(client, podWith(annotation));
    expect(keyring.routeTo('old.example:5000')).toBeUndefined();
  },
);

function podUsing(...names: string[]): Pod {
  const pod = podWith();
  return { ...pod, spec: { ...pod.spec, imagePullSecrets: names.map((name) => ({ name })) } };
}

const type = 'kubernetes.io/dockerconfigjson';

function encoded(text: string): Record<string, string> {
  return { '.dockerconfigjson': Buffer.from(text).toString('base64') };
}

/** Answers with the Secret of a name. A missing one is not found, and an error is thrown. */
function clientWith(secrets: Record<string, Partial<Secret> | Error>): Pick<KubeClient, 'get'> {
  const get = async (_kind: unknown, { name }: { name: string }) => {
    const found = secrets[name] ?? new ApiError('not found', { status: 404, reason: 'NotFound' });
    if (found instanceof Error) {
      throw found;
    }
    return found;
  };
  return { get } as unknown as KubeClient;
}

const good = { type, data: encoded('{"auths":{"a.io":{"username":"u","password":"secret"}}}') };
const away = new ApiError('the key service is away', { status: 500, reason: 'InternalError' });

it.each<[string, Record<string, Partial<Secret> | Error>, Reason, string]>([
  ['does not exist', {}, 'PullSecretMissing', 'does not exist'],
  [
    'has another type',
    { bad: { type: 'Opaque', data: good.data } },
    'PullSecretTypeMismatch',
    'its type is Opaque',
  ],
  [
    'has the old type',
    { bad: { type: 'kubernetes.io/dockercfg', data: {} } },
    'PullSecretTypeMismatch',
    'dockercfg',
  ],
  ['has no content', { bad: { type } }, 'PullSecretTypeMismatch', 'needs the type'],
  ['has no JSON', { bad: { type, data: encoded('secret') } }, 'PullSecretInvalid', 'is not JSON'],
  ['cannot be read now', { bad: away }, 'SecretNotRead', 'could not read the Secret'],
])('a pull secret that %s is skipped, and an Event names it', async (_, secrets, reason, expected) => {
  const keyring = await pullKeyring(clientWith({ ...secrets, good }), podUsing('bad', 'good'));
  expect(keyring.candidates('a.io', 'x')).toEqual([{ type: 'password', username: 'u', password: 'secret' }]);
  const event = skippedSecrets(keyring);
  expect(event).toMatchObject({
    type: 'Warning',
    reason,
    message: expect.stringContaining(expected) as string,
  });
  expect(event?.message).toContain('bad in platform-ci');
  expect(event?.message).not.toContain('secret"');
  // The machine waits until somebody mends the Secret.
  expect(classOf(keyring.faults[0]?.reason, 'VM')).toBe('mendable');
});

it('pull secrets that can all be read make no Event', async () => {
  const keyring = await pullKeyring(clientWith({ good }), podUsing('good'));
  expect(skippedSecrets(keyring)).toBeUndefined();
});

/** An API server with the Secrets, by namespace. It refuses the first `refusals` requests for a Secret of another namespace than the Pod's. */
function secretsIn(passwords: Record<string, string>, refusals = 0) {
  const asked: string[] = [];
  const get = async (_: unknown, { name, namespace }: { name: string; namespace: string }) => {
    asked.push(`${namespace}/${name}`);
    if (namespace !== 'platform-ci' && asked.filter((one) => one.startsWith(namespace)).length <= refusals) {
      throw new ApiError('no right yet', { status: 403, reason: 'Forbidden' });
    }
    const password = passwords[namespace];
    if (password === undefined) {
      throw new ApiError('not there', { status: 404, reason: 'NotFound' });
    }
    const auth = Buffer.from(`berth:${password}`).toString('base64');
    const config = JSON.stringify({ auths: { 'registry.example': { auth } } });
    const data = { '.dockerconfigjson': Buffer.from(config).toString('base64') };
    return { metadata: { name, namespace }, type: 'kubernetes.io/dockerconfigjson', data };
  };
  return { asked, client: { get } as unknown as KubeClient };
}

it.each([
  ['of its own namespace', { 'platform-ci': 'own', 'berth-system': 'shared' }, 0, 'own'],
  ['of the system namespace, once the host may read them', { 'berth-system': 'shared' }, 2, 'shared'],
  ['of nobody for an open registry', {}, 0, undefined],
])('a task writes to the image storage with the credentials %s', async (_, passwords, refusals, password) => {
  const { client: cluster } = secretsIn(passwords, refusals);
  const keyring = await storageKeyring(cluster, podWith(), 'berth-system');
  expect(JSON.stringify(keyring.candidates('registry.example', 'berth/i'))).toMatch(password ?? '');
  expect(keyring.candidates('registry.example', 'berth/i')).toHaveLength(password === undefined ? 0 : 1);
});

it('the credentials of the image storage open no image for a Pod', async () => {
  const { asked, client: cluster } = secretsIn({ 'platform-ci': 'own' });
  const pod = podWith();
  pod.spec.imagePullSecrets = [{ name: 'berth-image-storage' }];
  expect((await pullKeyring(cluster, pod)).candidates('registry.example', 'berth/i')).toEqual([]);
  expect(asked).toEqual([]);
});

const REF = { namespace: 'ci', name: 'first-boot', key: 'user-data' };
const PASSWORD = 'hunter2-and-more';

/** Returns an API client whose only answer is `answer`. */
function clientOf(answer: () => unknown): Pick<KubeClient, 'get'> {
  return { get: async () => answer() } as unknown as Pick<KubeClient, 'get'>;
}

/** Returns a client that reads a Secret with these bytes at the key `key`. */
function secret(
  bytes: Buffer | string,
  { key = REF.key, type = 'berth.dev/user-data' }: { key?: string; type?: string } = {},
): Pick<KubeClient, 'get'> {
  return clientOf(() => ({ type, data: { [key]: Buffer.from(bytes).toString('base64') } }));
}

function refused(status: number): Pick<KubeClient, 'get'> {
  return clientOf(() => {
    throw new ApiError('away', { status, reason: 'Any' });
  });
}

describe('user data from a Secret', () => {
  it('is the text at the key, up to 64 KiB', async () => {
    const text = 'ä'.repeat(32 * 1024);
    expect(await readUserData(secret(text), REF)).toBe(text);
  });

  test.each<[string, Pick<KubeClient, 'get'>, string, string]>([
    ['no Secret', refused(404), 'SecretNotFound', 'first-boot in ci'],
    ['no such key', secret(PASSWORD, { key: 'other' }), 'SecretNotFound', 'the key user-data'],
    ...[
      'Opaque',
      'kubernetes.io/dockerconfigjson',
      'kubernetes.io/service-account-token',
      'kubernetes.io/tls',
      'kubernetes.io/basic-auth',
      'bootstrap.kubernetes.io/token',
      'helm.sh/release.v1',
      'berth.dev/vnc-password',
      'berth.dev/user-data-2',
    ].map(
      (type) =>
        [
          `the type ${type}`,
          secret(PASSWORD, { type }),
          'UserDataSecretRefused',
          `first-boot in ci has the type ${type}, and guests get only Secrets of type berth.dev/user-data`,
        ] as [string, Pick<KubeClient, 'get'>, string, string],
    ),
    ['too many bytes', secret(`${PASSWORD.repeat(2 ** 12)}x`), 'UserDataInvalid', '65536'],
    ['no text', secret(Buffer.from([0xff, 0xfe, ...Buffer.from(PASSWORD)])), 'UserDataInvalid', 'UTF-8'],
    ['no answer', refused(503), 'SecretNotRead', 'could not read the Secret'],
  ])(
    'with %s makes the machine wait, and the message has no part of the value',
    async (_, client, reason, expected) => {
      const error: unknown = await readUserData(client, REF).catch((thrown: unknown) => thrown);
      expect([reasonIn(error), classOf(reasonIn(error), 'VM')]).toEqual([reason, 'mendable']);
      expect(messageOf(error)).toContain(expected);
      expect(messageOf(error)).not.toContain(PASSWORD.slice(0, 4));
    },
  );
});

const VM = { namespace: 'platform-ci', name: 'desk', uid: 'vm-2' };
const VNC_PASSWORD = 'aB3-_x9z';

function readerOf(secret: Partial<Secret> | undefined): Pick<KubeClient, 'get'> {
  const get = async (_: unknown, ref: object): Promise<unknown> => {
    expect(ref).toEqual({ namespace: 'platform-ci', name: 'desk-vnc' });
    if (secret === undefined) {
      throw new ApiError('not found', { status: 404, reason: 'NotFound' });
    }
    return secret;
  };
  return { get } as unknown as Pick<KubeClient, 'get'>;
}

function vncSecret(uid: string, password: string): Partial<Secret> {
  const ownerReferences = [{ apiVersion: 'berth.dev/v1alpha1', kind: 'VM', name: 'desk', uid }];
  const data = { password: Buffer.from(password).toString('base64') };
  return { metadata: { name: 'desk-vnc', ownerReferences }, data };
}

test('the password comes from the Secret that the VM owns', async () => {
  await expect(readVncPassword(readerOf(vncSecret('vm-2', VNC_PASSWORD)), VM)).resolves.toBe(VNC_PASSWORD);
});

test.each<[string, Partial<Secret> | undefined]>([
  ['no Secret', undefined],
  ['the Secret of an earlier VM', vncSecret('vm-1', VNC_PASSWORD)],
  ['a Secret without an owner', { ...vncSecret('vm-2', VNC_PASSWORD), metadata: { name: 'desk-vnc' } }],
  ['a password that VNC would cut', vncSecret('vm-2', 'longer than eight')],
  ['a password with a line break', vncSecret('vm-2', 'seven..\n')],
  ['a Secret without a password', { ...vncSecret('vm-2', VNC_PASSWORD), data: {} }],
])('with %s the machine waits, and the message has no password', async (_, secret) => {
  const error = await readVncPassword(readerOf(secret), VM).catch((caught: unknown) => caught);
  expect(error).toMatchObject({ reason: 'VNCSecretNotFound' });
  expect(String(error)).not.toMatch(/aB3|longer than|seven/);
});

test('while the API server cannot read Secrets, the machine waits', async () => {
  const get = async () => {
    throw new ApiError('the key service is away', { status: 500, reason: 'InternalError' });
  };
  const asked = readVncPassword({ get }, VM);
  await expect(asked).rejects.toMatchObject({ reason: 'SecretNotRead' });
});
