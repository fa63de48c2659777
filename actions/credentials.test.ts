import { beforeEach, expect, it, vi } from 'vitest';
import {
  PULL_SECRET_KEY,
  REGISTRIES_CONFIG_MAP,
  registrySecretName,
} from '../api/v1alpha1/registrycredentials.ts';
import type { KubeClient } from '../kube/client.ts';
import { readData } from '../kube/configmapdata.ts';
import { ApiError } from '../kube/errors.ts';
import type { Ref, Resource } from '../kube/objects.ts';
import { addCredential, listCredentials, removeCredential } from './credentials.ts';

const NAMESPACE = 'platform-default';
const SERVER = 'https://registry.example';
const USUAL = registrySecretName('registry.example');
const CREDENTIAL = { server: SERVER, username: 'ci', password: 'secret' };

interface Stored {
  metadata: Ref;
  data?: Record<string, string | null>;
}

/** Objects of the namespace by `PLURAL/NAME`. */
let objects: Map<string, Stored>;
let client: KubeClient;

function error(status: number, reason: string): ApiError {
  return new ApiError(reason, { status, reason });
}

function keyOf(type: Resource<never>, { name }: Ref): string {
  return `${type.plural}/${name}`;
}

function found(key: string): Stored {
  const object = objects.get(key);
  if (object === undefined) {
    throw error(404, 'NotFound');
  }
  return object;
}

beforeEach(() => {
  objects = new Map();
  client = {
    get: async (type: Resource<never>, ref: Ref) => found(keyOf(type, ref)),
    create: async (type: Resource<never>, object: Stored) => {
      const key = keyOf(type, object.metadata);
      if (objects.has(key)) {
        throw error(409, 'AlreadyExists');
      }
      objects.set(key, object);
    },
    mergePatch: async (type: Resource<never>, ref: Ref, { data }: Stored) => {
      const object = found(keyOf(type, ref));
      const merged = Object.entries({ ...object.data, ...data }).filter(([, value]) => value !== null);
      object.data = Object.fromEntries(merged);
      return object;
    },
    delete: async (type: Resource<never>, ref: Ref) => void objects.delete(keyOf(type, ref)),
    call: async (_method: string, path: string) => {
      if (!objects.delete(path.split('/').slice(-2).join('/'))) {
        throw error(404, 'NotFound');
      }
    },
  } as unknown as KubeClient;
});

function configMap(data: Record<string, string>): void {
  objects.set(`configmaps/${REGISTRIES_CONFIG_MAP}`, { metadata: { name: REGISTRIES_CONFIG_MAP }, data });
}

function secrets(): string[] {
  return [...objects.keys()].filter((key) => key.startsWith('secrets/'));
}

/** Returns the keys of the entries. Each key is the name of a Secret. */
async function keys(): Promise<string[]> {
  return Object.keys(await readData(client, { namespace: NAMESPACE, name: REGISTRIES_CONFIG_MAP }));
}

async function serversListed(): Promise<string[]> {
  return (await listCredentials(client, NAMESPACE)).map(({ server }) => server);
}

it('finds a credential under the key that people gave it, and lets their Secret stay', async () => {
  const entry = { regcred: JSON.stringify({ server: SERVER }) };
  configMap(entry);
  objects.set('secrets/regcred', { metadata: { name: 'regcred' } });
  await expect(addCredential(client, NAMESPACE, CREDENTIAL)).rejects.toMatchObject({ kind: 'exists' });
  await addCredential(client, NAMESPACE, { ...CREDENTIAL, replace: true });
  expect([await keys(), secrets()]).toEqual([[USUAL], ['secrets/regcred', `secrets/${USUAL}`]]);
  await removeCredential(client, NAMESPACE, SERVER);
  expect([await keys(), secrets()]).toEqual([[], ['secrets/regcred']]);
  configMap(entry);
  await removeCredential(client, NAMESPACE, SERVER);
  expect([await keys(), secrets()]).toEqual([[], ['secrets/regcred']]);
});

it('a removal that was interrupted can be repeated, and what is missing is not found', async () => {
  await addCredential(client, NAMESPACE, CREDENTIAL);
  vi.spyOn(client, 'delete').mockRejectedValueOnce(error(500, 'InternalError'));
  await expect(removeCredential(client, NAMESPACE, SERVER)).rejects.toMatchObject({ status: 500 });
  expect([await serversListed(), secrets()]).toEqual([[SERVER], [`secrets/${USUAL}`]]);
  vi.spyOn(client, 'mergePatch').mockRejectedValueOnce(error(500, 'InternalError'));
  await expect(removeCredential(client, NAMESPACE, SERVER)).rejects.toMatchObject({ status: 500 });
  expect([await serversListed(), secrets()]).toEqual([[SERVER], []]);
  await removeCredential(client, NAMESPACE, SERVER);
  expect(await serversListed()).toEqual([]);
  await expect(removeCredential(client, NAMESPACE, SERVER)).rejects.toMatchObject({ status: 404 });
  configMap({ [USUAL]: JSON.stringify({ server: SERVER }) });
  await removeCredential(client, NAMESPACE, SERVER);
  expect(await serversListed()).toEqual([]);
});

it('an addition that was interrupted can be repeated, with another password', async () => {
  vi.spyOn(client, 'mergePatch').mockRejectedValueOnce(error(500, 'InternalError'));
  await expect(addCredential(client, NAMESPACE, CREDENTIAL)).rejects.toMatchObject({ status: 500 });
  expect([await serversListed(), secrets()]).toEqual([[], [`secrets/${USUAL}`]]);
  await addCredential(client, NAMESPACE, { ...CREDENTIAL, password: 'new' });
  expect(await serversListed()).toEqual([SERVER]);
  const { [PULL_SECRET_KEY]: content } = found(`secrets/${USUAL}`).data ?? {};
  expect(JSON.parse(Buffer.from(content ?? '', 'base64').toString())).toEqual({
    auths: { 'registry.example': { username: 'ci', password: 'new' } },
  });
});

it('two first additions at the same time both stay', async () => {
  const other = 'https://other.example';
  await Promise.all([
    addCredential(client, NAMESPACE, CREDENTIAL),
    addCredential(client, NAMESPACE, { ...CREDENTIAL, server: other }),
  ]);
  expect((await serversListed()).toSorted()).toEqual([other, SERVER]);
});

it('refuses a credential that would have no effect, because there are too many', async () => {
  const entries = Array.from({ length: 64 }, (_, n) => [
    `s${n}`,
    JSON.stringify({ server: `https://r${n}.example` }),
  ]);
  configMap(Object.fromEntries(entries));
  await expect(addCredential(client, NAMESPACE, CREDENTIAL)).rejects.toMatchObject({ kind: 'refused' });
  expect(secrets()).toEqual([]);
  await addCredential(client, NAMESPACE, { ...CREDENTIAL, server: 'https://r7.example', replace: true });
  expect(secrets()).toEqual([`secrets/${registrySecretName('r7.example')}`]);
});
